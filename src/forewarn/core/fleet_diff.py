"""Compares a fleet file with the running fleet: what it would change, and why it cannot be applied.

The file declares what a VM is. The running fleet owns its current state (host, power, health, vm_id) and the fields
that the file did not specify when the VM was added; applying a file keeps those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import MAX_FLEXIBLE_SET, MAX_PLACEMENT_GROUP, Host, HostHealth, Vm
from forewarn.core.fleetfile.problems import FleetFileProblem
from forewarn.core.fleetfile.reader import DeclaredFleet, location_text
from forewarn.core.placement import HostAllocator
from forewarn.core.resource_ids import scale_set_resource_id
from forewarn.core.scope import scope_title_of_vm

# Merges a declared fleet with the running one: what stays, is added, returns or is missing.
#
# Chooses hosts for new VMs from the current load, because the file was read without knowing it.

# The fields of a VM that a file sets. The running fleet owns all others (id, host, power); no file resets them.
_DECLARED_FIELDS = frozenset(
    {
        "computer_name", "location", "zone", "size", "os_type", "availability_set", "scale_set",
        "orchestration", "placement_group", "cloud_service", "update_domain", "fault_domain",
        "update_domain_count", "fault_domain_count", "priority", "eviction_policy", "terminate_notice_min",
        "auto_approve", "approves_all_down", "narrow_delivery", "tags", "program", "environment", "directory",
        "address",
    }
)  # fmt: skip


class FleetMerge(msgspec.Struct, frozen=True, kw_only=True):
    """A declared fleet matched with the running one: every host and VM of either, by what happens to it."""

    declared: DeclaredFleet
    hosts: tuple[tuple[Host, Host], ...]  # in both fleets: (as it is, as it would be)
    new_hosts: tuple[Host, ...]  # only declared
    missing_hosts: tuple[Host, ...]  # only in the running fleet
    vms: tuple[tuple[Vm, Vm], ...]  # in both fleets: (as it is, as it would be)
    new_vms: tuple[Vm, ...]  # only declared; on the host that they name, else a chosen one, else none ("")
    resurrected_vms: tuple[Vm, ...]  # were deleted, and are added again
    still_deleted_vms: tuple[Vm, ...]  # declared, but were deleted and stay deleted
    missing_vms: tuple[Vm, ...]  # only in the running fleet, without deleted ones
    remove_missing: bool  # whether the missing hosts and VMs are removed; else they are kept
    live_events: tuple[Event, ...]  # of the running fleet

    @property
    def hosts_after(self) -> tuple[Host, ...]:
        kept = () if self.remove_missing else self.missing_hosts
        return (*(new for _, new in self.hosts), *self.new_hosts, *kept)

    @property
    def vms_after(self) -> tuple[Vm, ...]:
        """All present VMs that the fleet would have after the merge, as they would be then."""
        kept = () if self.remove_missing else self.missing_vms
        return (*(new for _, new in self.vms), *self.new_vms, *self.resurrected_vms, *kept)


def merge_fleet(
    declared: DeclaredFleet,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool,
    remove_missing: bool,
) -> FleetMerge:
    """Match a declared fleet with the running one, and choose hosts for added VMs that name none.

    `vms` includes removed VMs; VMs that are moving, by `live_events`, count on their new hosts. An added VM that no
    healthy host can take has no host in the result.
    """
    known_hosts = {host.name.casefold(): host for host in hosts}
    named_hosts = {host.name.casefold(): host for host in declared.hosts}
    known = {vm.key: vm for vm in vms}
    named = {vm.key: vm for vm in declared.vms}
    present = [vm for vm in vms if vm.removed_at is None]
    deleted = [vm for key, vm in named.items() if key in known and known[key].removed_at is not None]
    merge = FleetMerge(
        declared=declared,
        hosts=tuple(
            (host, _merge_host(host, named_hosts[key])) for key, host in known_hosts.items() if key in named_hosts
        ),
        new_hosts=tuple(host for key, host in named_hosts.items() if key not in known_hosts),
        missing_hosts=tuple(host for key, host in known_hosts.items() if key not in named_hosts),
        vms=tuple((vm, _merge_vm(vm, named[vm.key], declared)) for vm in present if vm.key in named),
        new_vms=tuple(vm for key, vm in named.items() if key not in known),
        resurrected_vms=tuple(deleted) if resurrect else (),
        still_deleted_vms=() if resurrect else tuple(known[vm.key] for vm in deleted),
        missing_vms=tuple(vm for vm in present if vm.key not in named),
        remove_missing=remove_missing,
        live_events=tuple(live_events),
    )
    return _with_hosts_for_new_vms(_with_old_addresses(merge, known))


def _merge_host(old: Host, new: Host) -> Host:
    """Keep what the running fleet owns: the name's spelling, the health and the version."""
    return msgspec.structs.replace(old, location=new.location, zone=new.zone)


def _merge_vm(old: Vm, new: Vm, declared: DeclaredFleet) -> Vm:
    specified = _DECLARED_FIELDS - declared.origins[old.key].unspecified_fields
    return msgspec.structs.replace(old, **{field: getattr(new, field) for field in specified})


def _with_old_addresses(merge: FleetMerge, known: dict[str, Vm]) -> FleetMerge:
    """Give resurrected VMs their old address, unless the file gives one or another VM has it now."""
    taken = {vm.address for vm in merge.vms_after}

    def with_address(vm: Vm) -> Vm:
        old = known[vm.key].address
        return vm if vm.address or old in taken else msgspec.structs.replace(vm, address=old)

    return msgspec.structs.replace(merge, resurrected_vms=tuple(with_address(vm) for vm in merge.resurrected_vms))


def _with_hosts_for_new_vms(merge: FleetMerge) -> FleetMerge:
    """Choose hosts for new VMs by the current load; reading the file chose them without knowing the load."""
    names = {host.name.casefold(): host.name for host in merge.hosts_after}
    origins = merge.declared.origins
    added = {vm.key: vm for vm in (*merge.new_vms, *merge.resurrected_vms)}
    pinned = {
        key: _with_host(vm, names.get(vm.host.casefold(), ""))
        for key, vm in added.items()
        if "host" not in origins[key].unspecified_fields
    }
    present = [vm for vm in merge.vms_after if vm.key not in added]
    allocator = HostAllocator(merge.hosts_after, [*_vms_at_destinations(present, merge.live_events), *pinned.values()])

    def with_best_host(vm: Vm) -> Vm:
        if vm.key in pinned:
            return pinned[vm.key]
        host = allocator.choose_host(vm) or ""
        allocator.assign(vm, host)
        return _with_host(vm, host)

    return msgspec.structs.replace(
        merge,
        new_vms=tuple(with_best_host(vm) for vm in merge.new_vms),
        resurrected_vms=tuple(with_best_host(vm) for vm in merge.resurrected_vms),
    )


def _vms_at_destinations(vms: Iterable[Vm], live_events: Iterable[Event]) -> list[Vm]:
    """Return the VMs, those that a started event moves already on their destination host."""
    destinations = {act.vm: act.to_host for event in live_events for act in event.unfinished_acts if act.to_host}
    return [_with_host(vm, destinations.get(vm.key, vm.host)) for vm in vms]


def _with_host(vm: Vm, host: str) -> Vm:
    return vm if vm.host == host else msgspec.structs.replace(vm, host=host)


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a VM or host that a fleet file would change, with both values as plain JSON types."""

    field: str  # its name in Vm or Host
    old: Any  # its value in the running fleet
    new: Any  # its value after the file is applied


class VmChange(msgspec.Struct, frozen=True, kw_only=True):
    """A VM that a fleet file would change: before, after, and the fields that differ."""

    old: Vm  # as it is
    new: Vm  # as it would be
    fields: tuple[FieldChange, ...]  # at least one, in the order of the fields of Vm


class HostChange(msgspec.Struct, frozen=True, kw_only=True):
    """A host that a fleet file would change: before, after, and the fields that differ."""

    old: Host  # as it is
    new: Host  # as it would be
    fields: tuple[FieldChange, ...]  # at least one, in the order of the fields of Host


class FleetDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What applying a fleet file would change, and the problems that forbid it. It changes nothing itself."""

    source: str  # the name of the file, for messages
    hosts_added: tuple[Host, ...] = ()  # as they would be
    hosts_changed: tuple[HostChange, ...] = ()  # before and after, with what differs
    hosts_removed: tuple[Host, ...] = ()  # as they are
    hosts_kept: tuple[Host, ...] = ()  # not in the file, but not to be removed
    added: tuple[Vm, ...] = ()  # as they would be
    resurrected: tuple[Vm, ...] = ()  # were deleted, and are added again
    changed: tuple[VmChange, ...] = ()  # before and after, with what differs
    removed: tuple[Vm, ...] = ()  # as they are
    kept: tuple[Vm, ...] = ()  # not in the file, but not to be removed
    stay_deleted: tuple[Vm, ...] = ()  # in the file, but deleted earlier
    unchanged: tuple[Vm, ...] = ()  # as they are
    problems: tuple[FleetFileProblem, ...] = ()  # with any problem, nothing is applied

    @property
    def is_empty(self) -> bool:
        """Whether applying the file would add, change and remove no host and no VM; problems do not count."""
        hosts = self.hosts_added or self.hosts_changed or self.hosts_removed
        return not (hosts or self.added or self.resurrected or self.changed or self.removed)

    @property
    def vms_to_set(self) -> tuple[Vm, ...]:
        """The VMs that applying the file writes: added, resurrected (both without vm_id), then changed ones."""
        return (*self.added, *self.resurrected, *(change.new for change in self.changed))

    @property
    def hosts_to_set(self) -> tuple[Host, ...]:
        """The hosts that applying the file writes: added ones, then changed ones as they would be."""
        return (*self.hosts_added, *(change.new for change in self.hosts_changed))

    def to_lines(self, limit: int | None = 20) -> list[str]:
        """Return lines for people: one per host, VM and problem by what happens to it, then the summary."""
        sections = (
            [f"+ host {host.name}" for host in self.hosts_added],
            [f"~ host {change.old.name}: {_changes_text(change.fields)}" for change in self.hosts_changed],
            [f"- host {host.name}" for host in self.hosts_removed],
            [f"+ VM {vm.name} on {vm.host or 'no host'}" for vm in self.added],
            [f"+ VM {vm.name} on {vm.host or 'no host'}, deleted before" for vm in self.resurrected],
            [f"~ VM {change.old.name}: {_changes_text(change.fields)}" for change in self.changed],
            [f"- VM {vm.name}" for vm in self.removed],
            [f"  VM {vm.name} was deleted and stays deleted" for vm in self.stay_deleted],
            [f"  VM {vm.name} is not in the file and is kept" for vm in self.kept],
            [f"  host {host.name} is not in the file and is kept" for host in self.hosts_kept],
            [f"! {problem.sentence(self.source)}" for problem in self.problems],
        )
        return [line for section in sections for line in _limited(section, limit)] + [self.summary()]

    def summary(self) -> str:
        """Return one line that counts additions, changes and removals, or says `nothing to do`."""
        if self.is_empty:
            return "nothing to do" if not self.problems else "cannot be applied"
        vms = len(self.added) + len(self.resurrected), len(self.changed), len(self.removed)
        hosts = len(self.hosts_added), len(self.hosts_changed), len(self.hosts_removed)
        counts = "VMs: {} to add, {} to change, {} to remove; ".format(*vms)
        counts += "hosts: {} to add, {} to change, {} to remove".format(*hosts)
        return f"{counts}; cannot be applied" if self.problems else counts


def diff_fleet(
    declared: DeclaredFleet,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool = False,
    remove_missing: bool = True,
) -> FleetDiff:
    """Return what applying the declared fleet would do to the running one; what forbids it is in `problems`.

    `vms` includes removed VMs. A VM in both fleets keeps its host and power state, even if the file names another host,
    and the fields that the file leaves open.
    """
    merge = merge_fleet(
        declared,
        hosts=hosts,
        vms=vms,
        live_events=live_events,
        resurrect=resurrect,
        remove_missing=remove_missing,
    )
    return FleetDiff(
        source=declared.source,
        hosts_added=merge.new_hosts,
        hosts_changed=tuple(HostChange(old=o, new=n, fields=_changed_fields(o, n)) for o, n in merge.hosts if o != n),
        hosts_removed=merge.missing_hosts if remove_missing else (),
        hosts_kept=() if remove_missing else merge.missing_hosts,
        added=merge.new_vms,
        resurrected=merge.resurrected_vms,
        changed=tuple(VmChange(old=o, new=n, fields=_changed_fields(o, n)) for o, n in merge.vms if o != n),
        removed=merge.missing_vms if remove_missing else (),
        kept=() if remove_missing else merge.missing_vms,
        stay_deleted=merge.still_deleted_vms,
        unchanged=tuple(old for old, new in merge.vms if old == new),
        problems=_merge_problems(merge),
    )


def _changed_fields(old: msgspec.Struct, new: msgspec.Struct) -> tuple[FieldChange, ...]:
    both = ((name, getattr(old, name), getattr(new, name)) for name in old.__struct_fields__)
    return tuple(
        FieldChange(field=name, old=msgspec.to_builtins(was), new=msgspec.to_builtins(will))
        for name, was, will in both
        if was != will
    )


def _changes_text(fields: Iterable[FieldChange]) -> str:
    return ", ".join(f"{change.field} {_json_text(change.old)} → {_json_text(change.new)}" for change in fields)


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _limited(lines: list[str], limit: int | None) -> list[str]:
    if limit is None or len(lines) <= limit:
        return lines
    return [*lines[:limit], f"{lines[limit][:1]} … and {len(lines) - limit:,} more"]


def _merge_problems(merge: FleetMerge) -> tuple[FleetFileProblem, ...]:
    events_by_vm = _events_by_vm(merge)
    found = (
        *_removed_vms_with_started_events(merge, events_by_vm),
        *_vms_that_change_location(merge),
        *_vms_that_change_domain_during_event(merge, events_by_vm),
        *_removed_hosts_in_use(merge),
        *_moved_hosts_in_use(merge),
        *_new_vms_without_host(merge),
        *_duplicate_addresses(merge),
        *_oversized_placement_groups(merge),
        *_sets_with_two_orchestrations(merge),
        *_sets_with_invalid_delivery(merge),
        *_deliveries_that_change_during_event(merge),
    )
    return tuple(sorted(found, key=lambda problem: problem.line))


_EventsByVm = dict[tuple[str, str], list[Event]]  # live events by the scope and name of each VM they list


def _events_by_vm(merge: FleetMerge) -> _EventsByVm:
    events_by_vm: _EventsByVm = {}
    for event in merge.live_events:
        for name in event.vms:
            events_by_vm.setdefault((event.scope_id, name.casefold()), []).append(event)
    return events_by_vm


def _events_of_vm(vm: Vm, events_by_vm: _EventsByVm) -> list[Event]:
    return events_by_vm.get((vm.scope_id, vm.name.casefold()), [])


def _declared_line(merge: FleetMerge, vm: Vm) -> int:
    origin = merge.declared.origins.get(vm.key)
    return origin.line if origin else 0


def _event_title(event: Event) -> str:
    return f"event {event.id} ({event.cause})"


def _removed_vms_with_started_events(merge: FleetMerge, events_by_vm: _EventsByVm) -> Iterator[FleetFileProblem]:
    for vm in merge.missing_vms if merge.remove_missing else ():
        for event in (event for event in _events_of_vm(vm, events_by_vm) if event.status is EventState.STARTED):
            what = f"VM {vm.name!r} is not in the file, but {_event_title(event)} has started and affects it"
            yield FleetFileProblem(
                line=0, message=what, remedy="it cannot be removed now; apply again when the event is over"
            )


def _vms_that_change_location(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    """A VM's scope (spec §7) and location are fixed when it is added."""
    remedy = "remove it from the file, apply, put it back, and apply again with `resurrect`"
    for old, new in merge.vms:
        what = ""
        if old.scope_id != new.scope_id:
            scopes = f"the scope of {scope_title_of_vm(old)} and cannot move to the scope of {scope_title_of_vm(new)}"
            what = f"VM {old.name!r} is in {scopes}"
        elif (old.location, old.zone) != (new.location, new.zone):
            what = f"VM {old.name!r} is in {location_text(old)} and cannot move to {location_text(new)}"
        if what:
            yield FleetFileProblem(line=_declared_line(merge, new), message=what, remedy=remedy)


def _vms_that_change_domain_during_event(merge: FleetMerge, events_by_vm: _EventsByVm) -> Iterator[FleetFileProblem]:
    """An event stays within one update domain (spec §7.3), so its VMs cannot change theirs meanwhile."""
    for old, new in merge.vms:
        events = _events_of_vm(old, events_by_vm) if old.update_domain != new.update_domain else []
        if events:
            change = f"from update domain {old.update_domain} to {new.update_domain}"
            what = f"VM {old.name!r} cannot change {change} while {_event_title(events[0])} is {events[0].status}"
            remedy = "apply again when the event is over, or leave out update_domain"
            yield FleetFileProblem(line=_declared_line(merge, new), message=what, remedy=remedy)


def _removed_hosts_in_use(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    """A host may be removed only if no VM is on it, or moving to it, after the change."""
    removed = {host.name for host in merge.missing_hosts} if merge.remove_missing else set()
    reported: set[str] = set()
    acts = ((act.name, act.to_host) for event in merge.live_events for act in event.unfinished_acts if act.to_host)
    for name, host in (*((vm.name, vm.host) for vm in merge.vms_after), *acts):
        if host in removed and host not in reported:
            reported.add(host)
            what = f"host {host!r} is not in the file, but VM {name!r} stays on it or moves to it"
            remedy = "keep the host in the file, or redeploy or remove its VMs first"
            yield FleetFileProblem(line=0, message=what, remedy=remedy)


def _moved_hosts_in_use(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    moved = {new.name: new for old, new in merge.hosts if (old.location, old.zone) != (new.location, new.zone)}
    reported: set[str] = set()
    for vm in (old for old, _ in merge.vms):
        host = moved.get(vm.host)
        if host and host.name not in reported:
            reported.add(host.name)
            what = (
                f"host {host.name!r} cannot move to {location_text(host)}: VM {vm.name!r} runs "
                f"on it in {location_text(vm)}"
            )
            yield FleetFileProblem(line=0, message=what, remedy="redeploy or remove its VMs first")


def _new_vms_without_host(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    unusable = {
        host.name: "confirmed down" if host.health is HostHealth.HEALTHY else f"{host.health}"
        for host in merge.hosts_after
        if not host.can_take_vms
    }
    for vm in (*merge.new_vms, *merge.resurrected_vms):
        if not vm.host:
            what = f"VM {vm.name!r} has no host to run on: there is no healthy host in {location_text(vm)}"
            yield FleetFileProblem(line=_declared_line(merge, vm), message=what, remedy="add or repair a host first")
        elif vm.host in unusable:
            what = f"VM {vm.name!r} cannot start on host {vm.host!r}, which is {unusable[vm.host]}"
            yield FleetFileProblem(
                line=_declared_line(merge, vm), message=what, remedy="name another host, or leave out host"
            )


def _duplicate_addresses(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    owner: dict[str, Vm] = {}
    addresses = ((vm, address) for vm in merge.vms_after for address in _addresses_of(vm))
    for vm, address in addresses:
        other = owner.setdefault(address, vm)
        if other is not vm:
            line = _declared_line(merge, vm) or _declared_line(merge, other)
            what = f"address {address!r} would belong to VM {other.name!r} and to VM {vm.name!r}"
            yield FleetFileProblem(line=line, message=what, remedy="give one of them another address in the file")


def _addresses_of(vm: Vm) -> set[str]:
    return {vm.address} if vm.address.startswith("127.") else {vm.address, vm.lab_address} - {""}


def _oversized_placement_groups(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    counts = Counter(vm.scope_id for vm in merge.vms_after if vm.scale_set)
    first = {vm.scope_id: vm for vm in reversed(merge.vms_after) if counts[vm.scope_id] > _max_vms_in_scope(vm)}
    for scope_id, vm in first.items():
        if vm.is_flexible:
            what = f"scale set {vm.scale_set!r} would have {counts[scope_id]} VMs; the limit is {MAX_FLEXIBLE_SET}"
            yield FleetFileProblem(line=_declared_line(merge, vm), message=what, remedy="remove some of its VMs first")
            continue
        group = f"placement group {vm.placement_group!r} of scale set {vm.scale_set!r}"
        what = f"{group} would have {counts[scope_id]} VMs; the limit is {MAX_PLACEMENT_GROUP} (spec §7.1)"
        yield FleetFileProblem(
            line=_declared_line(merge, vm), message=what, remedy="name another placement_group for the new ones"
        )


def _max_vms_in_scope(vm: Vm) -> int:
    return MAX_FLEXIBLE_SET if vm.is_flexible else MAX_PLACEMENT_GROUP


def _sets_with_two_orchestrations(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    """The orchestration of a scale set is fixed when it gets its first VM (spec §14.5)."""
    first: dict[str, Vm] = {}
    reported: set[str] = set()
    for vm in merge.vms_after:
        resource = scale_set_resource_id(vm).casefold() if vm.scale_set else ""
        other = first.setdefault(resource, vm) if resource else vm
        if other.orchestration is not vm.orchestration and resource not in reported:
            reported.add(resource)
            what = f"scale set {vm.scale_set!r} is {other.orchestration}, and its VM {vm.name!r} is {vm.orchestration}"
            remedy = f"give the set another name, or remove its {other.orchestration} VMs first"
            yield FleetFileProblem(line=_declared_line(merge, vm), message=what, remedy=remedy)


def _sets_with_invalid_delivery(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    """Narrow delivery is the same for all VMs of a set, and only for fault domain 0 (spec §14.6)."""
    first: dict[str, Vm] = {}
    reported: set[str] = set()
    for vm in merge.vms_after:
        if not (vm.scale_set or vm.availability_set):
            continue
        group = scale_set_resource_id(vm).casefold() if vm.scale_set else vm.scope_id
        declared = first.setdefault(group, vm)  # in the file, unless it has no VM of the set: kept ones come last
        if group in reported or declared.key not in merge.declared.origins:
            continue
        what = remedy = ""
        if vm.narrow_delivery != declared.narrow_delivery:
            here, there = (str(one.narrow_delivery).lower() for one in (declared, vm))
            values = f"{here} for VM {declared.name!r} and {there} for VM {vm.name!r}, which is not in the file"
            what = f"narrow_delivery of a set is the same for all its VMs (spec §14.6), but would be {values}"
            remedy = f"write narrow_delivery = {there}, or declare all VMs of the set"
        elif vm.narrow_delivery and vm.fault_domain != 0:
            what = f"VM {vm.name!r} is in fault domain {vm.fault_domain} and cannot have narrow_delivery (spec §14.6)"
            remedy = "leave out narrow_delivery, or replace the VMs in other fault domains than 0 first"
        if what:
            reported.add(group)
            yield FleetFileProblem(line=_declared_line(merge, declared), message=what, remedy=remedy)


def _deliveries_that_change_during_event(merge: FleetMerge) -> Iterator[FleetFileProblem]:
    """Who sees an event cannot change: documents with one incarnation have the same content (spec §4.2)."""
    live = {event.scope_id: event for event in merge.live_events}
    if not live:
        return
    was_narrow = _narrow_by_scope((*(old for old, _ in merge.vms), *merge.missing_vms))
    is_narrow = _narrow_by_scope(merge.vms_after)
    first = {vm.scope_id: vm for vm in reversed(merge.vms_after)}
    for scope_id, event in live.items():
        if scope_id in was_narrow and scope_id in is_narrow and was_narrow[scope_id] != is_narrow[scope_id]:
            vm = first[scope_id]
            what = f"narrow_delivery of {scope_title_of_vm(vm)} cannot change while {_event_title(event)}"
            yield FleetFileProblem(
                line=_declared_line(merge, vm),
                message=f"{what} is {event.status}",
                remedy="apply again when it is over",
            )


def _narrow_by_scope(vms: Iterable[Vm]) -> dict[str, bool]:
    narrow: dict[str, bool] = {}
    for vm in vms:
        narrow[vm.scope_id] = narrow.get(vm.scope_id, False) or vm.narrow_delivery
    return narrow
