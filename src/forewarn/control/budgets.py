"""Keeps the budgets of the fleet, and counts what is out of service for each of them (spec §13.2)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from forewarn.base.wording import did_you_mean
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.budgets import (
    Budget,
    BudgetGroup,
    BudgetLedger,
    BudgetShortage,
    budget_groups,
    budget_text,
    check_budget,
    group_limit,
    group_title,
    is_down,
    shortage_text,
    vms_out_by_event,
    vms_out_by_plan,
)
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import HostHealth, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import ROLLOUT_CAUSES, PlannedEvent
from forewarn.errors import NotFound, Remedy, Unavailable
from forewarn.store.interface import BUDGETS_NAME, AppliedCommit

log = logging.getLogger(__name__)
_BY_STATE = "state"  # why a VM is out: it does not run, or its host is down
_LIVE = (EventState.SCHEDULED, EventState.STARTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """How much of one group of a budget is used now, as `BudgetService.uses` returns it."""

    title: str  # of the group, such as `location westeurope`; "" if the budget counts everything
    limit: int  # VMs that may be out at once
    vms: int  # present ones in the group
    out: tuple[str, ...]  # names of those that are out of service or reserved
    reserved: int  # how many of `out` still run: an event is only planned or scheduled for them
    rollouts: tuple[str, ...]  # ids of the requests of rollouts, and of faults that made Freezes, that `out` is due to


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The VMs that an event takes out of service, or that a planned one is going to."""

    keys: tuple[str, ...]
    request_id: str  # of the rollout; "": it belongs to none
    has_started: bool


_NOTHING = _Reservation((), "", False)


def _reservation(event: Event) -> _Reservation:
    request_id = event.request_id if event.cause in ROLLOUT_CAUSES else ""
    return _Reservation(vms_out_by_event(event), request_id, event.status is EventState.STARTED)


def _planned_reservation(planned: PlannedEvent) -> _Reservation:
    return _Reservation(vms_out_by_plan(planned), planned.request_id, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideCounts:
    """The VMs that a dry run does not copy, counted in the groups of budgets: how many, and which are out."""

    sizes: Mapping[BudgetGroup, int]  # how many present VMs each group has
    out: Mapping[BudgetGroup, Mapping[str, str]]  # group → key → name of each VM that is out of service or reserved


def _decode(raw: bytes) -> list[Budget]:
    return msgspec.json.decode(raw, type=list[Budget])


class BudgetService:
    """Sets, removes and lists budgets, and knows which VMs are out of service for them.

    What is out is counted incrementally, commit by commit, so a rollout does not read all VMs for it. Hold `lock` while
    you decide with a ledger and commit the result, so that no budget changes in between. `waiting` has, by the id of a
    request, the shortages for which its rollout waits.
    """

    def __init__(self, transactions: ScopeTransactions) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self.lock = asyncio.Lock()
        raw = self._store.load(BUDGETS_NAME)
        stored = _decode(raw) if raw is not None else []
        self._freed: set[BudgetGroup] = set()  # groups that may allow more since `take_woken`
        self._was_changed = True  # since then a budget was set or removed
        self.waiting: dict[str, tuple[BudgetShortage, ...]] = {}  # request id → what its rollout waits for
        self._waiting_vms: dict[str, frozenset[str]] = {}  # request id → keys of the VMs of a rollout that waits
        self._use_budgets(stored)

    def budgets(self) -> list[Budget]:
        """Return all budgets, in a new list, sorted by name ignoring letter case."""
        return [self._budgets[key] for key in sorted(self._budgets)]

    def find(self, name: str) -> Budget:
        """Return the budget of this name, ignoring letter case and blanks around it; or raise NotFound."""
        budget = self._budgets.get(name.strip().casefold())
        if budget is None:
            known = [budget.name for budget in self.budgets()]
            meant = did_you_mean(name, known)
            raise NotFound(f"budget {name!r} does not exist{meant}", None if meant else Remedy.LIST_BUDGETS)
        return budget

    async def set_budget(self, budget: Budget, *, who: str) -> Budget:
        """Store a budget durably, in place of one of its name, and return it; later publications keep to it."""
        async with self.lock:
            others = [other for other in self.budgets() if other.key != budget.key]
            check_budget(budget, self._store.vms(), others)
            text = f"budget {budget.name}: at most {budget_text(budget)}"
            await self._commit_budgets([*others, budget], text, who)
        return budget

    async def remove_budget(self, name: str, *, who: str) -> Budget:
        """Remove the budget of this name, ignoring letter case, durably, and return it."""
        async with self.lock:
            budget = self.find(name)
            others = [other for other in self.budgets() if other.key != budget.key]
            await self._commit_budgets(others, f"budget {budget.name} removed", who)
        return budget

    async def _commit_budgets(self, budgets: list[Budget], text: str, who: str) -> None:
        entry = HistoryEntry(at=self._transactions.clock.now(), kind=EntryKind.BUDGET, actor=who, text=text)
        saved = SavedValue(BUDGETS_NAME, msgspec.json.encode(budgets))
        await self._store.commit(Commit(saved=(saved,), entries=(entry,)))

    def ledger(self) -> BudgetLedger | None:
        """Return a ledger of what is out of service now, for one decision; None if there are no budgets."""
        if not self._budgets:
            return None
        self._count_if_needed()
        return BudgetLedger(self._budgets.values(), self._sizes, self._out, self._down_hosts)

    def uses(self, budget: Budget) -> list[BudgetUse]:
        """Return how much of each group of a budget is used, sorted by group; only groups with VMs."""
        self._count_if_needed()
        return [
            self._use(budget, group, size) for group, size in sorted(self._sizes.items()) if group.budget == budget.key
        ]

    def _use(self, budget: Budget, group: BudgetGroup, size: int) -> BudgetUse:
        out = self._out.get(group, {})
        reserved = 0
        rollouts: set[str] = set()
        for key in out:
            causes = self._causes.get(key, set())
            reservations = [self._reserved[cause] for cause in causes if cause in self._reserved]
            rollouts.update(reservation.request_id for reservation in reservations)
            # Only planned or scheduled: the VM still runs.
            reserved += _BY_STATE not in causes and not any(each.has_started for each in reservations)
        return BudgetUse(
            title=group_title(budget, group.value),
            limit=group_limit(budget, size),
            vms=size,
            out=tuple(out.values()),
            reserved=reserved,
            rollouts=tuple(sorted(rollouts - {""})),
        )

    def set_waiting(self, request_id: str, shortages: tuple[BudgetShortage, ...], vms: Iterable[Vm] = ()) -> None:
        """Remember, in memory, which budgets a rollout waits for, by the id of its request; () for none."""
        if shortages:
            self.waiting[request_id] = shortages
            self._waiting_vms[request_id] = frozenset(vm.key for vm in vms)
        else:
            self.waiting.pop(request_id, None)
            self._waiting_vms.pop(request_id, None)

    def take_woken(self, vms: Sequence[Vm] = ()) -> list[str]:
        """Return the ids of the waiting requests whose budgets may allow more since the last call.

        A request is woken if VMs of the groups that it waits for came back, or stopped running, so that they need no
        budget; if the number of VMs there changed; if a budget was set or removed; or if one of `vms`, which have just
        changed, was covered by the rollout when it began to wait, because it may have left the VMs that go together.
        """
        freed, self._freed = self._freed, set()
        was_changed, self._was_changed = self._was_changed, False
        changed = {vm.key for vm in vms}
        return [
            request_id
            for request_id, shortages in self.waiting.items()
            if was_changed
            or any(shortage.group in freed for shortage in shortages)
            or not changed.isdisjoint(self._waiting_vms[request_id])
        ]

    def wait_texts(self, request_id: str) -> tuple[str, ...]:
        """Return which budgets a rollout waits for, as one clause each for people; () if none."""
        # Shortages are in memory, so the result is () after a restart until publishing was tried again.
        self._count_if_needed()
        return tuple(
            shortage_text(
                self._budgets[shortage.group.budget],
                shortage,
                self._sizes[shortage.group],
                list(self._out.get(shortage.group, {}).values()),
            )
            for shortage in self.waiting.get(request_id, ())
            if shortage.group.budget in self._budgets
        )

    def excess_text(self, request_id: str) -> str:
        """Return, for people, which budget is too small for VMs of a rollout that go together; "" if none is."""
        self._count_if_needed()
        for shortage in self.waiting.get(request_id, ()):
            budget, size = self._budgets.get(shortage.group.budget), self._sizes[shortage.group]
            if budget is not None and shortage.exceeds(group_limit(budget, size)):
                return shortage_text(budget, shortage, size, ())
        return ""

    def counts_without(self, keys: Collection[str]) -> OutsideCounts:
        """Return how many VMs budgets count, and which are out, apart from the VMs with these keys."""
        self._count_if_needed()
        sizes: Counter[BudgetGroup] = Counter()
        for key, (_, groups) in self._vms.items():
            if key not in keys:
                sizes.update(groups)
        out = {group: {key: name for key, name in vms.items() if key not in keys} for group, vms in self._out.items()}
        return OutsideCounts(sizes=sizes, out=out)

    def add_counts(self, outside: OutsideCounts) -> None:
        """Count VMs that the store does not have, in addition to its own, until the budgets change."""
        self._count_if_needed()
        self._sizes.update(outside.sizes)
        for group, vms in outside.out.items():
            if vms:
                self._out.setdefault(group, {}).update(vms)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Count the VMs, hosts, events and planned events of a commit, and use the budgets that it stores."""
        # If the store cannot be read, everything is counted again later, and no rollout publishes before that.
        try:
            self._follow_commit(applied.commit)
        except Unavailable as error:
            # Half of the commit may be counted: count everything again before the next decision.
            self._is_counted, self._was_changed = False, True
            log.warning("the VMs out of service cannot be counted for the budgets yet: %s", error)

    def _follow_commit(self, commit: Commit) -> None:
        for saved in commit.saved:
            if saved.name == BUDGETS_NAME:
                self._use_budgets(_decode(saved.value))
                return  # everything was counted again, with this commit
        if not self.is_used or not self._is_counted:
            return
        for vm in commit.vms:
            self._track_vm(vm)
        for host in commit.hosts:
            is_host_down = host.health is HostHealth.FAILED or host.confirmed_down
            if is_host_down != (host.name in self._down_hosts):
                # All VMs of the host change, though none of them is in the commit.
                self._down_hosts ^= {host.name}
                for vm in self._store.vms(host=host.name):
                    self._track_vm(vm)
        for event in commit.events:
            self._set_reserved(event.id, _reservation(event))
        for planned in commit.planned:
            self._set_reserved(planned.event_id, _planned_reservation(planned))
        # A planned event that became an event keeps its place, without a moment in which nobody has it.
        published = {event.id for event in commit.events}
        for event_id in commit.unplanned:
            if event_id not in published:
                self._set_reserved(event_id, _NOTHING)

    def _use_budgets(self, budgets: Sequence[Budget]) -> None:
        self._budgets = {budget.key: budget for budget in budgets}
        self.is_used = bool(self._budgets)  # whether there are budgets
        self._is_counted = False  # whether what is counted is that of these budgets and the store
        self._was_changed = True
        self._count_if_needed()

    def _count_if_needed(self) -> None:
        if self._is_counted:
            return
        hosts = self._store.hosts() if self._budgets else []
        vms = self._store.vms() if self._budgets else []
        events = self._store.events(statuses=_LIVE) if self._budgets else []
        planned = self._store.planned() if self._budgets else []
        self._vms: dict[str, tuple[str, tuple[BudgetGroup, ...]]] = {}  # key → name and groups
        self._sizes: Counter[BudgetGroup] = Counter()
        self._out: dict[BudgetGroup, dict[str, str]] = {}  # group → key → name
        self._causes: dict[str, set[str]] = defaultdict(set)  # key → event ids and _BY_STATE
        self._reserved: dict[str, _Reservation] = {}  # by event id
        self._down_hosts = {host.name for host in hosts if host.health is HostHealth.FAILED or host.confirmed_down}
        for vm in vms:
            self._track_vm(vm)
        for event in events:
            self._set_reserved(event.id, _reservation(event))
        for item in planned:
            self._set_reserved(item.event_id, _planned_reservation(item))
        self._is_counted = self._was_changed = True

    def _track_vm(self, vm: Vm) -> None:
        key = vm.key
        groups = budget_groups(self._budgets.values(), vm) if vm.removed_at is None else ()
        _, before = self._vms.pop(key, ("", ()))
        for group in before:
            self._sizes[group] -= 1
            if not self._sizes[group]:
                del self._sizes[group]
        # It left a group, for instance by another tag: it may not stay out there.
        for group in set(before) - set(groups):
            self._forget_out(group, key)
        if groups:
            self._vms[key] = (vm.name, groups)
            for group in groups:
                self._sizes[group] += 1
        if set(groups) != set(before):
            self._freed.update(groups)  # a percentage of more VMs may allow one more
        self._set_cause(key, _BY_STATE, vm.removed_at is None and is_down(vm, self._down_hosts))

    def _set_reserved(self, event_id: str, reservation: _Reservation) -> None:
        for key in set(self._reserved.pop(event_id, _NOTHING).keys) - set(reservation.keys):
            self._set_cause(key, event_id, False)
        if reservation.keys:
            self._reserved[event_id] = reservation
            for key in reservation.keys:
                self._set_cause(key, event_id, True)

    def _set_cause(self, key: str, cause: str, applies: bool) -> None:
        causes = self._causes[key]
        name, groups = self._vms.get(key, ("", ()))
        if applies:
            if cause == _BY_STATE and cause not in causes:
                self._freed.update(groups)  # maintenance of a VM that does not run needs no budget
            causes.add(cause)
        else:
            causes.discard(cause)
        is_out = bool(causes)
        if not is_out:
            del self._causes[key]
        for group in groups:
            if is_out:
                self._out.setdefault(group, {})[key] = name
            else:
                self._forget_out(group, key)

    def _forget_out(self, group: BudgetGroup, key: str) -> None:
        out = self._out.get(group, {})
        if out.pop(key, None) is not None:
            self._freed.add(group)
            if not out:
                del self._out[group]
