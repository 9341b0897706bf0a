"""What Prometheus is told of the agent, from the first scrape on: every series exists before anything happens.

Labels are bounded: the five kinds (any other is `other`), the steps of the configuration, a few words. An event's id or
a VM's name is never one. The registry is the agent's own, so that two agents in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.agent.pulse import Pulse
from forewarn.agent.standing import Standing
from forewarn.agent.value import Event, Outcome, Phase, Step
from forewarn.client import Kind
from forewarn.client import Outcome as Ending
from forewarn.clock import read_real_time

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
KINDS = (*(kind.value for kind in Kind), OTHER)

_NOTICE_S = (5, 15, 30, 60, 300, 600, 900, 1_800, 3_600, 86_400, 604_800)
_STEP_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900)
_LAG_S = (0.1, 0.5, 1, 1.5, 2, 5, 10, 30, 60, 120)
_ENDINGS = tuple(Ending)

_PREFIX = "forewarn_agent_"
_PROMISED = "Time from when an event was first seen to its NotBefore."
_GOT = "Time from when an event was first seen to its start; shorter than promised if somebody approved it."
_MISSED = "Events that were first seen started, or with their NotBefore passed."
_IN_MAINTENANCE = "1 from the first step for an event, or its start, until all is undone: mute alerts meanwhile."
_LAG = "Time from one answer of the endpoint to the next, beyond what it held it on the agent's behalf."
_POLLED_AT = "When the endpoint last answered; 0: not yet."
_DURATION = "How long steps took, and their undoing."

M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    """An Observer that counts, and feels the pulse."""

    def __init__(
        self, steps: Iterable[str] = (), *, pulse: Pulse | None = None, real: Callable[[], float] = read_real_time
    ) -> None:
        self.pulse = pulse or Pulse()
        self._real = real
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        Info("forewarn_agent", "The agent itself.", registry=self._registry).info({"version": __version__})
        self._make_notices()
        self._make_polls()
        self._make_steps(tuple(steps))

    def _make_notices(self) -> None:
        self._promised = self._histogram("notice_promised_seconds", _PROMISED, _NOTICE_S, kind=KINDS)
        self._got = self._histogram("notice_got_seconds", _GOT, _NOTICE_S, kind=KINDS)
        self._missed = self._counter("notices_missed", _MISSED, kind=KINDS)
        self._gone = self._counter("events_gone", "Events that are no longer listed.", kind=KINDS, outcome=_ENDINGS)
        self._approvals = self._counter("approvals", "Events that the agent approved.", kind=KINDS)
        self._pending = self._gauge("events_pending", "Events that are listed now.", kind=KINDS)
        self._in_maintenance = self._gauge("in_maintenance", _IN_MAINTENANCE)

    def _make_polls(self) -> None:
        self._polls = self._counter("polls", "Questions to the endpoint.", outcome=("answered", "failed"))
        self._lag = self._histogram("poll_lag_seconds", _LAG, _LAG_S)
        self._polled_at = self._gauge("last_successful_poll_timestamp_seconds", _POLLED_AT)

    def _make_steps(self, names: tuple[str, ...]) -> None:
        phases, outcomes = tuple(Phase), ("done", "failed")
        self._durations = self._histogram(
            "step_duration_seconds", _DURATION, _STEP_S, step=names, phase=phases, outcome=outcomes
        )
        self._cuts = self._counter("steps_cut", "Steps that there was no time for.", step=names)
        self._ready = self._gauge("ready", "What /ready says: 0 while a step holds it.")

    def _counter(self, name: str, text: str, **labels: tuple[str, ...]) -> Counter:
        return _begun(Counter(_PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def _gauge(self, name: str, text: str, **labels: tuple[str, ...]) -> Gauge:
        return _begun(Gauge(_PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], **labels: tuple[str, ...]) -> Histogram:
        made = Histogram(_PREFIX + name, text, tuple(labels), buckets=buckets, registry=self._registry)
        return _begun(made, labels)

    def polled(self, lag_s: float) -> None:
        self.pulse.answered()
        self._polls.labels("answered").inc()
        self._lag.observe(max(0.0, lag_s))
        self._polled_at.set(self._real())

    def failed(self, why: str) -> None:
        self.pulse.failed(why)
        self._polls.labels("failed").inc()

    def noticed(self, event: Event, notice_s: float | None) -> None:
        if notice_s is not None:
            self._promised.labels(_kind(event)).observe(max(0.0, notice_s))

    def started(self, event: Event, notice_s: float) -> None:
        self._got.labels(_kind(event)).observe(max(0.0, notice_s))

    def missed(self, event: Event) -> None:
        self._missed.labels(_kind(event)).inc()

    def step_ended(self, step: Step, phase: Phase, outcome: Outcome, took_s: float) -> None:
        word = "done" if outcome.ok else "failed"
        self._durations.labels(step.name, phase.value, word).observe(max(0.0, took_s))

    def step_cut(self, step: Step, event: Event) -> None:
        self._cuts.labels(step.name).inc()

    def approved(self, event: Event) -> None:
        self._approvals.labels(_kind(event)).inc()

    def gone(self, event: Event, outcome: str) -> None:
        self._gone.labels(_kind(event), outcome if outcome in _ENDINGS else Ending.UNKNOWN).inc()

    def exposition(self, standing: Standing) -> bytes:
        """Everything, as Prometheus reads it, with how things stand now."""
        listed = [_kind(event) for event in standing.listed]
        for kind in KINDS:
            self._pending.labels(kind).set(listed.count(kind))
        self._in_maintenance.set(standing.in_maintenance)
        self._ready.set(not standing.holds)
        return generate_latest(_Plain(self._registry))


class _Plain(Collector):
    """Without the `_created` series: twice the size, and nobody asks for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _begun(metric: M, labels: Mapping[str, tuple[str, ...]]) -> M:
    """With every combination of its labels: rates and alerts need them before the first time."""
    for values in product(*labels.values()) if labels else ():
        metric.labels(*values)
    return metric


def _kind(event: Event) -> str:
    return event.kind if event.kind in KINDS else OTHER
