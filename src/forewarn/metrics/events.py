"""Events counted as they are committed: what notice was promised and got, who approved when, what became of acts.

All times are lab time. An event is known here while it is live; what happened before we came is not counted again.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from forewarn.core.cause import Verb
from forewarn.core.event import Act, Ending, Event, Status
from forewarn.core.history import Entry, What
from forewarn.protocol.document import Kind
from forewarn.store.seam import Committed, Store

KINDS = tuple(kind.value for kind in Kind)
LIVE = (Status.SCHEDULED, Status.STARTED)
STARTS = ("approved", "due", "without_notice", "early")
# A second more than what is usually promised, since NotBefore is a whole second and never a sooner one.
_NOTICE_S = (6, 16, 31, 61, 301, 601, 901, 1_801, 3_601, 86_401, 604_801)
_STARTED_S = (1, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)
_TOLERANCE_S = 1.0  # VMs are shown whole seconds

M = TypeVar("M", Counter, Gauge, Histogram)

_PROMISED = "Time from an event's publication to its NotBefore."
_GOT = "Time from an event's publication to its start; shorter than promised if it was approved."
_APPROVED = "Time from an event's publication to its approval."
_STARTED = "Time from an event's start until it was over."
_STARTS = "Events that started, by why: early is before NotBefore with no approval, which never should be."
_OLDEST = "For how long the event that started first of all that are not over has been started."


class EventMeter:
    def __init__(self, registry: CollectorRegistry, store: Store) -> None:
        self._registry = registry
        kinds = {"kind": KINDS}
        self._promised = self._histogram("notice_promised_seconds", _PROMISED, _NOTICE_S, kinds)
        self._got = self._histogram("notice_got_seconds", _GOT, _NOTICE_S, kinds)
        self._approval = self._histogram("approval_seconds", _APPROVED, _NOTICE_S, kinds)
        self._took = self._histogram("started_seconds", _STARTED, _STARTED_S, kinds)
        self._starts = self._counter("events_started", _STARTS, {**kinds, "why": STARTS})
        endings = {**kinds, "ending": tuple(Ending)}
        self._overs = self._counter("events_over", "Events that are over, by how they ended.", endings)
        outcomes = {"verb": tuple(Verb), "outcome": ("performed", "failed")}
        self._acts = self._counter("acts", "What was done to VMs, and what failed.", outcomes)
        retries = "Acts that could not be performed at once and were tried again."
        self._retries = self._counter("act_retries", retries, {"verb": tuple(Verb)})
        states = {**kinds, "state": LIVE}
        self._live = _begun(
            Gauge("forewarn_events", "Events that are not over.", (*states,), registry=registry), states
        )
        self._oldest = Gauge("forewarn_event_started_oldest_seconds", _OLDEST, registry=registry)
        self._known: dict[str, Event] = {event.id: event for event in store.events(statuses=LIVE)}
        self.close = store.subscribe(self.hear)

    def hear(self, committed: Committed) -> None:
        for event in committed.commit.events:
            self._meet(event)
        for entry in committed.commit.entries:
            if entry.what is What.RETRIED:
                self._retried(entry)

    @property
    def live(self) -> list[Event]:
        """The events that are not over."""
        return list(self._known.values())

    def look(self, now: float) -> None:
        """How things stand at this moment."""
        counts = Counts((event.row.kind, event.status) for event in self._known.values() if event.listed)
        for kind, status in product(Kind, LIVE):
            self._live.labels(kind.value, status.value).set(counts[kind, status])
        began = [event.started_at for event in self._known.values() if event.started_at is not None and event.listed]
        self._oldest.set(max(0.0, now - min(began, default=now)))

    def _meet(self, event: Event) -> None:
        before = self._known.pop(event.id, None)
        if event.is_live:
            self._known[event.id] = event
        self._count_acts(before.acts if before else (), event.acts)
        if event.listed and event.row.kind is not None:
            self._count_steps(before, event, event.row.kind.value)

    def _count_steps(self, before: Event | None, event: Event, kind: str) -> None:
        if before is None and event.started_at is None:
            self._promised.labels(kind).observe(max(0.0, event.not_before - event.published_at))
        if event.approved_at is not None and (before is None or before.approved_at is None):
            self._approval.labels(kind).observe(max(0.0, event.approved_at - event.published_at))
        if event.started_at is not None and (before is None or before.started_at is None):
            self._got.labels(kind).observe(max(0.0, event.started_at - event.published_at))
            self._starts.labels(kind, _why_started(event, event.started_at)).inc()
        if event.over_at is not None and event.ending is not None:
            self._overs.labels(kind, event.ending.value).inc()
            if event.started_at is not None:
                self._took.labels(kind).observe(max(0.0, event.over_at - event.started_at))

    def _count_acts(self, before: Iterable[Act], after: Iterable[Act]) -> None:
        known = {act.id for act in before if act.outcome is not None}
        for act in after:
            if act.outcome is not None and act.id not in known:
                self._acts.labels(act.verb.value, "performed" if act.outcome.ok else "failed").inc()

    def _retried(self, entry: Entry) -> None:
        event = self._known.get(entry.event_id)
        if event is not None:
            self._retries.labels(event.row.verb.value).inc()

    def _counter(self, name: str, text: str, labels: Mapping[str, tuple[str, ...]]) -> Counter:
        return _begun(Counter(f"forewarn_{name}", text, tuple(labels), registry=self._registry), labels)

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Mapping[str, tuple[str, ...]]
    ) -> Histogram:
        made = Histogram(f"forewarn_{name}", text, tuple(labels), buckets=buckets, registry=self._registry)
        return _begun(made, labels)


def _why_started(event: Event, at: float) -> str:
    if event.approved_at is not None:
        return "approved"
    if at <= event.published_at:
        return "without_notice"
    return "due" if at >= event.not_before - _TOLERANCE_S else "early"


def _begun(metric: M, labels: Mapping[str, tuple[str, ...]]) -> M:
    """With every combination of its labels: rates and alerts need them before the first time."""
    for values in product(*labels.values()):
        metric.labels(*map(str, values))
    return metric
