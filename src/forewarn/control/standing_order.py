"""Carries out the standing order: begins visits of hosts as rollouts, and notes how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.base.times import LabTime
from forewarn.control.budgets import BudgetService
from forewarn.control.rollout_requests import RolloutRequestService
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestKey, Rollout, RolloutState
from forewarn.core.standing_order import (
    HostVisit,
    StandingOrder,
    after_visit,
    given_up,
    has_rules_of,
    next_order_time,
    next_visits,
    order_warning,
    require_valid_order,
    retry_after_s,
)
from forewarn.errors import Refused, Rejected, Remedy, full_message
from forewarn.store.interface import STANDING_ORDER_NAME, AppliedCommit


class StandingOrderService:
    """Sets and removes the standing order, and visits hosts as it says."""

    # A visit is stored with the id of its request before the request is made, so a crash in between neither forgets nor
    # repeats it. A visit that cannot publish its events is given up, so that it does not keep other hosts waiting.

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        requests: RolloutRequestService,
        budgets: BudgetService,
        new_id: Callable[[], str],
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._requests = requests
        self._budgets = budgets
        self._new_id = new_id
        self._lock = asyncio.Lock()
        raw = self._store.load(STANDING_ORDER_NAME)
        # A removed order stays here with what it knows about visits, for the next one.
        self._stored = _decode(raw) if raw is not None else None
        self.order = _active(self._stored)
        self._visit_ids = _visit_ids(self.order)
        self._must_look = True  # a visit may have changed or ended, or a host was added or removed
        self._check_at: LabTime | None = None  # when visits under way are looked at in any case
        self._held_until = 0.0  # when a hold was lifted that the stored order does not know yet

    def warning(self) -> str:
        """Return for people, with numbers, why the order cannot visit all hosts in time; "" if it can."""
        if self.order is None:
            return ""
        domains = self._transactions.placement.most_update_domains()
        return order_warning(self.order, list(domains.values()), self._now())

    def on_commit(self, applied: AppliedCommit) -> None:
        """Let `reconcile` look at the hosts again if a commit changes them, a visit under way, or the order."""
        commit = applied.commit
        for saved in commit.saved:
            if saved.name == STANDING_ORDER_NAME:
                self._follow(_decode(saved.value))
        self._must_look |= (
            bool(commit.hosts or commit.removed_hosts)
            or any(request.id in self._visit_ids for request in commit.requests)
            or any(event.request_id in self._visit_ids and not event.is_live for event in commit.events)
        )

    def check_order(self, order: StandingOrder) -> int:
        """Return how many hosts a valid order would visit, which is all of the fleet; changes nothing."""
        require_valid_order(order)
        hosts = self._host_names()
        if not hosts:
            raise Refused("a standing order visits hosts, and the fleet has none: add hosts first")
        try:
            self._requests.plan(_rollout_over(order, hosts[0]), who=order.set_by, notice_s=order.notice_s)
        except Rejected as error:
            if error.remedy_code is Remedy.ALLOW_SHORT_NOTICE:  # visits are no tests: they always give the minimum
                error.remedy_code = Remedy.GIVE_MORE_NOTICE
            raise
        return len(hosts)

    async def set_order(self, order: StandingOrder) -> StandingOrder:
        """Store the standing order, in place of the one before, and return it; known visits are kept."""
        self.check_order(order)
        async with self._lock:
            if self._stored is not None:
                order = replace(order, visits=self._stored.visits, held_until=self._stored.held_until)
            text = f"standing order: visit every host within {duration_text(order.within_s)} ({order.impact})"
            await self._commit_order(order, text, order.set_by)
        return order

    async def remove_order(self, *, who: str) -> StandingOrder:
        """Remove the standing order, durably, and return it; visits under way go on."""
        async with self._lock:
            order = self.order
            if order is None:
                raise Refused("there is no standing order: there is nothing to remove")
            await self._commit_order(replace(order, is_removed=True), "standing order removed", who)
        return order

    async def reconcile(self, *, is_hold_lifted: bool = False) -> bool:
        """Note visits that have ended, and begin those that are due; return whether a visit has changed."""
        # It aborts the rollout of a visit that publishes nothing for too long, never fits into a budget, or has other
        # rules than the order.
        if is_hold_lifted:
            self._held_until, self._must_look = self._now(), True
        due_at = self.next_due_at()
        if not self._must_look and (due_at is None or due_at > self._now()):
            return False
        async with self._lock:
            if self.order is None:
                return False
            self._must_look = False
            try:
                return await self._look_at_hosts(self.order)
            except BaseException:
                self._must_look = True
                raise

    def next_due_at(self) -> float | None:
        """Return the lab time, perhaps past, at which a visit is to begin or to be checked; None if none is."""
        if self.order is None:
            return None
        if self._must_look:
            return self._now()
        times = (next_order_time(self.order, self._host_names()), self._check_at)
        return min((at for at in times if at is not None), default=None)

    async def _look_at_hosts(self, order: StandingOrder) -> bool:
        hosts = self._host_names()
        now = self._now()
        order = replace(order, held_until=max(order.held_until, self._held_until))
        visits = {host: await self._follow_visit(order, order.visit(host)) for host in hosts if host in order.visits}
        order = replace(order, visits=visits)
        for host in next_visits(order, hosts, now):
            visits[host] = replace(order.visit(host), request_id=self._new_id().lower(), asked_at=now, problem="")
        # The id of the request is durable before the request is made: after a crash the loop below makes it.
        did = await self._save_if_changed(order)
        for host, visit in list(visits.items()):
            if visit.request_id and self._store.request(visit.request_id) is None:
                visits[host] = await self._begin_visit(order, host, visit)
                did = True
        did |= await self._save_if_changed(order)
        self._check_at = now + retry_after_s(order) if self._visit_ids else None
        return did

    async def _follow_visit(self, order: StandingOrder, visit: HostVisit) -> HostVisit:
        request = self._store.request(visit.request_id) if visit.request_id else None
        if request is None or request.rollout is None:
            return visit
        rollout, now = request.rollout, self._now()
        is_obsolete = not has_rules_of(order, request)
        # A visit by other rules says nothing about this order.
        if rollout.closed and not (is_obsolete and rollout.progress is RolloutState.ABORTED):
            return after_visit(visit, request)
        if rollout.closed:
            return replace(visit, request_id="", is_paused=False, asked_at=None)
        if is_obsolete:
            with suppress(Refused):  # it is aborted already, or has just ended
                await self._requests.change_state(request.id, RolloutState.ABORTED, who="the standing order")
            return visit
        if rollout.progress is RolloutState.PAUSED:
            return replace(visit, is_paused=visit.is_paused or self._idle_since(order, visit) is not None)
        if visit.is_paused:
            return replace(visit, is_paused=False, asked_at=now)
        latest = now - retry_after_s(order)
        # A group that is larger than its budget will never fit: do not wait for it.
        excess = self._budgets.excess_text(request.id)
        if rollout.progress is not RolloutState.RUNNING or not (excess or (visit.asked_at or 0.0) <= latest):
            return visit
        idle_since = self._idle_since(order, visit)
        if idle_since is None or not (excess or idle_since <= latest):
            return visit
        waits = excess or "; ".join(self._budgets.wait_texts(request.id))
        try:
            await self._requests.change_state(request.id, RolloutState.ABORTED, who="the standing order")
        except Refused:
            return visit  # somebody ended it at this moment
        return given_up(visit, waits or f"it published no event for {duration_text(now - idle_since)}", now)

    def _idle_since(self, order: StandingOrder, visit: HostVisit) -> float | None:
        events = self._store.events(request_id=visit.request_id)
        if self._store.planned(request_id=visit.request_id) or any(event.is_live for event in events):
            return None
        ended = [event.over_at for event in events if event.over_at is not None]
        # Time under a hold is not idle: nothing could be published.
        return max(visit.asked_at or 0.0, order.held_until, *ended)

    async def _begin_visit(self, order: StandingOrder, host: str, visit: HostVisit) -> HostVisit:
        """Request the rollout of a visit; if that is refused, the visit is over and says why."""
        key = RequestKey(request_id=visit.request_id, digest="", at=0.0)
        try:
            await self._requests.start(_rollout_over(order, host), who=order.set_by, notice_s=order.notice_s, key=key)
        except Rejected as error:
            return given_up(visit, full_message(error), self._now())
        return visit

    async def _save_if_changed(self, order: StandingOrder) -> bool:
        if order == self.order:
            return False
        await self._save(replace(order, visits=dict(order.visits)))
        return True

    async def _save(self, order: StandingOrder) -> None:
        await self._store.save(STANDING_ORDER_NAME, msgspec.json.encode(order))
        self._follow(order)

    async def _commit_order(self, order: StandingOrder, text: str, who: str) -> None:
        entry = HistoryEntry(at=self._now(), kind=EntryKind.STANDING_ORDER, actor=who, text=text)
        saved = SavedValue(STANDING_ORDER_NAME, msgspec.json.encode(order))
        await self._store.commit(Commit(saved=(saved,), entries=(entry,)))

    def _follow(self, stored: StandingOrder | None) -> None:
        self._stored, self.order = stored, _active(stored)
        self._visit_ids = _visit_ids(self.order)
        self._must_look = True

    def _host_names(self) -> list[str]:
        return [host.name for host in self._transactions.placement.hosts()]

    def _now(self) -> float:
        return self._transactions.clock.now()


def _decode(raw: bytes) -> StandingOrder | None:
    return msgspec.json.decode(raw, type=StandingOrder | None)


def _active(stored: StandingOrder | None) -> StandingOrder | None:
    return stored if stored is not None and not stored.is_removed else None


def _rollout_over(order: StandingOrder, host: str) -> Rollout:
    return Rollout(impact=order.impact, hosts=(host,), calendar=order.calendar)


def _visit_ids(order: StandingOrder | None) -> frozenset[str]:
    if order is None:
        return frozenset()
    return frozenset(visit.request_id for visit in order.visits.values() if visit.request_id)
