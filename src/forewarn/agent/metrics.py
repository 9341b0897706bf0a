"""The agent's Prometheus metrics, and the health of its connection to the endpoint.

Every series exists from the first scrape. Labels are bounded: the known kinds (any other is `other`), the configured
steps, a few fixed words; never an event's id or a VM's name. Each agent has its own registry, so that two agents in
one process do not share counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.agent.model import Event, StepConfig, StepOutcome, StepPhase
from forewarn.agent.status import MaintenanceStatus
from forewarn.base.clock import read_real_time
from forewarn.base.duration import format_duration
from forewarn.client import Kind
from forewarn.client import Outcome as EventOutcome

FIRST_ANSWER_LIMIT_S = 180.0  # the first answer may take two minutes (spec §8.1)
SILENCE_LIMIT_S = 90.0  # 410 lasts for up to 70 s (spec §11), and a long poll for 20 s


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """Whether the endpoint has answered recently enough, from `EndpointHealthTracker.health`."""

    ok: bool  # False: the endpoint has been silent for too long
    text: str  # for people: the silence, the last failure, or that no answer came yet; "": the latest poll was answered
    silent_s: float | None  # seconds since the last answer; None: no answer yet


class EndpointHealthTracker:
    """Tracks, from its creation on, when the endpoint last answered and why it has failed since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_at = clock()
        self._answered_at: float | None = None
        self._last_error = ""

    def record_answer(self) -> None:
        """Record that the endpoint answered now, and forget the last failure."""
        self._answered_at, self._last_error = self._clock(), ""

    def record_failure(self, reason: str) -> None:
        """Record why a poll failed, replacing an earlier reason; the next answer clears it."""
        self._last_error = reason

    def health(self) -> EndpointHealth:
        """Return the endpoint's health now: not ok once the endpoint has been silent for too long."""
        now = self._clock()
        waited_s = now - (self._started_at if self._answered_at is None else self._answered_at)
        silent_s = None if self._answered_at is None else waited_s
        if waited_s < (FIRST_ANSWER_LIMIT_S if self._answered_at is None else SILENCE_LIMIT_S):
            return EndpointHealth(
                ok=True, text=self._last_error or ("" if silent_s is not None else "no answer yet"), silent_s=silent_s
            )
        reason = f" ({self._last_error})" if self._last_error else ""
        return EndpointHealth(
            ok=False, text=f"the endpoint has not answered for {format_duration(waited_s)}{reason}", silent_s=silent_s
        )


OTHER_KIND = "other"  # the label of an unknown kind
KINDS = (*(kind.value for kind in Kind), OTHER_KIND)  # all values of the label `kind`

_NOTICE_BUCKETS_S = (5, 15, 30, 60, 300, 600, 900, 1_800, 3_600, 86_400, 604_800)
_STEP_BUCKETS_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900)
_LAG_BUCKETS_S = (0.1, 0.5, 1, 1.5, 2, 5, 10, 30, 60, 120)
_OUTCOMES = tuple(EventOutcome)

_PREFIX = "forewarn_agent_"
_PROMISED_HELP = "Time from when an event was first seen to its NotBefore."
_ACTUAL_HELP = "Time from when an event was first seen to its start; shorter than announced if it was approved."
_MISSED_HELP = "Events first seen when they had started, or after their NotBefore."
_IN_MAINTENANCE_HELP = "1 from the first step for an event, or its start, until all is undone; mute alerts meanwhile."
_LAG_HELP = "Time from one answer of the endpoint to the next, without the time of held long polls."
_POLLED_AT_HELP = "When the endpoint last answered, in seconds since 1970; 0 if it has not yet."
_INFO_HELP = "Always 1; the label is the version of the agent."
_GONE_HELP = "Events that are no longer listed, by what became of them."
_CUT_HELP = "Steps that were not run, for lack of time or because the event had started."
_DURATION_HELP = "Duration of steps (phase do) and of undoing them (phase undo)."

M = TypeVar("M", Counter, Gauge, Histogram)


class AgentMetrics:
    """An `AgentObserver` that counts events, polls and steps for Prometheus, with the endpoint's health."""

    def __init__(
        self,
        steps: Iterable[str] = (),
        *,
        endpoint_health: EndpointHealthTracker | None = None,
        read_time: Callable[[], float] = read_real_time,
    ) -> None:
        self.endpoint_health = endpoint_health or EndpointHealthTracker()
        self._read_real_time = read_time
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        Info("forewarn_agent", _INFO_HELP, registry=self._registry).info({"version": __version__})
        self._make_event_metrics()
        self._make_poll_metrics()
        self._make_step_metrics(tuple(steps))

    def _make_event_metrics(self) -> None:
        self._promised_notice = self._histogram(
            "notice_promised_seconds", _PROMISED_HELP, _NOTICE_BUCKETS_S, kind=KINDS
        )
        self._actual_notice = self._histogram("notice_given_seconds", _ACTUAL_HELP, _NOTICE_BUCKETS_S, kind=KINDS)
        self._missed = self._counter("notices_missed", _MISSED_HELP, kind=KINDS)
        self._gone = self._counter("events_gone", _GONE_HELP, kind=KINDS, outcome=_OUTCOMES)
        self._approvals = self._counter("approvals", "Events that the agent approved.", kind=KINDS)
        self._pending = self._gauge("events_pending", "Events that are listed now.", kind=KINDS)
        self._in_maintenance = self._gauge("in_maintenance", _IN_MAINTENANCE_HELP)

    def _make_poll_metrics(self) -> None:
        self._polls = self._counter("polls", "Polls of the endpoint, by outcome.", outcome=("answered", "failed"))
        self._lag = self._histogram("poll_lag_seconds", _LAG_HELP, _LAG_BUCKETS_S)
        self._polled_at = self._gauge("last_successful_poll_timestamp_seconds", _POLLED_AT_HELP)

    def _make_step_metrics(self, names: tuple[str, ...]) -> None:
        phases, outcomes = tuple(StepPhase), ("done", "failed")
        self._durations = self._histogram(
            "step_duration_seconds", _DURATION_HELP, _STEP_BUCKETS_S, step=names, phase=phases, outcome=outcomes
        )
        self._cuts = self._counter("steps_cut", _CUT_HELP, step=names)
        self._ready = self._gauge("ready", "1 if /ready answers 200, 0 while a readiness step is in effect.")

    def add_steps(self, names: Iterable[str]) -> None:
        """Create the series of these steps at 0, after a reload; existing series keep their values."""
        labels = {"step": tuple(names), "phase": tuple(StepPhase), "outcome": ("done", "failed")}
        _with_all_labels(self._durations, labels)
        _with_all_labels(self._cuts, {"step": labels["step"]})

    def _counter(self, name: str, text: str, **labels: tuple[str, ...]) -> Counter:
        return _with_all_labels(Counter(_PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def _gauge(self, name: str, text: str, **labels: tuple[str, ...]) -> Gauge:
        return _with_all_labels(Gauge(_PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], **labels: tuple[str, ...]) -> Histogram:
        histogram = Histogram(_PREFIX + name, text, tuple(labels), buckets=buckets, registry=self._registry)
        return _with_all_labels(histogram, labels)

    def poll_answered(self, lag_s: float) -> None:
        self.endpoint_health.record_answer()
        self._polls.labels("answered").inc()
        self._lag.observe(max(0.0, lag_s))
        self._polled_at.set(self._read_real_time())

    def poll_failed(self, reason: str) -> None:
        self.endpoint_health.record_failure(reason)
        self._polls.labels("failed").inc()

    def event_first_seen(self, event: Event, notice_s: float | None) -> None:
        if notice_s is not None:
            self._promised_notice.labels(_kind_label(event)).observe(max(0.0, notice_s))

    def event_started(self, event: Event, notice_s: float) -> None:
        self._actual_notice.labels(_kind_label(event)).observe(max(0.0, notice_s))

    def notice_missed(self, event: Event) -> None:
        self._missed.labels(_kind_label(event)).inc()

    def step_ended(self, step: StepConfig, phase: StepPhase, outcome: StepOutcome, took_s: float) -> None:
        result = "done" if outcome.ok else "failed"
        self._durations.labels(step.name, phase.value, result).observe(max(0.0, took_s))

    def step_cut(self, step: StepConfig, event: Event) -> None:
        self._cuts.labels(step.name).inc()

    def event_approved(self, event: Event) -> None:
        self._approvals.labels(_kind_label(event)).inc()

    def event_gone(self, event: Event, outcome: str) -> None:
        self._gone.labels(_kind_label(event), outcome if outcome in _OUTCOMES else EventOutcome.UNKNOWN).inc()

    def render(self, status: MaintenanceStatus) -> bytes:
        """Return all metrics in Prometheus' text format, as UTF-8."""
        listed = [_kind_label(event) for event in status.listed]
        for kind in KINDS:
            self._pending.labels(kind).set(listed.count(kind))
        self._in_maintenance.set(status.in_maintenance)
        self._ready.set(not status.holds)
        return generate_latest(_WithoutCreatedSeries(self._registry))


class _WithoutCreatedSeries(Collector):
    """Collects the registry without its `_created` series, which double the size and have no user."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _with_all_labels(metric: M, labels: Mapping[str, tuple[str, ...]]) -> M:
    """Creates every combination of labels: rates and alerts need the series before their first increment."""
    for values in product(*labels.values()) if labels else ():
        metric.labels(*values)
    return metric


def _kind_label(event: Event) -> str:
    return event.kind if event.kind in KINDS else OTHER_KIND
