"""Checks that no rollout publishes beyond a budget (spec §13.2), on a mirror of the fleet of its own.

The mirror is built from commits alone, and counts everything again at each publication: it shares no code with the
index of the service but the groups of a VM.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from hypothesis import strategies as st

from forewarn.core.budgets import Budget, BudgetGroup, budget_groups, make_budget
from forewarn.core.cause import Verb
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm, vm_key_in_scope
from forewarn.core.request import ROLLOUT_CAUSES, PlannedEvent
from forewarn.store.interface import Store

BUDGETS = st.builds(
    lambda name, limit, per: make_budget(name, per=per, **limit),
    st.sampled_from(["one", "two"]),
    st.sampled_from([{"max_vms": 1}, {"max_vms": 2}, {"max_percent": 30}, {"max_percent": 60}]),
    st.sampled_from(["everything", "everything", "location", "fault-domain", "scope"]),
)


class BudgetChecker:
    """Reports each commit in which a rollout plans events for more VMs than a budget allows."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self.current: Callable[[], list[Budget]] = list
        self._vms: dict[str, Vm] = {}
        self._hosts: dict[str, Host] = {}
        self._events: dict[str, Event] = {}
        self._planned: dict[str, PlannedEvent] = {}

    def read(self, store: Store) -> None:
        """Begin with what the store has, because an earlier process has ended."""
        self._vms = {vm.key: vm for vm in store.vms()}
        self._hosts = {host.name: host for host in store.hosts()}
        self._events = {event.id: event for event in store.events()}
        self._planned = {planned.event_id: planned for planned in store.planned()}

    def check(self, commit: Commit) -> None:
        """Follow a commit, and report what it publishes beyond a budget."""
        self._vms |= {vm.key: vm for vm in commit.vms}
        self._hosts |= {host.name: host for host in commit.hosts}
        self._events |= {event.id: event for event in commit.events}
        new = [planned for planned in commit.planned if planned.cause in ROLLOUT_CAUSES]
        if new and (budgets := self.current()):
            self._check_plan(new, budgets)
        self._planned |= {planned.event_id: planned for planned in commit.planned}
        for event_id in commit.unplanned:
            self._planned.pop(event_id, None)

    def _check_plan(self, new: list[PlannedEvent], budgets: list[Budget]) -> None:
        before = self._out()
        published = {vm_key_in_scope(planned.scope_id, name) for planned in new for name in planned.vms}
        added = {key for key in published if key not in self._vms or not self._is_down(self._vms[key])}
        groups: dict[BudgetGroup, list[str]] = defaultdict(list)
        for key, vm in self._vms.items():
            for group in budget_groups(budgets, vm) if vm.removed_at is None else ():
                groups[group].append(key)
        limits = {budget.key: budget for budget in budgets}
        for group, keys in groups.items():
            budget = limits[group.budget]
            limit = budget.max_vms or max(1, int(len(keys) * budget.max_percent / 100))
            out = [key for key in keys if key in before or key in added]
            if added.intersection(keys) and len(out) > limit:
                self._report("§13.2 no rollout publishes beyond a budget", budget, group, out, sorted(added))

    def _out(self) -> set[str]:
        """Return the keys of the VMs that are out of service, or reserved by rollouts."""
        out = {vm.key for vm in self._vms.values() if vm.removed_at is None and self._is_down(vm)}
        out |= {
            vm_key_in_scope(planned.scope_id, name)
            for planned in self._planned.values()
            if planned.cause in ROLLOUT_CAUSES
            for name in planned.vms
        }
        return out.union(*map(_out_by, self._events.values())) if self._events else out

    def _is_down(self, vm: Vm) -> bool:
        host = self._hosts.get(vm.host)
        has_failed = host is not None and (host.health is HostHealth.FAILED or host.confirmed_down)
        return vm.power is not PowerState.RUNNING or has_failed


def _out_by(event: Event) -> Iterable[str]:
    if event.status is EventState.STARTED:
        return [act.vm for act in event.acts if act.verb not in (Verb.START, Verb.REAPPLY)]
    if event.status is EventState.SCHEDULED and event.cause in ROLLOUT_CAUSES:
        return [vm_key_in_scope(event.scope_id, name) for name in event.vms]
    return []
