"""Event metrics, counted at each commit: notice promised and given, approvals, starts, endings, acts.

All times are lab time. Events are tracked while they are live; nothing from before the start is counted again.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from forewarn.core.cause import Verb
from forewarn.core.event import Act, Ending, Event, EventState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.protocol.document import Kind
from forewarn.store.interface import AppliedCommit, Store

EVENT_TYPES = tuple(kind.value for kind in Kind)  # values of the label `kind`
LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)  # of events that are not over; label `state`
START_REASONS = ("approved", "due", "without_notice", "early")  # values of the label `reason`
# A second more than the usual notices, because NotBefore is rounded up to a whole second.
_NOTICE_BUCKETS_S = (6, 16, 31, 61, 301, 601, 901, 1_801, 3_601, 86_401, 604_801)
_STARTED_BUCKETS_S = (1, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)
_TOLERANCE_S = 1.0  # documents show whole seconds

MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)

_NOTICE_PROMISED_HELP = "Time from an event's publication to its NotBefore."
_NOTICE_GIVEN_HELP = "Time from an event's publication to its start; shorter than promised if it was approved."
_APPROVAL_HELP = "Time from an event's publication to its first approval."
_STARTED_SECONDS_HELP = "Time from an event's start until it was over."
_EVENTS_STARTED_HELP = (
    "Events that started, by reason: approved by a VM, due at NotBefore, without_notice (a hardware failure, or a "
    "fault), early (before NotBefore without an approval, which must not happen)."
)
_OLDEST_STARTED_HELP = "Time since the start of the event that started first and is not over; 0 if there is none."


class EventMetrics:
    """The metrics of events and acts, counted from each commit of the store until `close` is called."""

    def __init__(self, registry: CollectorRegistry, store: Store) -> None:
        self._registry = registry
        kinds = {"kind": EVENT_TYPES}
        self._notice_promised = self._histogram(
            "notice_promised_seconds", _NOTICE_PROMISED_HELP, _NOTICE_BUCKETS_S, kinds
        )
        self._notice_given = self._histogram("notice_given_seconds", _NOTICE_GIVEN_HELP, _NOTICE_BUCKETS_S, kinds)
        self._approval = self._histogram("approval_seconds", _APPROVAL_HELP, _NOTICE_BUCKETS_S, kinds)
        self._started_seconds = self._histogram("started_seconds", _STARTED_SECONDS_HELP, _STARTED_BUCKETS_S, kinds)
        self._events_started = self._counter("events_started", _EVENTS_STARTED_HELP, {**kinds, "reason": START_REASONS})
        endings = {**kinds, "ending": tuple(Ending)}
        self._events_over = self._counter("events_over", "Events that are over, by how they ended.", endings)
        outcomes = {"verb": tuple(Verb), "outcome": ("performed", "failed")}
        self._acts = self._counter("acts", "Acts on VMs that ended, by verb and outcome.", outcomes)
        retries = "Retries of acts, because the hypervisor was unavailable."
        self._retries = self._counter("act_retries", retries, {"verb": tuple(Verb)})
        states = {**kinds, "state": LIVE_STATUSES}
        self._live_gauge = _with_all_labels(
            Gauge("forewarn_events", "Events that are listed now, by state.", (*states,), registry=registry), states
        )
        self._oldest_started = Gauge("forewarn_event_started_oldest_seconds", _OLDEST_STARTED_HELP, registry=registry)
        self._events: dict[str, Event] = {event.id: event for event in store.events(statuses=LIVE_STATUSES)}
        self.close = store.subscribe(self._on_commit)  # a function that stops following the store

    def _on_commit(self, committed: AppliedCommit) -> None:
        for event in committed.commit.events:
            self._track_event(event)
        for entry in committed.commit.entries:
            if entry.kind is EntryKind.RETRIED:
                self._count_retry(entry)

    @property
    def live_events(self) -> list[Event]:
        """The events that are not over as of the last commit, listed or not: a new list, in no order."""
        return list(self._events.values())

    def refresh(self, now: float) -> None:
        """Set the gauges to the state at `now`, in lab time; only events that documents list count."""
        counts = Counts((event.rules.kind, event.status) for event in self._events.values() if event.listed)
        for kind, status in product(Kind, LIVE_STATUSES):
            self._live_gauge.labels(kind.value, status.value).set(counts[kind, status])
        began = [event.started_at for event in self._events.values() if event.started_at is not None and event.listed]
        self._oldest_started.set(max(0.0, now - min(began, default=now)))

    def _track_event(self, event: Event) -> None:
        before = self._events.pop(event.id, None)
        if event.is_live:
            self._events[event.id] = event
        self._count_acts(before.acts if before else (), event.acts)
        if event.listed and event.rules.kind is not None:
            self._count_transitions(before, event, event.rules.kind.value)

    def _count_transitions(self, before: Event | None, event: Event, kind: str) -> None:
        if before is None and event.started_at is None:
            self._notice_promised.labels(kind).observe(max(0.0, event.not_before - event.published_at))
        if event.approved_at is not None and (before is None or before.approved_at is None):
            self._approval.labels(kind).observe(max(0.0, event.approved_at - event.published_at))
        if event.started_at is not None and (before is None or before.started_at is None):
            self._notice_given.labels(kind).observe(max(0.0, event.started_at - event.published_at))
            self._events_started.labels(kind, _start_reason(event, event.started_at)).inc()
        if event.over_at is not None and event.ending is not None:
            self._events_over.labels(kind, event.ending.value).inc()
            if event.started_at is not None:
                self._started_seconds.labels(kind).observe(max(0.0, event.over_at - event.started_at))

    def _count_acts(self, before: Iterable[Act], after: Iterable[Act]) -> None:
        known = {act.id for act in before if act.outcome is not None}
        for act in after:
            if act.outcome is not None and act.id not in known:
                self._acts.labels(act.verb.value, "performed" if act.outcome.ok else "failed").inc()

    def _count_retry(self, entry: HistoryEntry) -> None:
        event = self._events.get(entry.event_id)
        if event is not None:
            self._retries.labels(event.rules.verb.value).inc()

    def _counter(self, name: str, help_text: str, labels: Mapping[str, tuple[str, ...]]) -> Counter:
        return _with_all_labels(Counter(f"forewarn_{name}", help_text, tuple(labels), registry=self._registry), labels)

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], labels: Mapping[str, tuple[str, ...]]
    ) -> Histogram:
        histogram = Histogram(f"forewarn_{name}", help_text, tuple(labels), buckets=buckets, registry=self._registry)
        return _with_all_labels(histogram, labels)


def _start_reason(event: Event, at: float) -> str:
    if event.approved_at is not None:
        return "approved"
    if at <= event.published_at:
        return "without_notice"
    return "due" if at >= event.not_before - _TOLERANCE_S else "early"


def _with_all_labels(metric: MetricT, labels: Mapping[str, tuple[str, ...]]) -> MetricT:
    """Create every combination of the labels: rates and alerts need the series before the first count."""
    for values in product(*labels.values()):
        metric.labels(*map(str, values))
    return metric
