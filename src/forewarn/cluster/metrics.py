"""Metrics of a control node of a cluster, which it has in every role: lease, takeovers, copy, clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forewarn.metadata.metrics import new_registry, render_text

_HELD_HELP = "1 if this control node holds the lease and may act; 0 if it is a standby, or suspended."
_TERM_HELP = "The term of the lease that this control node holds; 0 if it holds none."
_MARGIN_HELP = "How long this control node may still act without renewing its lease; 0 if it may not act."
_TAKEOVERS_HELP = "How often this process has become the active control node."
_KNOWN_HELP = "1 if this control node knows which node is active, itself or another one."
_REACHABLE_HELP = "1 if the last call of this control node to the record in PostgreSQL succeeded."
_COPY_HELP = "The number of the last group of writes in this control node's copy of the record."
_FOLLOWS_HELP = (
    "1 if this control node can bring its copy of the record up to date; 0 if not, e.g. if its disk is full."
)
_LOST_HELP = "1 if PostgreSQL has lost acknowledged commits, for a day after every scope got a new epoch."
_CLOCK_HELP = "How far this machine's clock is ahead of that of PostgreSQL, in seconds; negative if it is behind."


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlNodeFigures:
    """What the metrics of a control node of a cluster show, at one time."""

    is_held: bool = False  # it holds the lease, and is sure of it, so that it may act
    term: int = 0  # the number of the lease that it holds; 0: none
    margin_s: float = 0.0  # real seconds for which it may still act without a renewal; shown as 0 if negative
    takeovers: int = 0  # how often this process has become active
    knows_active: bool = False  # it knows which node is active, itself or another one
    record_is_reachable: bool = False  # it has its lease and is sure of it; without one: its last look found the record
    copy_number: int = 0  # number of the last group of writes in its copy; 0: none yet
    copy_follows: bool = False  # it has the lease, or its last look at the record and attempt to take it did not fail
    has_lost_commits: bool = False  # the record is known to have lost some
    clock_difference_s: float = 0.0  # how far its clock was ahead of the record's server when it was last not active


class ControlNodeMetrics(Collector):
    """The Prometheus metrics of a control node; `read` returns its figures at each scrape."""

    def __init__(self, read: Callable[[], ControlNodeFigures]) -> None:
        self._read = read
        self._registry = new_registry()
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the control node's metrics as Prometheus text, without those that every process has."""
        return render_text(self)

    def render_process(self) -> bytes:
        """Return the control node's metrics, and those that every process has, as Prometheus text."""
        return render_text(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registering this collector reads no figures."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of one scrape, with the figures of this moment: gauges and a counter."""
        figures = self._read()
        yield GaugeMetricFamily("forewarn_lease_held", _HELD_HELP, value=figures.is_held)
        yield GaugeMetricFamily("forewarn_lease_term", _TERM_HELP, value=figures.term)
        yield GaugeMetricFamily("forewarn_lease_margin_seconds", _MARGIN_HELP, value=max(0.0, figures.margin_s))
        yield CounterMetricFamily("forewarn_lease_takeovers_total", _TAKEOVERS_HELP, value=figures.takeovers)
        yield GaugeMetricFamily("forewarn_active_node_known", _KNOWN_HELP, value=figures.knows_active)
        yield GaugeMetricFamily("forewarn_record_reachable", _REACHABLE_HELP, value=figures.record_is_reachable)
        yield GaugeMetricFamily("forewarn_copy_number", _COPY_HELP, value=figures.copy_number)
        yield GaugeMetricFamily("forewarn_copy_follows", _FOLLOWS_HELP, value=figures.copy_follows)
        yield GaugeMetricFamily("forewarn_record_lost_commits", _LOST_HELP, value=figures.has_lost_commits)
        yield GaugeMetricFamily("forewarn_clock_difference_seconds", _CLOCK_HELP, value=figures.clock_difference_s)
