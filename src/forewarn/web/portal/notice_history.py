"""The notice that events got, as sums over time in memory, so that no view scans the history.

Only events that documents list count. All times are lab time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from forewarn.base.times import LabTime
from forewarn.core.event import Event
from forewarn.core.explain.explanation import started_without_notice

KEPT_S = 7 * 86_400  # sums that are older are dropped
START_REASONS = ("approved", "due", "without_notice", "early")  # why an event started; early must not happen
_STEP_S = 300  # of the sums
_MAX_SAMPLES = 20_000  # kept one by one, for users who may see only some of the events
_TOLERANCE_S = 1.0  # NotBefore is a whole second


class NoticeSample(NamedTuple):
    """The notice of one event that started. A tuple, because thousands are kept."""

    scope_id: str  # the id of the event's scope
    started_at: LabTime
    promised_s: float | None  # seconds from publication to NotBefore, rounded down; None: without notice
    given_s: float  # seconds from publication to the start
    reason: str  # why it started: without_notice, approved (also after its notice ended), due (it ended) or early


def notice_sample(event: Event) -> NoticeSample | None:
    """Return the notice that an event got; None if it has not started or no document listed it."""
    if event.started_at is None or not event.listed or event.rules.kind is None:
        return None
    without = started_without_notice(event)
    return NoticeSample(
        event.scope_id,
        event.started_at,
        None if without else max(0.0, math.floor(event.not_before - event.published_at)),
        max(0.0, event.started_at - event.published_at),
        _start_reason(event, event.started_at, without=without),
    )


def _start_reason(event: Event, started_at: float, *, without: bool) -> str:
    if without:
        return "without_notice"
    if event.approved_at is not None:
        return "approved"
    return "due" if started_at >= event.not_before - _TOLERANCE_S else "early"


class NoticeTotals:
    """Sums of the notice of several events: how many there are, by reason, and how much notice they got."""

    __slots__ = ("given_s", "noticed", "promised_s", "reasons", "shortest_s")

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()  # events by reason of their start
        self.noticed = 0  # events with notice; only they count in the following
        self.promised_s = 0.0  # the sum
        self.given_s = 0.0  # the sum
        self.shortest_s = math.inf  # given

    def add(self, sample: NoticeSample) -> None:
        """Count one event. Of an event without notice, only the reason of its start counts."""
        self.reasons[sample.reason] += 1
        if sample.promised_s is not None:
            self.noticed += 1
            self.promised_s += sample.promised_s
            self.given_s += sample.given_s
            self.shortest_s = min(self.shortest_s, sample.given_s)

    def merge(self, other: NoticeTotals) -> None:
        """Add the sums of `other` to these; `other` stays as it is."""
        self.reasons.update(other.reasons)
        self.noticed += other.noticed
        self.promised_s += other.promised_s
        self.given_s += other.given_s
        self.shortest_s = min(self.shortest_s, other.shortest_s)

    @property
    def events(self) -> int:
        """How many events were counted, with notice or without."""
        return self.reasons.total()


def _next_step(at: float) -> float:
    """The first multiple of five minutes that is not before this time."""
    return float(math.ceil(at / _STEP_S) * _STEP_S)


ScopeFilter = Callable[[str], bool]  # whether the user may see the scope with this id


class NoticeHistory:
    """The notice of the events that started in the last seven days, summed in steps of five minutes."""

    # The last 20,000 events are also kept one by one, for users who may not see all of them. `complete_since` is the
    # lab time from which on every start is added.

    def __init__(self, complete_since: float | None = None) -> None:
        self._complete_since = None if complete_since is None else _next_step(complete_since)
        self._totals: dict[int, NoticeTotals] = {}  # number of the step → its events
        self._samples: deque[NoticeSample] = deque(maxlen=_MAX_SAMPLES)

    def add(self, sample: NoticeSample) -> None:
        """Add the notice of an event that started; drop sums that are older than seven days by then."""
        if self._complete_since is not None and sample.started_at < self._complete_since:
            return
        self._samples.append(sample)
        step = int(sample.started_at // _STEP_S)
        if step not in self._totals:
            oldest = step - KEPT_S // _STEP_S
            for old in [known for known in self._totals if known < oldest]:
                del self._totals[old]
        self._totals.setdefault(step, NoticeTotals()).add(sample)

    def complete_since(self, sees: ScopeFilter | None) -> float | None:
        """Return the lab time since which every start of the last seven days is known; None if all are."""
        if sees is not None and len(self._samples) == _MAX_SAMPLES:
            return _next_step(self._samples[0].started_at)
        return self._complete_since

    def first_start(self, since: float, sees: ScopeFilter | None) -> float | None:
        """Return the lab time of the first start at or after `since`; None if there was none."""
        if sees is not None:
            return min((s.started_at for s in self._visible_samples(since, sees)), default=None)
        return min((float(step * _STEP_S) for step in self._totals if (step + 1) * _STEP_S > since), default=None)

    def totals_by_column(
        self, since: float, until: float, column_s: int, sees: ScopeFilter | None
    ) -> dict[int, NoticeTotals]:
        """Return the sums of each column of a chart, by column number, from 0."""
        columns: dict[int, NoticeTotals] = {}

        def column_at(at: float) -> NoticeTotals:
            return columns.setdefault(int((at - since) // column_s), NoticeTotals())

        if sees is None:
            for step, totals in self._totals.items():
                if since <= step * _STEP_S < until:
                    column_at(step * _STEP_S).merge(totals)
        else:
            for sample in self._visible_samples(since, sees):
                if sample.started_at < until:
                    column_at(sample.started_at).add(sample)
        return columns

    def _visible_samples(self, since: float, sees: ScopeFilter) -> Iterable[NoticeSample]:
        first = max(since, self.complete_since(sees) or since)
        return (sample for sample in self._samples if sample.started_at >= first and sees(sample.scope_id))
