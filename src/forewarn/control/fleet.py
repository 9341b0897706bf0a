"""Use cases for the fleet: add, change and remove VMs and hosts, update VM settings.

Each change is one transaction over all scopes it concerns: all of it takes effect, or nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import count
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from forewarn.base.tomlfile import toml_value
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, retry_on_conflict
from forewarn.core.commit import Commit, merge_commits, scope_commit
from forewarn.core.decision import EnablementMode
from forewarn.core.event import EventState
from forewarn.core.fleet import MAX_PLACEMENT_GROUP, AutoApproval, EvictionPolicy, Host, HostHealth, Priority, Vm
from forewarn.core.fleetfile.problems import FleetFileProblem
from forewarn.core.fleetfile.tables import AvailabilitySetTable, CloudServiceTable, DefaultsTable, ScaleSetTable
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.limits import Name, NonEmptyText, Tags, WholeNumber
from forewarn.core.reconcile import with_next_wake
from forewarn.core.scope import Scope, enable_scope, scope_title_from_id
from forewarn.core.vm_settings import VmSettingsChange, apply_settings_in_scope, describe_settings
from forewarn.errors import Conflict, NotFound, Refused, Rejected, Remedy
from forewarn.store.interface import Store

T = TypeVar("T")


class HostStatementService:
    """Records what operators state about hosts and the service cannot check."""

    def __init__(
        self,
        transactions: ScopeTransactions,
        find_host: Callable[[str], Host],
        unreachable_hosts: Callable[[], frozenset[str]],
    ) -> None:
        self._transactions = transactions
        self._find_host = find_host
        self._unreachable_hosts = unreachable_hosts

    async def confirm_down(self, host_name: str, *, who: str) -> Host:
        """Record durably that a host is certainly down, and return it; its VMs may then be started elsewhere."""
        # Nothing else can know this about a host that does not answer: a VM that still runs there and is started on
        # another host would write to its disks twice. The host stays confirmed down until it is repaired, and no VM
        # comes to it.

        async def attempt() -> Host:
            host = self.check_confirm_down(host_name)
            confirmed = replace(host, confirmed_down=True)
            text = f"host {host.name} confirmed down by {who}: its VMs may be started elsewhere"
            entry = HistoryEntry(
                at=self._transactions.clock.now(), kind=EntryKind.HOST, actor=who, text=text, host=host.name
            )
            await self._transactions.store.commit(Commit(hosts=(confirmed,), entries=(entry,)))
            return confirmed

        return await retry_on_conflict(attempt, f"host {host_name!r}")

    def check_confirm_down(self, host_name: str) -> Host:
        """Return the host if `confirm_down` would accept it now."""
        host = self._find_host(host_name)
        if host.confirmed_down:
            raise Refused(f"host {host.name!r} is confirmed down already", Remedy.REPAIR_HOST, host=host.name)
        if host.health is not HostHealth.FAILED and host.name not in self._unreachable_hosts():
            raise Refused(
                f"host {host.name!r} is {host.health} and no act waits for it, so it cannot be confirmed down",
                Remedy.FAIL_HOST,
                host=host.name,
            )
        return host


# Writes a fleet file for one VM to add, so that the VM passes the same checks as a whole fleet file.
#
# A missing location, domain or placement group comes from the set that the VM joins; its VMs store how many domains the
# fleet file declared for it. A missing subscription or resource group is the one that most VMs are in. The rest has the
# defaults of a fleet file.

# Phrases about a fleet file in its problems, and the phrases about one VM that replace them.
_VM_WORDS = (
    (re.compile(r"is not declared\b( in the VM's resource group)?"), r"does not exist\1"),
    (re.compile(r",( from| first on)? line \d+"), ""),
    (re.compile(r"\bdeclare it with \[\[\w+\]\](, name and id)?"), "name one that exists"),
    (
        re.compile(r"\bdeclare some with \[\[hosts\]\], or change.*"),
        "add a host there, or give another location or zone",
    ),
    (re.compile(r"\bmove auto_approve to the\b"), "leave it out, and set it for the"),
    (re.compile(r"give one of them another address in the file"), "give it another address, or none"),
    (re.compile(r"give one of them another"), "give it another"),
    (re.compile(r", or write a smaller count"), ""),
)
_SET_KEYS = ("availability_set", "scale_set", "cloud_service")
_DOMAIN_KEYS = ("update_domain", "fault_domain")
_SET_TABLES = {"availability_set": AvailabilitySetTable, "scale_set": ScaleSetTable, "cloud_service": CloudServiceTable}
_COPIED_FIELDS = ("name", "zone", "host", "computer_name", "size", "os_type", *_SET_KEYS, "address")


class NewVm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VM to add. Empty fields are filled in from its set, the rest of the fleet, and the defaults.

    Sets, hosts and groups are given by name; a set that never had a VM is a new one.
    """

    name: NonEmptyText  # unique in its resource group, ignoring case
    subscription_id: Name = ""  # "": that of most VMs; the same for the resource group
    resource_group: Name = ""  # "": that of most VMs
    location: Name = ""  # "": that of the VMs of its set, else of its host, else the only one of all hosts
    zone: Name = ""  # "": none; it must be that of its host
    host: Name = ""  # "": one is chosen
    computer_name: Name = ""  # "": its name
    size: Name = ""  # "": Standard_D2s_v5
    os_type: Literal["Linux", "Windows", ""] = ""  # "": Linux
    availability_set: Name = ""  # "": in none; at most one of availability set, scale set and cloud service
    scale_set: Name = ""  # "": in none
    placement_group: Name = ""  # of the scale set; "": the first that is not full, else a new one
    cloud_service: Name = ""  # "": in none
    # None: the one with the fewest VMs of its set (of its placement group, in a scale set), the lowest of several; 0 in
    # no set
    update_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None  # from 0; None: one with few VMs of its set
    fault_domain: Annotated[int, Meta(ge=0, lt=1000)] | None = None  # from 0; None: one with few VMs of its set
    priority: Priority | None = None  # None: that of its scale set, else Regular
    eviction_policy: EvictionPolicy | None = None  # None: that of its scale set, else Deallocate
    terminate_notice_min: WholeNumber = 0  # 5 to 15 minutes; 0: that of its scale set, else no terminate notification
    auto_approve: AutoApproval = AutoApproval()  # only for a VM in no set; others have that of their set
    tags: Tags = {}  # all that it gets
    address: Name = ""  # an IP address; "": none, but a lab chooses a loopback address


def vm_problem_text(problem: FleetFileProblem) -> str:
    """Return a problem and its remedy as one sentence, in words for one VM instead of a fleet file."""
    text = f"{problem.message}: {problem.remedy}"
    for pattern, words in _VM_WORDS:
        text = pattern.sub(words, text)
    return text


def fleet_file_for(
    new_vm: NewVm, store: Store, *, usual_group: tuple[str, str] | None, subscriptions: Iterable[str]
) -> str:
    """Return the text of a fleet file (TOML) with this VM, its set, the known subscriptions and all hosts."""
    if "{" in new_vm.name or "}" in new_vm.name:
        raise Rejected(f"the name {new_vm.name!r} contains braces: give the name of one VM, such as 'web-3'")
    hosts = store.hosts()
    group = _subscription_and_group(new_vm, usual_group)
    joined = _joined_set(new_vm, store, group)
    _require_existing_domains(new_vm, joined)
    location = new_vm.location or _location(new_vm, joined, hosts)
    defaults: dict[str, object] = {"subscription": group[0], "resource_group": group[1], "location": location}
    tables = [("[defaults]", defaults)]
    tables += [("[[subscriptions]]", {"name": known, "id": known}) for known in sorted(subscriptions)]
    tables += [("[[hosts]]", _host_table(host)) for host in hosts]
    tables += [(f"[[{key}s]]", _set_table(new_vm, key, joined)) for key in _SET_KEYS if getattr(new_vm, key)]
    tables += [("[[vms]]", _vm_table(new_vm, joined))]
    return "\n".join(line for title, keys in tables for line in (title, *_toml_lines(keys)))


def _subscription_and_group(new_vm: NewVm, usual_group: tuple[str, str] | None) -> tuple[str, str]:
    usual = usual_group or (DefaultsTable().subscription, DefaultsTable().resource_group)
    return new_vm.subscription_id or usual[0], new_vm.resource_group or usual[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedSet:
    """The set or service that a new VM joins: its present VMs, and how many domains of each kind it has."""

    vms: tuple[Vm, ...]
    first: Vm | None  # a VM with the settings of the set; of a set without VMs, the last removed one; None: a new set
    domain_counts: dict[str, int]  # by key of the VM: "update_domain", "fault_domain"


def _joined_set(new_vm: NewVm, store: Store, group: tuple[str, str]) -> _JoinedSet | None:
    named = [(key, getattr(new_vm, key).casefold()) for key in _SET_KEYS if getattr(new_vm, key)]
    if not named:
        return None
    group_key = (group[0].casefold(), group[1].casefold())
    known = [
        vm
        for vm in store.vms(removed=True)
        if (vm.subscription_id.casefold(), vm.resource_group.casefold()) == group_key
        and all(getattr(vm, key).casefold() == name for key, name in named)
    ]
    present = tuple(vm for vm in known if vm.removed_at is None)
    removed = [vm for vm in known if vm.removed_at is not None]
    removed.sort(key=lambda vm: vm.removed_at or 0.0, reverse=True)  # the last removed one first
    table = _SET_TABLES[named[0][0]](name="set")
    return _JoinedSet(
        vms=present,
        first=next(iter([*present, *removed]), None),
        domain_counts={
            key: _declared_domains(present or removed[:1], key)
            or _declared_domains(known, key)
            or _likely_domains(present, key, default=getattr(table, f"{key}s"), given=getattr(new_vm, key))
            for key in _DOMAIN_KEYS
        },
    )


def _declared_domains(vms: Sequence[Vm], key: str) -> int:
    return max((getattr(vm, f"{key}_count") for vm in vms), default=0)


def _likely_domains(vms: Sequence[Vm], key: str, *, default: int, given: int | None) -> int:
    # Once a domain has two VMs, the set has no domain that is not in use.
    in_use = 1 + max((getattr(vm, key) for vm in vms), default=-1)
    likely = in_use if len(vms) > in_use else max(in_use, default)
    return likely if given is None else max(likely, given + 1)


def _require_existing_domains(new_vm: NewVm, joined: _JoinedSet | None) -> None:
    for key, domains in joined.domain_counts.items() if joined else ():
        given, label = getattr(new_vm, key), key.replace("_", " ")
        if given is not None and given >= domains:
            raise Rejected(
                f"VM {new_vm.name!r} cannot be in {label} {given}: its set has {domains} {label}s, counted from 0; "
                f"give a lower number, or declare more {label}s in the fleet file"
            )


def _location(new_vm: NewVm, joined: _JoinedSet | None, hosts: list[Host]) -> str:
    if joined and joined.vms:
        return joined.vms[0].location
    wanted = new_vm.host.casefold()
    locations = sorted({host.location for host in hosts if not wanted or host.name.casefold() == wanted})
    if len(locations) > 1:
        raise Rejected(
            f"VM {new_vm.name!r} could be in several locations: give its location, {_quoted_choices(locations)}"
        )
    return locations[0] if locations else DefaultsTable().location


def _quoted_choices(locations: list[str]) -> str:
    return " or ".join(repr(location) for location in locations[:5])


def _host_table(host: Host) -> dict[str, object]:
    return {"name": host.name, "location": host.location, "zone": host.zone}


def _set_table(new_vm: NewVm, key: str, joined: _JoinedSet | None) -> dict[str, object]:
    assert joined is not None  # the VM names this set
    table: dict[str, object] = {"name": getattr(new_vm, key)}
    table |= {f"{domain}s": count for domain, count in joined.domain_counts.items()}
    first = joined.vms[0] if joined.vms else None
    if joined.first and key != "cloud_service":
        table["auto_approve"] = _auto_approved_operations(joined.first.auto_approve)
        table["approve_all_down"] = joined.first.approves_all_down
        table["narrow_delivery"] = joined.first.narrow_delivery
    if joined.first and key == "scale_set":
        table["orchestration"] = joined.first.orchestration.value
    if first and key == "scale_set":
        table["priority"] = first.priority.value
        table["terminate_notification"] = first.terminate_notice_min
        table["program"] = list(first.program)
        table["environment"], table["directory"] = first.environment, first.directory
        table["eviction_policy"] = first.eviction_policy.value if first.priority == "Spot" else ""
    return table


def _vm_table(new_vm: NewVm, joined: _JoinedSet | None) -> dict[str, object]:
    siblings = joined.vms if joined else ()
    has_groups = bool(new_vm.scale_set) and not (joined and joined.first and joined.first.is_flexible)
    placement_group = new_vm.placement_group or (_free_placement_group(siblings) if has_groups else "")
    table: dict[str, object] = {key: getattr(new_vm, key) for key in _COPIED_FIELDS}
    table["placement_group"] = placement_group
    table["priority"] = new_vm.priority.value if new_vm.priority else ""
    table["eviction_policy"] = new_vm.eviction_policy.value if new_vm.eviction_policy else ""
    table["terminate_notification"] = new_vm.terminate_notice_min
    table["auto_approve"] = _auto_approved_operations(new_vm.auto_approve)
    table["tags"] = new_vm.tags
    table |= {key: getattr(new_vm, key) for key in _DOMAIN_KEYS}
    neighbours = [vm for vm in siblings if vm.placement_group.casefold() == placement_group.casefold()]
    for key, domains in joined.domain_counts.items() if joined else ():
        if table[key] is None:
            table[key] = _least_used_domain([getattr(vm, key) for vm in neighbours], domains)
    return table


def _auto_approved_operations(approval: AutoApproval) -> list[str]:
    return [operation for operation in ("restart", "redeploy") if getattr(approval, operation)]


def _least_used_domain(taken: list[int], count: int) -> int:
    vms_per_domain = Counter(taken)
    return min(range(count), key=lambda domain: (vms_per_domain[domain], domain))


def _free_placement_group(siblings: Sequence[Vm]) -> str:
    """Return the first placement group that is not full (spec §7.1), else a new one."""
    counts = Counter(vm.placement_group for vm in siblings)
    free = sorted(group for group, count in counts.items() if count < MAX_PLACEMENT_GROUP)
    return free[0] if free else next(name for name in _placement_group_names() if name not in counts)


def _placement_group_names() -> Iterator[str]:
    number = 0
    while True:
        yield f"pg-{number}"
        number += 1


def _toml_lines(keys: dict[str, object]) -> Iterator[str]:
    for key, value in keys.items():
        if value in ("", None, [], {}) or (key == "terminate_notification" and value == 0):
            continue
        yield f"{key} = {toml_value(value)}"


_TURN_S = 0.005  # real time


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVersions:
    """The versions of all scopes and hosts when a fleet change was decided; a missing one did not exist."""

    scopes: Mapping[str, int]  # version by scope id
    hosts: Mapping[str, int]  # version by host name


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """A change of the fleet: VMs and hosts to add or replace, and those to remove; all of it or nothing.

    A host replaces the one of the same name, a VM the one of the same key, with all fields; a VM may not change its
    scope.
    """

    hosts: tuple[Host, ...] = ()  # to add, or to replace by (exact) name; `version` and `arrivals` do not count
    removed_hosts: tuple[str, ...] = ()  # exact names; unknown ones are ignored
    vms: tuple[Vm, ...] = ()  # to add, or to replace by key with all fields; none may change its scope
    removed: tuple[Vm, ...] = ()  # VMs to remove, as they are stored
    text: str = ""  # of the history entry; "": a summary of the change
    decided_on: FleetVersions | None = None  # Conflict if a scope or host it concerns is newer now; None: not checked


class FleetService:
    """Changes the fleet, updates VM settings and finds VMs by name.

    With `lab_addresses`, each VM gets an address on the loopback network, by which a lab knows it.
    """

    def __init__(
        self, *, transactions: ScopeTransactions, new_id: Callable[[], str], lab_addresses: bool = False
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id
        self.lab_addresses = lab_addresses  # give each VM an address on the loopback network, if it declares none there
        self._change_lock = asyncio.Lock()  # two changes at the same time could choose the same addresses

    async def apply_change(self, change: FleetChange, *, who: str) -> None:
        """Commit the change, all of it or nothing; new VMs get an id if they have none, lab VMs an address.

        Also writes a history entry. Chooses no hosts, and does not check addresses: the caller has done that. The
        reconciler withdraws events that become obsolete. If the policy always enables scopes, the scopes of the VMs are
        enabled. Raises Conflict at once if a scope or host that it concerns is no longer at the version in
        `decided_on`; without `decided_on`, if the fleet keeps changing meanwhile.
        """

        async def attempt() -> None:
            async with self._change_lock:
                # Ids and addresses anew in each attempt: another change may have taken them.
                completed = await self._complete_change(change)
                await self._store.commit(await self._change_commit(completed, who))

        if change.decided_on is not None:
            await attempt()
        else:
            await retry_on_conflict(attempt, "the fleet")

    async def check_change(self, change: FleetChange) -> None:
        """Raise what `apply_change` would raise for this change now; changes nothing."""
        await self._change_commit(change, "")

    def versions(self) -> FleetVersions:
        """Return the versions of all scopes and hosts now, for `decided_on` of a change that is decided now."""
        hosts = {host.name: host.version for host in self._transactions.placement.hosts()}
        return FleetVersions(scopes=self._store.scope_versions(), hosts=hosts)

    async def update_settings(self, vms: Sequence[Vm], change: VmSettingsChange, *, label: str, who: str) -> None:
        """Change settings of all these VMs, or of none, durably; `label` names them in history and messages."""
        if change.is_empty:
            return

        async def attempt() -> None:
            text = f"{who} {describe_settings(change, label)}"
            await self._store.commit(self._settings_commit(vms, change, text, who))

        await retry_on_conflict(attempt, label)

    def find_vm(self, name: str) -> Vm:
        """Return the VM named `name`, `group/name` or `subscription id/group/name`, ignoring letter case."""
        wanted = name.strip().casefold()
        found = [vm for vm in self._store.vms() if vm.key == wanted or vm.key.endswith(f"/{wanted}")]
        if not found:
            raise NotFound(f"VM {name!r} does not exist", Remedy.LIST_VMS)
        if len(found) > 1:
            choices = " or ".join(sorted(f"{vm.resource_group}/{vm.name}" for vm in found[:4]))
            raise Refused(f"VM {name!r} is ambiguous: use {choices}")
        return found[0]

    async def _complete_change(self, change: FleetChange) -> FleetChange:
        known = self._store.vms(removed=True) if self.lab_addresses else []
        free = _loopback_addresses({vm.lab_address for vm in known} | {vm.address for vm in change.vms})
        vms = [self._complete_vm(vm, free) async for vm in _in_turns(change.vms)]
        return dataclasses.replace(change, vms=tuple(vms))

    def _complete_vm(self, vm: Vm, free: Iterator[str]) -> Vm:
        # A VM that is added again under its name is another VM, with another identity.
        is_new = not self._transactions.placement.has_vm(vm.key)
        vm_id = vm.vm_id or self._new_id().lower() if is_new else vm.vm_id
        return replace(
            vm, vm_id=vm_id, lab_address=self._lab_address(vm, free) if self.lab_addresses else vm.lab_address
        )

    def _lab_address(self, vm: Vm, free: Iterator[str]) -> str:
        """Return the declared address if it is a loopback one, else the VM's own or a free one."""
        if vm.address.startswith("127."):
            return vm.address
        return vm.lab_address or next(free)

    async def _change_commit(self, change: FleetChange, who: str) -> Commit:
        now = self._transactions.clock.now()
        removed = tuple(replace(vm, removed_at=now, host="") for vm in change.removed)
        grouped = group_by_scope([*change.vms, *removed], lambda vm: vm.scope_id)
        scopes = [
            self._scope_commit(scope_id, vms, change.decided_on) async for scope_id, vms in _in_turns(grouped.items())
        ]
        self._require_unused_hosts(change)
        return merge_commits(*scopes, self._host_commit(change), Commit(entries=(_history_entry(change, who, now),)))

    def _host_commit(self, change: FleetChange) -> Commit:
        placement = self._transactions.placement
        known = {host.name: host for host in placement.hosts()}
        added = tuple(_at_stored_version(host, known.get(host.name)) for host in change.hosts)
        removed = tuple(known[name] for name in change.removed_hosts if name in known)
        changed = {host.name for host in (*added, *removed)}
        # Only hosts that VMs come to are relied on: a VM that stays needs nothing from its host.
        arriving = {vm.host for vm in change.vms if vm.host and placement.host_of(vm.key) != vm.host} - changed
        destinations = tuple(known[name] for name in sorted(arriving) if name in known)
        if missing := sorted(arriving - known.keys()):
            if change.decided_on is not None:
                _require_version(f"host {missing[0]!r}", 0, change.decided_on.hosts.get(missing[0], 0))
            raise Refused(f"host {missing[0]!r} does not exist: add it first, or choose another host")
        for host in destinations:
            if host.health is HostHealth.FAILED:
                raise Refused(f"host {host.name!r} has failed and can take no VMs: choose another host or repair it")
            if host.confirmed_down:
                raise Refused(
                    f"host {host.name!r} is confirmed down and can take no VMs: choose another host or repair it"
                )
        if change.decided_on is not None:
            for host in (*added, *removed, *destinations):
                _require_version(f"host {host.name!r}", host.version, change.decided_on.hosts.get(host.name, 0))
        return Commit(hosts=added, removed_hosts=removed, destinations=destinations)

    def _scope_commit(self, scope_id: str, vms: Sequence[Vm], decided_on: FleetVersions | None) -> Commit:
        old = self._store.scope(scope_id)
        if decided_on is not None:
            _require_version(
                scope_title_from_id(scope_id), old.version if old else 0, decided_on.scopes.get(scope_id, 0)
            )
        scope = old or Scope(id=scope_id)
        context = self._transactions.context_for(scope)
        for vm in vms:
            if vm.removed_at is not None:
                _require_no_started_event(scope, vm)
        scope = scope.with_vms(vms)
        if context.policy.enablement is EnablementMode.ALWAYS:
            scope = enable_scope(scope, by="the service", now=context.now)
        return scope_commit(old, with_next_wake(scope, context))

    def _settings_commit(self, vms: Sequence[Vm], change: VmSettingsChange, text: str, who: str) -> Commit:
        now = self._transactions.clock.now()
        commits = []
        for scope_id, members in group_by_scope(list(vms), lambda vm: vm.scope_id).items():
            old = self._transactions.load(scope_id)
            new = apply_settings_in_scope(old, {vm.key for vm in members}, change)
            commits.append(scope_commit(old, with_next_wake(new, self._transactions.context_for(old))))
        # One entry for all of them, in the first scope: who may read a set may read each of its scopes.
        vm = vms[0].name if len(vms) == 1 else ""
        entry = HistoryEntry(at=now, kind=EntryKind.FLEET, actor=who, text=text, vm=vm, scope_id=vms[0].scope_id)
        return merge_commits(*commits, Commit(entries=(entry,)))

    def _require_unused_hosts(self, change: FleetChange) -> None:
        self._require_no_arrivals(change)
        leaving = {vm.key for vm in change.removed}
        for name in change.removed_hosts:
            if staying := [vm.name for vm in self._store.vms(host=name) if vm.key not in leaving]:
                raise Refused(f"host {name!r} still has VM {staying[0]!r}: redeploy or remove its VMs first")
            if arriving := self._transactions.placement.vms_moving_to(name):
                raise Refused(
                    f"host {name!r} cannot go while VM {self._name_of(arriving[0])!r} is moving to it: "
                    "wait until it has moved"
                )
            if any(vm.host == name for vm in change.vms):
                raise Refused(
                    f"host {name!r} cannot be removed by a change that puts VMs on it: leave out one of the two"
                )

    def _require_no_arrivals(self, change: FleetChange) -> None:
        placement = self._transactions.placement
        for host in change.hosts:
            known = placement.host(host.name)
            if known is None or (known.location, known.zone) == (host.location, host.zone):
                continue
            if arriving := placement.vms_moving_to(host.name):
                raise Refused(
                    f"host {host.name!r} cannot get another location or zone while VM "
                    f"{self._name_of(arriving[0])!r} is moving to it: wait until it has moved"
                )

    def _name_of(self, vm_key: str) -> str:
        vm = self._store.vm(vm_key)
        return vm.name if vm is not None else vm_key


def _at_stored_version(host: Host, stored: Host | None) -> Host:
    return replace(host, version=stored.version if stored else 0, arrivals=stored.arrivals if stored else 0)


def _require_version(thing: str, version: int, decided_on: int) -> None:
    if version != decided_on:
        raise Conflict(f"{thing} has changed since this change of the fleet was decided: compare it again")


def _require_no_started_event(scope: Scope, vm: Vm) -> None:
    for event in scope.live_events(EventState.STARTED):
        if vm.name in event.vms:
            raise Refused(
                f"VM {vm.name!r} cannot be removed while event {event.id} ({event.cause}) is under way: "
                "wait until the event is over"
            )


def _history_entry(change: FleetChange, who: str, now: float) -> HistoryEntry:
    vms = {vm.name for vm in (*change.vms, *change.removed)}
    hosts = {*(host.name for host in change.hosts), *change.removed_hosts}
    vm = next(iter(vms)) if len(vms) == 1 and not hosts else ""
    host = next(iter(hosts)) if len(hosts) == 1 and not vms else ""
    return HistoryEntry(
        at=now, kind=EntryKind.FLEET, actor=who, text=change.text or _change_summary(change), vm=vm, host=host
    )


def _change_summary(change: FleetChange) -> str:
    counts = [
        (len(change.hosts), "hosts set"),
        (len(change.removed_hosts), "hosts removed"),
        (len(change.vms), "VMs set"),
        (len(change.removed), "VMs removed"),
    ]
    return "fleet changed, " + (", ".join(f"{what}: {n}" for n, what in counts if n) or "nothing in it")


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run every few milliseconds: a large change takes seconds."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + _TURN_S
    for item in items:
        yield item
        if clock() >= ends_at:
            await asyncio.sleep(0)
            ends_at = clock() + _TURN_S


def _loopback_addresses(taken: Iterable[str]) -> Iterator[str]:
    """Yield 127.0.0.1, 127.0.0.2 and so on without those taken; a lab knows a VM by the address it calls."""
    used = set(taken)
    every = (str(IPv4Address(number)) for number in count(int(IPv4Address("127.0.0.1"))))
    return (address for address in every if address not in used)
