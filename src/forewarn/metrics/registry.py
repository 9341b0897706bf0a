"""Metric registries, one per process, their rendering as text, and the metrics of a worker.

Kept apart from `service_metrics`, so that a worker loads neither `control` nor `web`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Info, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metrics.requests import RequestMetrics


def new_registry() -> CollectorRegistry:
    """With what every process tells of itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = {"version": __version__, "python": platform.python_version()}
    Info("forewarn_build", "The program itself.", registry=registry).info(info)
    return registry


def render_text(registry: Collector) -> bytes:
    return generate_latest(_WithoutCreatedSeries(registry))


class WorkerMetrics:
    """Of one worker: what it answers, and whether it still hears of what changes."""

    def __init__(self, *, counted: Callable[[], RequestTotals], silent_s: Callable[[], float]) -> None:
        self._registry = new_registry()
        self._registry.register(RequestMetrics(counted))
        heard = Gauge("forewarn_worker_heard_seconds", "Since the owner last said anything.", registry=self._registry)
        heard.set_function(silent_s)

    async def render(self) -> bytes:
        return render_text(self._registry)


class _WithoutCreatedSeries(Collector):
    """Without the `_created` series: twice the size, and nobody asks for them."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
