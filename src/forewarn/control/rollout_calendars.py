"""Gives events of rollouts the windows of the maintenance configurations of their VMs (spec §13.3)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from forewarn.control.maintenance_configurations import MaintenanceConfigurationService
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind
from forewarn.core.maintenance_configuration import TargetWindows
from forewarn.core.reconcile import reconcile_scope
from forewarn.core.request import MaintenanceRequest, PlannedEvent, Rollout
from forewarn.core.rollout import can_any_group_start, has_window_left
from forewarn.core.scope import Scope
from forewarn.core.windows import MaintenanceCalendar, closing_times
from forewarn.store.interface import AppliedCommit


class RolloutCalendars:
    """Knows when events of rollouts may start: in windows of rollouts or maintenance configurations.

    `reconcile` gives the events that have not started the windows that follow now: after a start of the service, after
    a commit that may have changed them, and after the owner has set `has_changed` because an event joined a gate.
    """

    def __init__(self, transactions: ScopeTransactions, configurations: MaintenanceConfigurationService) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._configurations = configurations
        self.has_changed = bool(self._store.requests(open_only=True))  # whether `reconcile` has to look at events
        self._closes_at: dict[str, float] = {}  # id of an open rollout → when the next of its windows is over for good

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember whether a commit may change windows of events, for `reconcile`. Called for every commit."""
        # Filters of assignments depend on the tags and other settings of VMs, which only changes of the fleet write.
        commit = applied.commit
        for request in commit.requests:
            self._follow_closing(request)
        changes_fleet = bool(commit.vms) and any(entry.kind is EntryKind.FLEET for entry in commit.entries)
        self.has_changed |= commit.changes_configurations or (changes_fleet and self.are_used)

    def _follow_closing(self, request: MaintenanceRequest) -> None:
        rollout, now = request.rollout, self._transactions.clock.now()
        if not request.is_open or rollout is None:
            self._closes_at.pop(request.id, None)
            return
        if self._closes_at.get(request.id, math.inf) <= now:
            return  # `take_due` has not seen it yet
        own = closing_times(rollout.calendar.windows) if rollout.calendar is not None else ()
        times = [
            at for end in (*own, *self._configurations.hosts.closing_times) for at in (end - request.notice_s, end)
        ]
        # Twice for each end: when a notice no longer fits before it, and when it is over.
        if later := [at for at in times if at > now]:
            self._closes_at[request.id] = min(later)
        else:
            self._closes_at.pop(request.id, None)

    def next_due_at(self) -> float | None:
        """Return the lab time, perhaps past, at which `take_due` returns a rollout next; None if none is due."""
        return min(self._closes_at.values(), default=None)

    def take_due(self) -> set[str]:
        """Return the ids of the open rollouts for which a window is over for good now, each time once."""
        # A window counts as over when its end is nearer than the rollout's notice, and again at its end. The caller
        # checks these rollouts again, because VMs that wait may have no window left, and no commit says so.
        now = self._transactions.clock.now()
        due = {request_id for request_id, at in self._closes_at.items() if at <= now}
        for request_id in due:
            del self._closes_at[request_id]
            if (request := self._store.request(request_id)) is not None:
                self._follow_closing(request)
        self.has_changed |= bool(due) and self.are_used
        return due

    def windows_at(self, at: float) -> TargetWindows | None:
        """Return a lookup of when events whose notice ends at `at` may start, or None."""
        hosts = self._configurations.hosts
        return TargetWindows(hosts, at) if hosts else None

    def has_window(self, rollout: Rollout, remaining: Sequence[Vm], at: float) -> bool:
        """Return whether an event of any of these VMs could start without an approval after its notice."""
        windows = self.windows_at(at)
        if windows is None or not remaining:
            return has_window_left(rollout, at)
        return can_any_group_start(rollout, remaining, windows)

    @property
    def are_used(self) -> bool:
        """Whether a configuration of scope Host is assigned to anything, so that any rollout may have windows."""
        return bool(self._configurations.hosts)

    async def reconcile(self) -> list[MaintenanceRequest]:
        """Give the scheduled and planned events of open rollouts their windows, if these may have changed."""
        # Returns the open rollouts whose events were checked. Changes are committed, rollout by rollout; after an error
        # the next call checks all again.
        if not self.has_changed:
            return []
        self.has_changed = False
        checked = [request for request in self._store.requests(open_only=True) if request.rollout is not None]
        try:
            for request in checked:
                self._follow_closing(request)
                await self._update_events(request)
        except BaseException:
            self.has_changed = True
            raise
        return checked

    async def _update_events(self, request: MaintenanceRequest) -> None:
        assert request.rollout is not None
        own = request.rollout.calendar
        windows = TargetWindows(self._configurations.hosts, self._transactions.clock.now())
        scheduled = [e for e in self._store.events(request_id=request.id) if e.status is EventState.SCHEDULED]
        planned = self._store.planned(request_id=request.id)
        groups: defaultdict[str, list[Event | PlannedEvent]] = defaultdict(list)  # those that start together
        for event in scheduled:
            # What starts together needs a window that all of it has open.
            groups[event.gate_id or event.id].append(event)
        for item in planned:
            groups[item.gate_id or item.event_id].append(item)
        calendars: dict[str, MaintenanceCalendar | None] = {}  # event id → its new calendar
        for members in groups.values():
            calendar = windows.calendar_for(self._vms_of(members), own)
            for member in members:
                if (wanted := calendar.for_scope(member.scope_id)) != member.calendar:
                    calendars[_event_id(member)] = wanted
        changed = [replace(p, calendar=calendars[p.event_id]) for p in planned if p.event_id in calendars]
        if changed:
            # The version of the request makes it conflict with a batch that is being published.
            await self._store.commit(Commit(requests=(request,), planned=tuple(changed)))
        stale = [event for event in scheduled if event.id in calendars]
        for scope_id, events in group_by_scope(stale, lambda event: event.scope_id).items():
            gates = Commit(wake_gates=tuple(sorted({event.gate_id for event in events if event.gate_id})))
            await self._transactions.run(scope_id, _calendar_decision(calendars), extra_commit=gates)

    def _vms_of(self, members: Iterable[Event | PlannedEvent]) -> list[Vm]:
        found = ((self._store.scope(member.scope_id), member.vms) for member in members)
        vms = [scope.vm(name) for scope, names in found if scope is not None for name in names]
        return [vm for vm in vms if vm is not None]


def _event_id(member: Event | PlannedEvent) -> str:
    return member.id if isinstance(member, Event) else member.event_id


def _calendar_decision(
    calendars: Mapping[str, MaintenanceCalendar | None],
) -> Callable[[Scope, DecisionContext], Scope]:
    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for event in scope.live_events(EventState.SCHEDULED):
            if event.id in calendars:
                calendar = calendars[event.id]
                note = f"it starts in a window of {calendar.source}" if calendar and calendar.source else ""
                scope = scope.with_event(replace(event, calendar=calendar, note=note))
        return reconcile_scope(scope, context)

    return decision
