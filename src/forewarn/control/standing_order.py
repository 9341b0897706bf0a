"""Carries out the standing order: begins visits of hosts as rollouts, and notes how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from forewarn.control.rollout_requests import RolloutRequestService
from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestKey, Rollout
from forewarn.core.standing_order import (
    HostVisit,
    StandingOrder,
    after_visit,
    next_order_time,
    next_visits,
    require_valid_order,
)
from forewarn.duration import duration_text
from forewarn.errors import Refused, Rejected, full_message
from forewarn.store.interface import STANDING_ORDER_NAME, AppliedCommit


class StandingOrderService:
    """Sets and removes the standing order, and visits hosts as it says.

    The order is stored with its visits. A visit is stored with the id of its request before the request is made, so a
    crash in between neither forgets nor repeats it. `new_id` returns a new GUID at each call.
    """

    def __init__(
        self, *, transactions: ScopeTransactions, requests: RolloutRequestService, new_id: Callable[[], str]
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._requests = requests
        self._new_id = new_id
        self._lock = asyncio.Lock()
        raw = self._store.load(STANDING_ORDER_NAME)
        self.order = msgspec.json.decode(raw, type=StandingOrder | None) if raw is not None else None
        self._must_look = True  # a visit may have ended, or a host was added or removed

    def on_commit(self, applied: AppliedCommit) -> None:
        """Look at the hosts again if a commit changes them or closes a rollout."""
        commit = applied.commit
        has_closed = any(request.rollout is not None and request.rollout.closed for request in commit.requests)
        self._must_look |= has_closed or bool(commit.hosts or commit.removed_hosts)

    async def set_order(self, order: StandingOrder) -> StandingOrder:
        """Store the standing order, in place of the one before, and return it; visits that are known stay.

        Raises Rejected as `require_valid_order` and `RolloutRequestService.plan` do, or Refused if the fleet has no
        host. The history gets an entry.
        """
        require_valid_order(order)
        hosts = self._host_names()
        if not hosts:
            raise Refused("a standing order visits hosts, and the fleet has none: add hosts first")
        self._requests.plan(_rollout_over(order, hosts[0]), who=order.who, notice_s=order.notice_s)
        async with self._lock:
            if self.order is not None:
                order = replace(order, visits=self.order.visits)
            await self._save(order)
        text = f"standing order: visit every host within {duration_text(order.within_s)} ({order.impact})"
        await self._write_entry(text, order.who)
        return order

    async def remove_order(self, *, who: str) -> StandingOrder:
        """Remove the standing order, durably, and return it; visits under way go on. Refused if there is none.

        The history gets an entry.
        """
        async with self._lock:
            order = self.order
            if order is None:
                raise Refused("there is no standing order: there is nothing to remove")
            await self._save(None)
        await self._write_entry("standing order removed", who)
        return order

    async def reconcile(self) -> bool:
        """Note visits that have ended, and begin those that are due; return whether anything was done."""
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
        """Return the lab time, perhaps past, at which a host is to be visited next; None if none is by time."""
        return next_order_time(self.order, self._host_names()) if self.order is not None else None

    async def _look_at_hosts(self, order: StandingOrder) -> bool:
        hosts = self._host_names()
        visits = {host: self._after_end(order.visit(host)) for host in hosts if host in order.visits}
        order = replace(order, visits=visits)
        now = self._now()
        for host in next_visits(order, hosts, now):
            visits[host] = replace(order.visit(host), request_id=self._new_id().lower(), asked_at=now, problem="")
        did = await self._save_if_changed(order)
        for host, visit in list(visits.items()):
            if visit.request_id and self._store.request(visit.request_id) is None:
                visits[host] = await self._begin_visit(order, host, visit)
                did = True
        await self._save_if_changed(order)
        return did

    def _after_end(self, visit: HostVisit) -> HostVisit:
        request = self._store.request(visit.request_id) if visit.request_id else None
        is_over = request is not None and request.rollout is not None and request.rollout.closed
        return after_visit(visit, request) if request is not None and is_over else visit

    async def _begin_visit(self, order: StandingOrder, host: str, visit: HostVisit) -> HostVisit:
        """Request the rollout of a visit; if that is refused, the visit is over and says why."""
        key = RequestKey(request_id=visit.request_id, digest="", at=0.0)
        try:
            await self._requests.start(_rollout_over(order, host), who=order.who, notice_s=order.notice_s, key=key)
        except Rejected as error:
            return replace(visit, request_id="", problem=full_message(error))
        return visit

    async def _save_if_changed(self, order: StandingOrder) -> bool:
        if order == self.order:
            return False
        await self._save(replace(order, visits=dict(order.visits)))
        return True

    async def _save(self, order: StandingOrder | None) -> None:
        await self._store.save(STANDING_ORDER_NAME, msgspec.json.encode(order))
        self.order = order
        self._must_look = True

    async def _write_entry(self, text: str, who: str) -> None:
        entry = HistoryEntry(at=self._now(), what=EntryKind.STANDING_ORDER, who=who, text=text)
        await self._store.commit(Commit(entries=(entry,)))

    def _host_names(self) -> list[str]:
        return [host.name for host in self._transactions.placement.hosts()]

    def _now(self) -> float:
        return self._transactions.clock.now()


def _rollout_over(order: StandingOrder, host: str) -> Rollout:
    return Rollout(impact=order.impact, hosts=(host,), calendar=order.calendar)
