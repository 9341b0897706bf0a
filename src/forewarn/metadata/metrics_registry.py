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
from forewarn.metadata.request_metrics import RequestMetrics


def new_registry() -> CollectorRegistry:
    """Return a new registry with the metrics that every process has: CPU, memory, open files, version."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = {"version": __version__, "python": platform.python_version()}
    Info(
        "forewarn_build", "Always 1; the labels are the versions of the program and of Python.", registry=registry
    ).info(info)
    return registry


def render_text(registry: Collector) -> bytes:
    """Return the current metrics of a registry or collector as Prometheus text, without `_created` series."""
    return generate_latest(_WithoutCreatedSeries(registry))


class WorkerMetrics:
    """The metrics of a worker process: the requests it answered, and how long its owner has been silent."""

    def __init__(self, *, request_totals: Callable[[], RequestTotals], silent_s: Callable[[], float]) -> None:
        self._registry = new_registry()
        self._registry.register(RequestMetrics(request_totals))
        silence = Gauge(
            "forewarn_worker_last_message_seconds",
            "On a worker's own port: time since the worker last received a message from the owner, in real time.",
            registry=self._registry,
        )
        silence.set_function(silent_s)

    async def render(self) -> bytes:
        """Return the metrics of this worker as Prometheus text, read now."""
        return render_text(self._registry)


class _WithoutCreatedSeries(Collector):
    """Leaves out the `_created` series, which double the size and have no reader."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
