"""Prometheus metrics of the requests of VMs, read from the request counters at each scrape.

Every series exists from the first scrape on, because all label values are known in advance.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from prometheus_client import CollectorRegistry, Gauge, Info, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.metadata.request_counters import (
    APPROVAL,
    INSTANCE,
    NO_VERSION,
    OTHER,
    POLL,
    RESET_STATUS,
    TOKEN,
    UNKNOWN_CALLER,
    UNKNOWN_VERSION,
    RequestTotals,
)
from forewarn.protocol.versions import ALL_VERSIONS

CODE_LABELS = ("200", "304", "429", "4xx", "5xx", "reset")  # values of `code`; 4xx: others than 429
VERSION_LABELS = (*ALL_VERSIONS, UNKNOWN_VERSION, NO_VERSION)  # values of the label `version`
REQUEST_LABELS = {  # kind of request → value of the label `route`
    APPROVAL: "approval",
    INSTANCE: "instance",
    TOKEN: "token",
    UNKNOWN_CALLER: "unknown_caller",
    OTHER: "other",
}

_POLLS_HELP = (
    "Polls for scheduled events, by api-version (other: one that does not exist, none: not given) and status code "
    "(reset: a fault reset the connection)."
)
_REQUESTS_HELP = (
    "Other requests, by what they are for and status code; unknown_caller: all requests of callers that are not VMs "
    "of the fleet."
)
_WAITING_HELP = "Requests that wait for their response: long polls, and delayed first answers."
_CONNECTIONS_HELP = "Open connections of VMs."
_OPENED_HELP = "Connections of VMs that were accepted, or refused because the VM had too many."
_LOST_HELP = "Deliveries of events to VMs that were not recorded, because too many waited for the store."


class RequestMetrics(Collector):
    """The metrics of requests and connections of VMs, read from what `totals()` returns at each scrape."""

    def __init__(self, totals: Callable[[], RequestTotals]) -> None:
        self._request_totals = totals

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registering this collector reads no counters."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        totals = self._request_totals()
        polls: Counter[tuple[str, ...]] = Counter()
        others: Counter[tuple[str, ...]] = Counter()
        for of, version, status, times in totals.answered:
            if of == POLL:
                polls[version, _code_label(status)] += times
            else:
                others[REQUEST_LABELS.get(of, OTHER), _code_label(status)] += times

        yield _counter_family("polls", _POLLS_HELP, {"version": VERSION_LABELS, "code": CODE_LABELS}, polls)
        yield _counter_family(
            "requests", _REQUESTS_HELP, {"route": (*REQUEST_LABELS.values(),), "code": CODE_LABELS}, others
        )
        accepted = {("accepted",): totals.accepted, ("refused",): totals.refused}
        yield _counter_family(
            "connections_opened", _OPENED_HELP, {"outcome": ("accepted", "refused")}, Counter(accepted)
        )
        yield _counter_family("deliveries_lost", _LOST_HELP, {}, Counter({(): totals.lost}))
        yield GaugeMetricFamily("forewarn_long_polls_waiting", _WAITING_HELP, value=totals.held)
        yield GaugeMetricFamily("forewarn_connections", _CONNECTIONS_HELP, value=totals.connections)


def _counter_family(
    name: str, text: str, labels: dict[str, tuple[str, ...]], counts: Counter[tuple[str, ...]]
) -> Metric:
    family = CounterMetricFamily(f"forewarn_{name}", text, labels=tuple(labels))
    for values in product(*labels.values()):
        family.add_metric(values, counts[values])
    return family


def _code_label(status: int) -> str:
    if status == RESET_STATUS:
        return "reset"
    if status == 429:
        return "429"
    return str(status) if status in (200, 304) else f"{status // 100}xx" if status >= 400 else "200"


# Metric registries, one per process, their rendering as text, and the metrics of a worker.
#
# Kept apart from `web.metrics`, so that a worker loads neither `control` nor `web`.


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
