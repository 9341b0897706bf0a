"""Use cases for the fleet: add, change and remove VMs and hosts, update VM settings.

Each change is one transaction over all scopes it concerns: all of it takes effect, or nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, retry_on_conflict
from forewarn.core.commit import Commit, merge_commits, scope_commit
from forewarn.core.decision import EnablementMode
from forewarn.core.event import EventState
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import with_next_wake
from forewarn.core.scope import Scope, enable_scope, scope_title_from_id
from forewarn.core.vm_settings import VmSettingsChange, apply_settings_in_scope, describe_settings
from forewarn.errors import Conflict, NotFound, Refused, Remedy

_TURN_S = 0.005  # real time
T = TypeVar("T")


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
