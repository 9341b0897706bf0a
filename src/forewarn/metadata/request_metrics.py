"""Prometheus metrics of the requests of VMs, read from the request counters at each scrape.

Every series exists from the first scrape on, because all label values are known in advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

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
