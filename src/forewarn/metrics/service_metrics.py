"""What Prometheus is told of a service by the process that owns it.

Labels are few and known, never a VM's name, and every series is there from the first scrape on. What would have to be
counted over the whole fleet is counted at most every few seconds, however many ask.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forewarn.assembly.eventmeter import EventMeter
from forewarn.assembly.registry import a_registry, text_of
from forewarn.console.survey import Attendance
from forewarn.control.control import Control
from forewarn.core.attention import Asks
from forewarn.core.event import Event
from forewarn.metadata.counted import Counted
from forewarn.metadata.metrics import RequestMetrics

FRESH_S = 5.0  # for so long a count over the whole fleet is good enough

_ASKING = "Present VMs by whether they ask for events: now is within the last minute, off those that do not run."
_UNPREPARED = "VMs with a scheduled event that nobody in their scope was given, and nobody is about to be."
_ASKED = "Enabled scopes of which any VM asks now; nobody is told of what is announced to the others."
_UNWATCHED = "Scopes with a scheduled event of which no VM asks now."
_LAG = "How late the oldest thing is that is due, in lab time; 0 while nothing is."
_STALE = "For how long what the owner said to a worker has not been answered; infinite while there is none."
_BEHIND = "How long what the owner said last took to be done in a worker."


Behind = Callable[[], list[tuple[float, float]]]  # of each worker: how far behind it is, for how long it is silent


class OwnerMetrics:
    """`show` tells everything, with what all workers have counted; `show_own` leaves that to them, if there are any.

    `attend` counts over the whole fleet, given the events that are not over.
    """

    def __init__(
        self,
        control: Control,
        *,
        counted: Callable[[], Counted],
        behind: Behind,
        attend: Callable[[Sequence[Event]], Awaitable[Attendance]],
    ) -> None:
        self._control, self._behind, self._attend = control, behind, attend
        self._registry = a_registry()
        self._requests = RequestMetrics(counted)
        self._events = EventMeter(self._registry, control.store)
        self._house = _HouseMetrics(control, behind)
        self._registry.register(self._house)
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf

    def close(self) -> None:
        self._events.close()

    async def show(self) -> bytes:
        return await self._show() + text_of(self._requests)

    async def show_own(self) -> bytes:
        return await (self._show() if self._behind() else self.show())

    async def _show(self) -> bytes:
        async with self._looking:
            if monotonic() - self._looked_at > FRESH_S:
                self._house.attendance = await self._attend(self._events.live)
                self._looked_at = monotonic()
        self._events.look(self._control.clock.now())
        return text_of(self._registry)


class _HouseMetrics(Collector):
    """What is read off the house when somebody looks."""

    def __init__(self, control: Control, behind: Behind) -> None:
        self._control, self._behind = control, behind
        self.attendance: Attendance | None = None

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._fleet()
        yield from self._work()
        yield from self._workers()
        yield from self._webhooks()

    def _fleet(self) -> Iterator[Metric]:
        seen = self.attendance
        if seen is None:
            return
        vms = GaugeMetricFamily("forewarn_vms", _ASKING, labels=["asks"])
        for word in Asks:
            vms.add_metric([word.value], seen.asks[word])
        yield vms
        yield GaugeMetricFamily("forewarn_vms_unprepared", _UNPREPARED, value=seen.unprepared)
        yield GaugeMetricFamily("forewarn_scopes_enabled", "Scopes that are enabled.", value=seen.enabled)
        yield GaugeMetricFamily("forewarn_scopes_asking", _ASKED, value=seen.asking)
        yield GaugeMetricFamily("forewarn_scopes_unwatched", _UNWATCHED, value=seen.unwatched)

    def _work(self) -> Iterator[Metric]:
        control = self._control
        next_wake, now = control.reconciler.next_wake(), control.clock.now()
        lag_s = max(0.0, now - next_wake) if next_wake is not None else 0.0
        yield GaugeMetricFamily("forewarn_reconciler_lag_seconds", _LAG, value=lag_s)
        failed = "Writes that trouble with the store undid."
        yield CounterMetricFamily("forewarn_store_write_failures", failed, value=control.store.failed_writes())
        yield GaugeMetricFamily("forewarn_acts_at_work", "Acts being performed.", value=control.executor.at_work)
        faults = len(control.faults.book.faults)
        yield GaugeMetricFamily("forewarn_faults", "Faults that are set.", value=faults)
        now_text = "Lab time, in seconds since 1970."
        yield GaugeMetricFamily("forewarn_lab_time_seconds", now_text, value=now)

    def _workers(self) -> Iterator[Metric]:
        stale = GaugeMetricFamily("forewarn_worker_silent_seconds", _STALE, labels=["worker"])
        behind = GaugeMetricFamily("forewarn_worker_lag_seconds", _BEHIND, labels=["worker"])
        for number, (behind_s, silent_s) in enumerate(self._behind(), start=1):
            stale.add_metric([str(number)], silent_s)
            behind.add_metric([str(number)], behind_s)
        yield from (stale, behind)

    def _webhooks(self) -> Iterator[Metric]:
        reports = [self._control.outbox.report(webhook) for webhook in self._control.store.webhooks()]
        waiting, failing = sum(r.pending for r in reports), sum(r.failures > 0 for r in reports)
        yield GaugeMetricFamily("forewarn_webhooks", "Webhooks that are told what happens.", value=len(reports))
        told = "Messages that wait to be told to webhooks; of each webhook a thousand entries are looked at."
        yield GaugeMetricFamily("forewarn_webhook_messages_waiting", told, value=waiting)
        yield GaugeMetricFamily("forewarn_webhooks_failing", "Webhooks whose last telling failed.", value=failing)
