"""Registries of metrics, one per process, so that two services in one process do not meet; and their text."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Info, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.metadata.counted import Counted
from forewarn.metadata.metrics import RequestMetrics


def a_registry() -> CollectorRegistry:
    """With what every process tells of itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = {"version": __version__, "python": platform.python_version()}
    Info("forewarn_build", "The program itself.", registry=registry).info(info)
    return registry


def text_of(registry: Collector) -> bytes:
    return generate_latest(_Plain(registry))


class WorkerMetrics:
    """Of one worker: what it answers, and whether it still hears of what changes."""

    def __init__(self, *, counted: Callable[[], Counted], silent_s: Callable[[], float]) -> None:
        self._registry = a_registry()
        self._registry.register(RequestMetrics(counted))
        heard = Gauge("forewarn_worker_heard_seconds", "Since the owner last said anything.", registry=self._registry)
        heard.set_function(silent_s)

    async def show(self) -> bytes:
        return text_of(self._registry)


class _Plain(Collector):
    """Without the `_created` series: twice the size, and nobody asks for them."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
