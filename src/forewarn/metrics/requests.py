"""What Prometheus is told of the VMs' requests: read off what is counted anyway, when somebody looks.

Every series is there from the first scrape on, and none comes later: versions and outcomes are few and known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forewarn.metadata.counted import Counted
from forewarn.metadata.hall import RESET
from forewarn.metadata.sort import APPROVAL, INSTANCE, NO_VERSION, OTHER, POLL, STRANGE, TOKEN, UNKNOWN_VERSION
from forewarn.protocol.versions import VERSIONS

OUTCOMES = ("200", "304", "4xx", "5xx", "throttled", "reset")
POLLED_VERSIONS = (*VERSIONS, UNKNOWN_VERSION, NO_VERSION)
ASKED_FOR = {APPROVAL: "approval", INSTANCE: "instance", TOKEN: "token", STRANGE: "unknown_caller", OTHER: "other"}

_POLLS = "Polls for scheduled events, by the api-version they named and what they got."
_REQUESTS = "Other requests of VMs; those of callers that are none of the fleet's VMs are unknown_caller."
_WAITING = "Requests that are held: long polls, and first answers that take their time."
_CONNECTIONS = "Connections of VMs that are open."
_ACCEPTED = "Connections of VMs that were accepted or, beyond a VM's limit, refused."
_LOST = "Deliveries of events that could not be written down because too many waited for the store."


class RequestMetrics(Collector):
    def __init__(self, counted: Callable[[], Counted]) -> None:
        self._counted = counted

    def describe(self) -> Iterator[Metric]:
        """Nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counted = self._counted()
        polls: Counter[tuple[str, ...]] = Counter()
        others: Counter[tuple[str, ...]] = Counter()
        for of, version, status, times in counted.answered:
            if of == POLL:
                polls[version, _outcome(status)] += times
            else:
                others[ASKED_FOR.get(of, OTHER), _outcome(status)] += times

        yield _counter("polls", _POLLS, {"version": POLLED_VERSIONS, "outcome": OUTCOMES}, polls)
        yield _counter("requests", _REQUESTS, {"of": (*ASKED_FOR.values(),), "outcome": OUTCOMES}, others)
        accepted = {("accepted",): counted.accepted, ("refused",): counted.refused}
        yield _counter("connections_opened", _ACCEPTED, {"outcome": ("accepted", "refused")}, Counter(accepted))
        yield _counter("sightings_lost", _LOST, {}, Counter({(): counted.lost}))
        yield GaugeMetricFamily("forewarn_long_polls_waiting", _WAITING, value=counted.held)
        yield GaugeMetricFamily("forewarn_connections", _CONNECTIONS, value=counted.connections)


def _counter(name: str, text: str, labels: dict[str, tuple[str, ...]], counts: Counter[tuple[str, ...]]) -> Metric:
    family = CounterMetricFamily(f"forewarn_{name}", text, labels=tuple(labels))
    for values in product(*labels.values()):
        family.add_metric(values, counts[values])
    return family


def _outcome(status: int) -> str:
    if status == RESET:
        return "reset"
    if status == 429:
        return "throttled"
    return str(status) if status in (200, 304) else f"{status // 100}xx" if status >= 400 else "200"
