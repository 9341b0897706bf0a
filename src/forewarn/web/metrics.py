"""Metrics of the process that owns the store: events, fleet, reconciler, workers, webhooks.

Labels are few and known in advance, never a VM's name, and every series exists from the first scrape. Counts over
the whole fleet are made at most every few seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forewarn.control.control_plane import ControlPlane
from forewarn.control.executor import ActExecutor
from forewarn.core.event import Event
from forewarn.core.explain.polling import PollingState
from forewarn.core.unannounced import UnannouncedKind
from forewarn.metadata.metrics_registry import new_registry, render_text
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.request_metrics import RequestMetrics
from forewarn.web.event_metrics import EventMetrics
from forewarn.web.polling_report import PollingReport

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
