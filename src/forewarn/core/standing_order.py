"""A standing order: visit every host within a number of days, the one that waits longest first.

Each visit is a rollout over one host, so windows, budgets and the hold apply to it. A host is due when four fifths of
the interval have passed since its last visit; a host that was never visited is due at once. Only visits with the impact
of the order count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.request import IMPACT_CAUSES, MaintenanceRequest, RolloutImpact, RolloutState
from forewarn.core.windows import MaintenanceCalendar, next_start
from forewarn.errors import Rejected

MIN_INTERVAL_S = 3600.0
MAX_INTERVAL_S = 366 * 86_400.0
MAX_AT_ONCE = 1_000
_MAX_COUNTED_STARTS = 10_000  # in windows, one by one, so that a warning about a very large fleet is quick
DUE_SHARE = 0.8  # of the interval; the rest is reserve for windows and budgets
_MAX_RETRY_S = 86_400.0  # after a visit that failed, and until one that publishes nothing is given up


class HostVisit(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a standing order knows about its visits of one host; a visit is a rollout over that host."""

    visited_at: float | None = None  # when the last visit that succeeded ended; None: there was none
    impact: RolloutImpact | None = None  # of that visit; None: there was none
    asked_at: float | None = None  # when the last visit was requested, or resumed after a pause; None: never
    request_id: str = ""  # of the visit that is not over; "": there is none
    is_paused: bool = False  # somebody paused the visit under way, and it has no live event: it does not count as one
    problem: str = ""  # for people: why the last visit did not succeed; "": it did, or is under way
    failed_at: float | None = None  # when the last failed visit ended; None: none since the last success

    @property
    def is_under_way(self) -> bool:
        """Whether a visit of the host is under way and not paused, so that it counts towards `at_once`."""
        return bool(self.request_id) and not self.is_paused


class StandingOrder(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An order to visit every host of the fleet at least once within a time, again and again."""

    within_s: float  # seconds, 1 hour to 366 days; each host is visited at least once in this time
    impact: RolloutImpact  # what a visit does to the VMs of the host
    set_by: str  # the name of who gave it
    set_at: float  # when it was given
    notice_s: float = 0  # the notice of its events, in seconds; 0: the minimum
    calendar: MaintenanceCalendar | None = None  # when its events may start without an approval; None: at any time
    at_once: int = 1  # how many hosts may be visited at the same time, 1 to 1,000
    visits: dict[str, HostVisit] = {}  # by host name; a host that is missing was never visited
    is_removed: bool = False  # it only remembers its visits, for the next order
    held_until: float = 0  # when the last hold on all rollouts was lifted: until then, a visit could publish nothing

    def visit(self, host: str) -> HostVisit:
        """Return what the order knows about the host of exactly this name; an empty HostVisit if nothing."""
        return self.visits.get(host, HostVisit())

    def visited_at(self, host: str) -> float | None:
        """Return the lab time at which the host's last successful visit ended; None if none counts."""
        # A visit with another impact does not count. Only the last success is stored.
        visit = self.visit(host)
        return visit.visited_at if visit.impact is self.impact else None


def require_valid_order(order: StandingOrder) -> None:
    """Raise Rejected, with one sentence, if the interval or the number of hosts at once is not possible."""
    if not MIN_INTERVAL_S <= order.within_s <= MAX_INTERVAL_S:
        shortest, longest = duration_text(MIN_INTERVAL_S), duration_text(MAX_INTERVAL_S)
        raise Rejected(f"hosts cannot be visited within {duration_text(order.within_s)}: give {shortest} to {longest}")
    if not 1 <= order.at_once <= MAX_AT_ONCE:
        raise Rejected(f"{order.at_once} hosts cannot be visited at once: give 1 to {MAX_AT_ONCE}")


def _visit_notice_s(order: StandingOrder) -> float:
    return order.notice_s or CAUSE_RULES[IMPACT_CAUSES[order.impact]].minimum_notice_s


def has_rules_of(order: StandingOrder, request: MaintenanceRequest) -> bool:
    """Return whether a visit, the rollout of `request`, has the impact, windows and notice of the order."""
    rollout = request.rollout
    assert rollout is not None
    wanted = (order.impact, order.calendar, _visit_notice_s(order))
    return (rollout.impact, rollout.calendar, request.notice_s) == wanted


def order_warning(order: StandingOrder, domains: Sequence[int], now: float) -> str:
    """Return a sentence on why the order cannot visit all hosts within its interval; "" if it can.

    `domains` has for each host with VMs how many update domains follow one another there. The estimate assumes no
    approvals, budgets or failures.
    """
    notice_s, work_s = _visit_notice_s(order), _visit_work_s(order)
    needed = math.ceil(sum(domains) / order.at_once)
    possible = _possible_starts(order, needed, now)
    if possible >= needed:
        return ""
    fitting = sum(total <= possible * order.at_once for total in accumulate(sorted(domains)))
    windows, longer = (", within its windows", ", longer windows") if order.calendar is not None else ("", "")
    return (
        f"at most {fitting} of {len(domains)} hosts with VMs can be visited within {duration_text(order.within_s)}: "
        f"an update domain of a host takes at least {duration_text(notice_s + work_s)}{windows}, "
        f"and the order visits {order.at_once} at a time; give more time{longer} or more hosts at once"
    )


def _visit_work_s(order: StandingOrder) -> float:
    return max(0, CAUSE_RULES[IMPACT_CAUSES[order.impact]].duration_s)


def _possible_starts(order: StandingOrder, needed: int, now: float) -> int:
    notice_s, work_s = _visit_notice_s(order), _visit_work_s(order)
    at, ends_at, counted = now, now + order.within_s, 0
    if order.calendar is not None:
        while counted < min(needed, _MAX_COUNTED_STARTS):
            start = next_start(order.calendar, at + notice_s)
            if start is None or start + work_s > ends_at:
                return counted
            at, counted = start + work_s, counted + 1
    return counted + math.floor((ends_at - at) / (notice_s + work_s))


def due_at(order: StandingOrder, host: str) -> float:
    """Return the lab time, perhaps past, from which the host is to be visited."""
    visit, visited_at = order.visit(host), order.visited_at(host)
    at = order.set_at if visited_at is None else visited_at + DUE_SHARE * order.within_s
    failed_at = visit.failed_at if visit.failed_at is not None else visit.asked_at
    if visit.problem and failed_at is not None:
        at = max(at, failed_at + retry_after_s(order))
    return at


def retry_after_s(order: StandingOrder) -> float:
    """Return how many seconds must pass after a failed visit before the host is visited again."""
    # It is also how long a visit without a live event may publish nothing before it is given up.
    return min(_MAX_RETRY_S, order.within_s / 10)


def late_at(order: StandingOrder, host: str) -> float:
    """Return the lab time, perhaps past, from which the host is late: the interval after its last visit."""
    visited_at = order.visited_at(host)
    return (order.set_at if visited_at is None else visited_at) + order.within_s


def next_visits(order: StandingOrder, hosts: Iterable[str], now: float) -> list[str]:
    """Return the hosts (names) to visit next, the longest waiting first, as many as `at_once` allows."""
    # Hosts whose last visit did not succeed come after the others, so that those which cannot be maintained do not keep
    # the others waiting.
    names = list(hosts)
    free = order.at_once - sum(order.visit(host).is_under_way for host in names)
    due = [host for host in names if not order.visit(host).request_id and due_at(order, host) <= now]
    due.sort(key=lambda host: (bool(order.visit(host).problem), late_at(order, host), due_at(order, host), host))
    return due[: max(0, free)]


def next_order_time(order: StandingOrder, hosts: Iterable[str]) -> float | None:
    """Return the lab time, perhaps past, at which the next host is to be visited; None if no more may be."""
    names = list(hosts)
    if sum(order.visit(host).is_under_way for host in names) >= order.at_once:
        return None
    return min((due_at(order, host) for host in names if not order.visit(host).request_id), default=None)


def after_visit(visit: HostVisit, request: MaintenanceRequest) -> HostVisit:
    """Return what is known about a host (`visit`) after its visit, the rollout of `request`, has closed."""
    rollout = request.rollout
    assert rollout is not None
    failed = rollout.tally.failed if rollout.tally is not None else 0
    if rollout.progress is RolloutState.COMPLETED and not failed:
        visit = replace(visit, visited_at=rollout.closed_at, impact=rollout.impact)
        return replace(visit, request_id="", is_paused=False, problem="", failed_at=None)
    return given_up(visit, rollout.reason or f"its rollout was {rollout.progress}", rollout.closed_at)


def given_up(visit: HostVisit, problem: str, at: float | None) -> HostVisit:
    """Return what is known about a host (`visit`) after a visit ended without success at lab time `at`."""
    return replace(visit, request_id="", is_paused=False, problem=problem, failed_at=at)
