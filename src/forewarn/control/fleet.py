"""Use cases for the fleet: add, change and remove VMs and hosts, update VM settings. All or nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import count

from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope
from forewarn.core.commit import Commit, merge_commits, scope_commit
from forewarn.core.decision import DecisionContext, EnablementMode
from forewarn.core.event import EventState
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import reconcile_scope, with_next_wake
from forewarn.core.scope import Scope, enable_scope
from forewarn.core.vm_settings import VmSettingsChange, apply_settings_in_scope, describe_settings
from forewarn.errors import Conflict, NotFound, Refused, Remedy

_MAX_ATTEMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """What is to become of the fleet: VMs and hosts as they shall be, and the names of those to go."""

    hosts: tuple[Host, ...] = ()
    removed_hosts: tuple[str, ...] = ()
    vms: tuple[Vm, ...] = ()  # new ones, and known ones in their new form
    removed: tuple[Vm, ...] = ()
    text: str = ""  # for the history


class FleetService:
    def __init__(
        self, *, transactions: ScopeTransactions, new_id: Callable[[], str], lab_addresses: bool = False
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id
        self.lab_addresses = lab_addresses  # give VMs without an address one on the loopback network

    async def apply_change(self, change: FleetChange, *, who: str) -> None:
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._store.commit(self._change_commit(self._complete_change(change), who))
                return
            except Conflict:
                self._transactions.placement.release_claims(self._store.vms())
            except BaseException:
                self._transactions.placement.release_claims(self._store.vms())
                raise
        raise Conflict("the fleet changed too often while it was being changed: ask again")

    async def update_settings(self, vms: Sequence[Vm], change: VmSettingsChange, *, called: str, who: str) -> None:
        """Settings of VMs, of all of them or of none; `called` is what the history calls them together."""
        if change.is_empty:
            return
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._store.commit(
                    self._settings_commit(vms, change, f"{who} set {describe_settings(change, called)}", who)
                )
                return
            except Conflict:
                continue
        raise Conflict(f"{called} changed too often while its settings were being changed: ask again")

    def find_vm(self, name: str) -> Vm:
        """The VM by its name, `group/name`, or `subscription/group/name`, wherever that is unambiguous."""
        wanted = name.strip().casefold()
        found = [vm for vm in self._store.vms() if vm.key == wanted or vm.key.endswith(f"/{wanted}")]
        if not found:
            raise NotFound(f"VM {name!r} does not exist", Remedy.LIST_VMS)
        if len(found) > 1:
            choices = " or ".join(sorted(f"{vm.resource_group}/{vm.name}" for vm in found[:4]))
            raise Refused(f"VM {name!r} is ambiguous: say {choices}")
        return found[0]

    def _complete_change(self, change: FleetChange) -> FleetChange:
        """The change with what newcomers still lack: an id, a host, in a lab an address."""
        known = self._store.vms(removed=True) if self.lab_addresses else []
        free = _loopback_addresses({vm.lab_address for vm in known} | {vm.address for vm in change.vms})
        vms = tuple(self._complete_vm(vm, free) for vm in change.vms)
        return dataclasses.replace(change, vms=vms)

    def _complete_vm(self, vm: Vm, free: Iterator[str]) -> Vm:
        known = self._store.vm(vm.key)
        if known is None or (known.removed_at is not None and vm.removed_at is None):
            vm = replace(vm, vm_id=vm.vm_id or self._new_id().lower())
        return replace(vm, lab_address=self._lab_address(vm, free)) if self.lab_addresses else vm

    def _lab_address(self, vm: Vm, free: Iterator[str]) -> str:
        """The one the file names, if it is on loopback; else one that is kept for good."""
        if vm.address.startswith("127."):
            return vm.address
        return vm.lab_address or next(free)

    def _change_commit(self, change: FleetChange, who: str) -> Commit:
        context = self._transactions.decision_context()
        gone = tuple(replace(vm, removed_at=context.now, host="") for vm in change.removed)
        grouped = group_by_scope([*change.vms, *gone], lambda vm: vm.scope_id)
        scopes = [self._scope_commit(scope_id, vms, context, who) for scope_id, vms in grouped.items()]
        entry = _history_entry(change, who, context.now)
        self._require_unused_hosts(change)
        return merge_commits(*scopes, Commit(hosts=change.hosts, removed_hosts=change.removed_hosts, entries=(entry,)))

    def _scope_commit(self, scope_id: str, vms: Sequence[Vm], context: DecisionContext, who: str) -> Commit:
        old = self._store.scope(scope_id)
        scope = old or Scope(id=scope_id)
        for vm in vms:
            if vm.removed_at is not None:
                _require_no_started_event(scope, vm)
            scope = scope.with_vm(vm)
        if context.policy.enablement is EnablementMode.ALWAYS:
            scope = enable_scope(scope, by="the service", now=context.now)
        return scope_commit(old, with_next_wake(reconcile_scope(scope, context), context))

    def _settings_commit(self, vms: Sequence[Vm], change: VmSettingsChange, text: str, who: str) -> Commit:
        context = self._transactions.decision_context()
        commits = []
        for scope_id, members in group_by_scope(list(vms), lambda vm: vm.scope_id).items():
            old = self._transactions.load(scope_id)
            new = apply_settings_in_scope(old, {vm.key for vm in members}, change)
            commits.append(scope_commit(old, with_next_wake(new, context)))
        # One entry for all: whoever may read a set may read each of its scopes, and so finds it.
        vm = vms[0].name if len(vms) == 1 else ""
        entry = HistoryEntry(at=context.now, what=EntryKind.FLEET, who=who, text=text, vm=vm, scope_id=vms[0].scope_id)
        return merge_commits(*commits, Commit(entries=(entry,)))

    def _require_unused_hosts(self, change: FleetChange) -> None:
        """A host may go only when nothing is on it, or on its way to it, after the change."""
        leaving = {vm.key for vm in change.removed}
        for name in change.removed_hosts:
            if staying := [vm.name for vm in self._store.vms(host=name) if vm.key not in leaving]:
                raise Refused(f"host {name!r} still has VM {staying[0]!r}: redeploy or remove its VMs first")
            if arriving := self._transactions.placement.vms_moving_to(name):
                raise Refused(
                    f"host {name!r} cannot go while VM {arriving[0]!r} is moving to it: wait until it has moved"
                )
            if any(vm.host == name for vm in change.vms):
                raise Refused(f"host {name!r} is to be removed and to hold VMs: decide for one of the two")


def _require_no_started_event(scope: Scope, vm: Vm) -> None:
    for event in scope.live_events(EventState.STARTED):
        if vm.name in event.vms:
            raise Refused(
                f"VM {vm.name!r} cannot be removed while event {event.id} ({event.cause}) is hitting it: "
                "wait until the event is over"
            )


def _history_entry(change: FleetChange, who: str, now: float) -> HistoryEntry:
    """Where it is about one VM or one host alone, it says which."""
    vms = {vm.name for vm in (*change.vms, *change.removed)}
    hosts = {*(host.name for host in change.hosts), *change.removed_hosts}
    vm = next(iter(vms)) if len(vms) == 1 and not hosts else ""
    host = next(iter(hosts)) if len(hosts) == 1 and not vms else ""
    return HistoryEntry(
        at=now, what=EntryKind.FLEET, who=who, text=change.text or _change_summary(change), vm=vm, host=host
    )


def _change_summary(change: FleetChange) -> str:
    counts = [
        (len(change.hosts), "hosts set"),
        (len(change.removed_hosts), "hosts removed"),
        (len(change.vms), "VMs set"),
        (len(change.removed), "VMs removed"),
    ]
    return "fleet changed, " + (", ".join(f"{what}: {n}" for n, what in counts if n) or "nothing of it")


def _loopback_addresses(taken: Iterable[str]) -> Iterator[str]:
    """127.0.0.1, 127.0.0.2 and so on: each VM of a lab is the loopback address that is called."""
    used = set(taken)
    every = (str(IPv4Address(number)) for number in count(int(IPv4Address("127.0.0.1"))))
    return (address for address in every if address not in used)
