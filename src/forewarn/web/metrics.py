"""Metrics of the process that owns the store: events, fleet, reconciler, workers, webhooks.

Labels are few and known in advance, never a VM's name, and every series exists from the first scrape. Counts over
the whole fleet are made at most every few seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter as Counts
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from time import monotonic
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forewarn.control.control_plane import ControlPlane
from forewarn.control.executor import ActExecutor
from forewarn.core.cause import Verb
from forewarn.core.event import Act, Ending, Event, EventState
from forewarn.core.explain.polling import PollingState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.unannounced import UnannouncedKind
from forewarn.metadata.metrics import RequestMetrics, new_registry, render_text
from forewarn.metadata.request_counters import RequestTotals
from forewarn.protocol.document import Kind
from forewarn.store.interface import AppliedCommit, Store
from forewarn.web.polling_report import PollingReport

MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


# Event metrics, counted at each commit: notice promised and given, approvals, starts, endings, acts.
#
# All times are lab time. Events are tracked while they are live; nothing from before the start is counted again.

EVENT_TYPES = tuple(kind.value for kind in Kind)  # values of the label `kind`
LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)  # of events that are not over; label `state`
START_REASONS = ("approved", "due", "without_notice", "early")  # values of the label `reason`
# A second more than the usual notices, because NotBefore is rounded up to a whole second.
_NOTICE_BUCKETS_S = (6, 16, 31, 61, 301, 601, 901, 1_801, 3_601, 86_401, 604_801)
_STARTED_BUCKETS_S = (1, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)
_TOLERANCE_S = 1.0  # documents show whole seconds

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
        """Set the gauges to the state at `now`; only events that documents list count."""
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


FLEET_COUNT_MAX_AGE_S = 5.0  # a count over the whole fleet is reused for this long

_VMS_HELP = (
    "VMs by whether they poll: now (within the last minute), stopped (earlier), never, or off (the VM does not run)."
)
_VMS_WITHOUT_HANDLER_HELP = (
    "VMs with a scheduled event that no VM of their scope was given, while no VM of the scope polls for it."
)
_ACTS_UNANSWERED_HELP = "Acts that the hypervisor has not answered for ten seconds of real time or longer."
_ACT_UNANSWERED_OLDEST_HELP = (
    "How long the oldest act without an answer has waited, in real time; 0 if none has waited ten seconds."
)
_ACTS_WAITING_HELP = "Due acts that wait because their host has too many calls without an answer."
_UNANNOUNCED_HELP = (
    "Changes of VMs and hosts that no act explains, by kind; counted from the start of the service. Only with a "
    "hypervisor that observes hosts (qemu, libvirt)."
)
_HOSTS_UNREACHABLE_HELP = "Hosts that do not answer the hypervisor; they have not failed, and their VMs may be running."
_VMS_DUPLICATED_HELP = "VMs that were last found active on several hosts at once, which destroys their disks."
_SCOPES_POLLING_HELP = "Scopes with at least one VM that polls now; events of other scopes reach no handler."
_SCOPES_UNWATCHED_HELP = "Scopes with a scheduled event but no VM that polls now."
_RECONCILER_LAG_HELP = "How late the oldest pending work of the reconciler is, in lab time; 0 if none is late."
_WORKER_SILENT_HELP = "Time since a worker last answered the owner, in real time; infinite if the worker is missing."
_WORKER_LAG_HELP = "Time that a worker took to apply the last message of the owner."

WorkerLags = Callable[[], list[tuple[float, float]]]  # per worker: its lag and its silence, in seconds


class ServiceMetrics:
    """The Prometheus metrics of the owner process: events, fleet, reconciler, requests, workers, webhooks."""

    def __init__(
        self,
        control: ControlPlane,
        *,
        request_totals: Callable[[], RequestTotals],
        worker_lags: WorkerLags,
        count_polling: Callable[[Sequence[Event]], Awaitable[PollingReport]],
    ) -> None:
        self._control, self._worker_lags, self._count_polling = control, worker_lags, count_polling
        self._registry = new_registry()
        self._request_metrics = RequestMetrics(request_totals)
        self._event_metrics = EventMetrics(self._registry, control.store)
        self._collector = _ServiceCollector(control, worker_lags)
        self._registry.register(self._collector)
        self._fleet_count_lock = asyncio.Lock()
        self._fleet_counted_at = -math.inf

    def register(self, collector: Collector) -> None:
        """Show the metrics of this collector too, from the next scrape on."""
        self._registry.register(collector)

    def close(self) -> None:
        """Stop following the commits of the store; counters of events no longer grow."""
        self._event_metrics.close()

    async def render_all(self) -> bytes:
        """Return all metrics as Prometheus text, with the requests that all processes, workers too, answered."""
        return await self._render() + render_text(self._request_metrics)

    async def render_own(self) -> bytes:
        """Return the metrics of this process as Prometheus text; without workers, the same as `render_all`."""
        return await (self._render() if self._worker_lags() else self.render_all())

    async def _render(self) -> bytes:
        async with self._fleet_count_lock:
            if monotonic() - self._fleet_counted_at > FLEET_COUNT_MAX_AGE_S:
                self._collector.polling_report = await self._count_polling(self._event_metrics.live_events)
                self._fleet_counted_at = monotonic()
        self._event_metrics.refresh(self._control.clock.now())
        return render_text(self._registry)


class _ServiceCollector(Collector):
    def __init__(self, control: ControlPlane, worker_lags: WorkerLags) -> None:
        self._control, self._worker_lags = control, worker_lags
        self.polling_report: PollingReport | None = None

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._fleet_metrics()
        yield from self._control_metrics()
        yield from self._worker_metrics()
        yield from self._webhook_metrics()

    def _fleet_metrics(self) -> Iterator[Metric]:
        report = self.polling_report
        if report is None:
            return
        vms = GaugeMetricFamily("forewarn_vms", _VMS_HELP, labels=["polling"])
        for state in PollingState:
            vms.add_metric([state.value], report.vms_by_polling[state])
        yield vms
        yield GaugeMetricFamily(
            "forewarn_vms_without_handler", _VMS_WITHOUT_HANDLER_HELP, value=report.vms_without_handler
        )
        yield GaugeMetricFamily(
            "forewarn_scopes_enabled", "Scopes with scheduled events enabled.", value=report.enabled_scopes
        )
        yield GaugeMetricFamily("forewarn_scopes_polling", _SCOPES_POLLING_HELP, value=report.polling_scopes)
        yield GaugeMetricFamily("forewarn_scopes_unwatched", _SCOPES_UNWATCHED_HELP, value=report.unwatched_scopes)

    def _control_metrics(self) -> Iterator[Metric]:
        control = self._control
        next_wake, now = control.reconciler.next_wake_at(), control.clock.now()
        lag_s = max(0.0, now - next_wake) if next_wake is not None else 0.0
        yield GaugeMetricFamily("forewarn_reconciler_lag_seconds", _RECONCILER_LAG_HELP, value=lag_s)
        failed = "Writes that the store failed to make and undid; approvals among them were answered with 503."
        yield CounterMetricFamily("forewarn_store_write_failures", failed, value=control.store.failed_writes())
        yield from _act_metrics(control.executor)
        yield from _observation_metrics(control)
        faults = len(control.faults.active.faults)
        yield GaugeMetricFamily("forewarn_faults", "Faults that are active now.", value=faults)
        now_text = "The time of the service's clock, in seconds since 1970; a lab can move it."
        yield GaugeMetricFamily("forewarn_lab_time_seconds", now_text, value=now)

    def _worker_metrics(self) -> Iterator[Metric]:
        silence = GaugeMetricFamily("forewarn_worker_silent_seconds", _WORKER_SILENT_HELP, labels=["worker"])
        lag = GaugeMetricFamily("forewarn_worker_lag_seconds", _WORKER_LAG_HELP, labels=["worker"])
        for number, (lag_s, silent_s) in enumerate(self._worker_lags(), start=1):
            silence.add_metric([str(number)], silent_s)
            lag.add_metric([str(number)], lag_s)
        yield from (silence, lag)

    def _webhook_metrics(self) -> Iterator[Metric]:
        reports = [
            self._control.webhook_delivery.delivery_report(webhook) for webhook in self._control.store.webhooks()
        ]
        waiting, failing = sum(r.pending for r in reports), sum(r.failures > 0 for r in reports)
        yield GaugeMetricFamily("forewarn_webhooks", "Webhooks that are registered.", value=len(reports))
        waiting_help = (
            "Messages that wait for delivery to webhooks, counted up to a thousand history entries per webhook."
        )
        yield GaugeMetricFamily("forewarn_webhook_messages_waiting", waiting_help, value=waiting)
        yield GaugeMetricFamily("forewarn_webhooks_failing", "Webhooks whose last delivery failed.", value=failing)


def _observation_metrics(control: ControlPlane) -> Iterator[Metric]:
    changes = CounterMetricFamily("forewarn_unannounced_changes", _UNANNOUNCED_HELP, labels=["kind"])
    for kind in UnannouncedKind:
        changes.add_metric([kind.value], control.unannounced_changes.counts[kind])
    yield changes
    unreachable, duplicated = len(control.unreachable_hosts()), control.unannounced_changes.duplicate_count()
    yield GaugeMetricFamily("forewarn_hosts_unreachable", _HOSTS_UNREACHABLE_HELP, value=unreachable)
    yield GaugeMetricFamily("forewarn_vms_duplicated", _VMS_DUPLICATED_HELP, value=duplicated)


def _act_metrics(executor: ActExecutor) -> Iterator[Metric]:
    unanswered_s = executor.unanswered_s().values()
    waiting = len(executor.blocking_hosts())
    yield GaugeMetricFamily(
        "forewarn_acts_in_progress", "Acts that the hypervisor is performing now.", value=executor.running_acts
    )
    yield GaugeMetricFamily("forewarn_acts_unanswered", _ACTS_UNANSWERED_HELP, value=len(unanswered_s))
    yield GaugeMetricFamily(
        "forewarn_act_unanswered_oldest_seconds", _ACT_UNANSWERED_OLDEST_HELP, value=max(unanswered_s, default=0.0)
    )
    yield GaugeMetricFamily("forewarn_acts_waiting_for_host", _ACTS_WAITING_HELP, value=waiting)
