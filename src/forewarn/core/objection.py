"""Why a fleet file cannot be applied to the running fleet as it is now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forewarn.core.event import Event, Status
from forewarn.core.fleet import MAX_PLACEMENT_GROUP, Health, Vm
from forewarn.core.fleetfile.census import place
from forewarn.core.fleetfile.problem import Problem
from forewarn.core.prospect import Prospect


def objections_to(prospect: Prospect) -> tuple[Problem, ...]:
    hits = _hits(prospect)
    found = (
        *_hit_vms_leave(prospect, hits),
        *_vms_move(prospect),
        *_hit_vms_change_domain(prospect, hits),
        *_hosts_are_needed(prospect),
        *_hosts_are_elsewhere(prospect),
        *_newcomers_have_no_host(prospect),
        *_addresses_meet(prospect),
        *_placement_groups_overflow(prospect),
    )
    return tuple(sorted(found, key=lambda problem: problem.line))


_Hits = dict[tuple[str, str], list[Event]]  # by scope and name of the VM: the live events that list it


def _hits(prospect: Prospect) -> _Hits:
    hits: _Hits = {}
    for event in prospect.live_events:
        for name in event.vms:
            hits.setdefault((event.scope_id, name.casefold()), []).append(event)
    return hits


def _events_on(vm: Vm, hits: _Hits) -> list[Event]:
    return hits.get((vm.scope_id, vm.name.casefold()), [])


def _line(prospect: Prospect, vm: Vm) -> int:
    origin = prospect.proposal.origins.get(vm.key)
    return origin.line if origin else 0


def _title(event: Event) -> str:
    return f"event {event.id} ({event.cause})"


def _hit_vms_leave(prospect: Prospect, hits: _Hits) -> Iterator[Problem]:
    for vm in prospect.missing if prospect.remove_missing else ():
        for event in (event for event in _events_on(vm, hits) if event.status is Status.STARTED):
            what = f"VM {vm.name!r} is not in the file, but {_title(event)} has started and is hitting it"
            yield Problem(line=0, what=what, remedy="it cannot be removed now; apply again when the event is over")


def _vms_move(prospect: Prospect) -> Iterator[Problem]:
    """Who sees whose events (spec §7) is settled when a VM is added, and so is where it runs."""
    remedy = "take it out of the file, apply, then put it back and apply with --resurrect"
    for old, new in prospect.vms:
        what = ""
        if old.scope_id != new.scope_id:
            what = f"VM {old.name!r} is in scope {old.scope_id!r} and cannot move to {new.scope_id!r}"
        elif (old.location, old.zone) != (new.location, new.zone):
            what = f"VM {old.name!r} is in {place(old)} and cannot move to {place(new)}"
        if what:
            yield Problem(line=_line(prospect, new), what=what, remedy=remedy)


def _hit_vms_change_domain(prospect: Prospect, hits: _Hits) -> Iterator[Problem]:
    """Spec §7.3: an event stays within one update domain, so its VMs do too while it lives."""
    for old, new in prospect.vms:
        events = _events_on(old, hits) if old.update_domain != new.update_domain else []
        if events:
            change = f"from update domain {old.update_domain} to {new.update_domain}"
            what = f"VM {old.name!r} cannot go {change} while {_title(events[0])} is {events[0].status}"
            remedy = "apply again when the event is over, or leave out update_domain"
            yield Problem(line=_line(prospect, new), what=what, remedy=remedy)


def _hosts_are_needed(prospect: Prospect) -> Iterator[Problem]:
    """A host may go only when nothing is on it, or on its way to it, after the change."""
    going = {host.name for host in prospect.missing_hosts} if prospect.remove_missing else set()
    told: set[str] = set()
    acts = ((act.name, act.to_host) for event in prospect.live_events for act in event.owed if act.to_host)
    for name, host in (*((vm.name, vm.host) for vm in prospect.vms_after), *acts):
        if host in going and host not in told:
            told.add(host)
            what = f"host {host!r} is not in the file, but VM {name!r} stays on it or moves to it"
            remedy = "keep the host in the file, or redeploy or remove its VMs first"
            yield Problem(line=0, what=what, remedy=remedy)


def _hosts_are_elsewhere(prospect: Prospect) -> Iterator[Problem]:
    moved = {new.name: new for old, new in prospect.hosts if (old.location, old.zone) != (new.location, new.zone)}
    told: set[str] = set()
    for vm in (old for old, _ in prospect.vms):
        host = moved.get(vm.host)
        if host and host.name not in told:
            told.add(host.name)
            what = f"host {host.name!r} cannot move to {place(host)}: VM {vm.name!r} runs on it in {place(vm)}"
            yield Problem(line=0, what=what, remedy="redeploy or remove its VMs first")


def _newcomers_have_no_host(prospect: Prospect) -> Iterator[Problem]:
    unfit = {host.name: host.health for host in prospect.hosts_after if host.health is not Health.HEALTHY}
    for vm in (*prospect.new_vms, *prospect.returning):
        if not vm.host:
            what = f"VM {vm.name!r} has nowhere to run: there is no healthy host in {place(vm)}"
            yield Problem(line=_line(prospect, vm), what=what, remedy="add or repair a host first")
        elif vm.host in unfit:
            what = f"VM {vm.name!r} cannot start on host {vm.host!r}, which is {unfit[vm.host]}"
            yield Problem(line=_line(prospect, vm), what=what, remedy="name another host, or leave out host")


def _addresses_meet(prospect: Prospect) -> Iterator[Problem]:
    owner: dict[str, Vm] = {}
    places = ((vm, address) for vm in prospect.vms_after for address in _reached_at(vm))
    for vm, address in places:
        other = owner.setdefault(address, vm)
        if other is not vm:
            line = _line(prospect, vm) or _line(prospect, other)
            what = f"address {address!r} would belong to VM {other.name!r} and to VM {vm.name!r}"
            yield Problem(line=line, what=what, remedy="give one of them another address in the file")


def _reached_at(vm: Vm) -> set[str]:
    """Its address, and the loopback address that is this VM in a lab; one on loopback is both (spec §7.4)."""
    return {vm.address} if vm.address.startswith("127.") else {vm.address, vm.lab_address} - {""}


def _placement_groups_overflow(prospect: Prospect) -> Iterator[Problem]:
    crowd = Counter(vm.scope_id for vm in prospect.vms_after if vm.scale_set)
    first = {vm.scope_id: vm for vm in reversed(prospect.vms_after) if crowd[vm.scope_id] > MAX_PLACEMENT_GROUP}
    for scope_id, vm in first.items():
        group = f"placement group {vm.placement_group!r} of scale set {vm.scale_set!r}"
        what = f"{group} would have {crowd[scope_id]} VMs, and {MAX_PLACEMENT_GROUP} is the most (spec §7.1)"
        yield Problem(line=_line(prospect, vm), what=what, remedy="name another placement_group for the new ones")
