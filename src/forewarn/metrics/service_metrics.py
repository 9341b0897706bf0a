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
from forewarn.core.event import Event
from forewarn.explain.polling import PollingState
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metrics.events import EventMetrics
from forewarn.metrics.registry import new_registry, render_text
from forewarn.metrics.requests import RequestMetrics
from forewarn.web.polling_report import PollingReport

FLEET_COUNT_MAX_AGE_S = 5.0  # for so long a count over the whole fleet is good enough

_VMS_HELP = "Present VMs by whether they ask for events: now is within the last minute, off those that do not run."
_VMS_UNPREPARED_HELP = "VMs with a scheduled event that nobody in their scope was given, and nobody is about to be."
_SCOPES_ASKING_HELP = "Enabled scopes of which any VM asks now; nobody is told of what is announced to the others."
_SCOPES_UNWATCHED_HELP = "Scopes with a scheduled event of which no VM asks now."
_RECONCILER_LAG_HELP = "How late the oldest thing is that is due, in lab time; 0 while nothing is."
_WORKER_SILENT_HELP = (
    "For how long what the owner said to a worker has not been answered; infinite while there is none."
)
_WORKER_LAG_HELP = "How long what the owner said last took to be done in a worker."

WorkerLags = Callable[[], list[tuple[float, float]]]  # of each worker: how far behind it is, for how long it is silent


class ServiceMetrics:
    """`show` tells everything, with what all workers have counted; `show_own` leaves that to them, if there are any.

    `attend` counts over the whole fleet, given the events that are not over.
    """

    def __init__(
        self,
        control: ControlPlane,
        *,
        counted: Callable[[], RequestTotals],
        behind: WorkerLags,
        attend: Callable[[Sequence[Event]], Awaitable[PollingReport]],
    ) -> None:
        self._control, self._worker_lags, self._count_polling = control, behind, attend
        self._registry = new_registry()
        self._request_metrics = RequestMetrics(counted)
        self._event_metrics = EventMetrics(self._registry, control.store)
        self._collector = _ServiceCollector(control, behind)
        self._registry.register(self._collector)
        self._fleet_count_lock = asyncio.Lock()
        self._fleet_counted_at = -math.inf

    def close(self) -> None:
        self._event_metrics.close()

    async def render_all(self) -> bytes:
        return await self._render() + render_text(self._request_metrics)

    async def render_own(self) -> bytes:
        return await (self._render() if self._worker_lags() else self.render_all())

    async def _render(self) -> bytes:
        async with self._fleet_count_lock:
            if monotonic() - self._fleet_counted_at > FLEET_COUNT_MAX_AGE_S:
                self._collector.polling_report = await self._count_polling(self._event_metrics.live_events)
                self._fleet_counted_at = monotonic()
        self._event_metrics.refresh(self._control.clock.now())
        return render_text(self._registry)


class _ServiceCollector(Collector):
    """What is read off the house when somebody looks."""

    def __init__(self, control: ControlPlane, behind: WorkerLags) -> None:
        self._control, self._worker_lags = control, behind
        self.polling_report: PollingReport | None = None

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._fleet_metrics()
        yield from self._control_metrics()
        yield from self._worker_metrics()
        yield from self._webhook_metrics()

    def _fleet_metrics(self) -> Iterator[Metric]:
        seen = self.polling_report
        if seen is None:
            return
        vms = GaugeMetricFamily("forewarn_vms", _VMS_HELP, labels=["asks"])
        for word in PollingState:
            vms.add_metric([word.value], seen.vms_by_polling[word])
        yield vms
        yield GaugeMetricFamily("forewarn_vms_unprepared", _VMS_UNPREPARED_HELP, value=seen.unprepared_vms)
        yield GaugeMetricFamily("forewarn_scopes_enabled", "Scopes that are enabled.", value=seen.enabled_scopes)
        yield GaugeMetricFamily("forewarn_scopes_asking", _SCOPES_ASKING_HELP, value=seen.polling_scopes)
        yield GaugeMetricFamily("forewarn_scopes_unwatched", _SCOPES_UNWATCHED_HELP, value=seen.unwatched_scopes)

    def _control_metrics(self) -> Iterator[Metric]:
        control = self._control
        next_wake, now = control.reconciler.next_wake_at(), control.clock.now()
        lag_s = max(0.0, now - next_wake) if next_wake is not None else 0.0
        yield GaugeMetricFamily("forewarn_reconciler_lag_seconds", _RECONCILER_LAG_HELP, value=lag_s)
        failed = "Writes that trouble with the store undid."
        yield CounterMetricFamily("forewarn_store_write_failures", failed, value=control.store.failed_writes())
        yield GaugeMetricFamily("forewarn_acts_at_work", "Acts being performed.", value=control.executor.running_acts)
        faults = len(control.faults.active.faults)
        yield GaugeMetricFamily("forewarn_faults", "Faults that are set.", value=faults)
        now_text = "Lab time, in seconds since 1970."
        yield GaugeMetricFamily("forewarn_lab_time_seconds", now_text, value=now)

    def _worker_metrics(self) -> Iterator[Metric]:
        stale = GaugeMetricFamily("forewarn_worker_silent_seconds", _WORKER_SILENT_HELP, labels=["worker"])
        behind = GaugeMetricFamily("forewarn_worker_lag_seconds", _WORKER_LAG_HELP, labels=["worker"])
        for number, (behind_s, silent_s) in enumerate(self._worker_lags(), start=1):
            stale.add_metric([str(number)], silent_s)
            behind.add_metric([str(number)], behind_s)
        yield from (stale, behind)

    def _webhook_metrics(self) -> Iterator[Metric]:
        reports = [
            self._control.webhook_delivery.delivery_report(webhook) for webhook in self._control.store.webhooks()
        ]
        waiting, failing = sum(r.pending for r in reports), sum(r.failures > 0 for r in reports)
        yield GaugeMetricFamily("forewarn_webhooks", "Webhooks that are told what happens.", value=len(reports))
        told = "Messages that wait to be told to webhooks; of each webhook a thousand entries are looked at."
        yield GaugeMetricFamily("forewarn_webhook_messages_waiting", told, value=waiting)
        yield GaugeMetricFamily("forewarn_webhooks_failing", "Webhooks whose last telling failed.", value=failing)
