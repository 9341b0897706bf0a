"""Metrics of host nodes: those of a node itself, and those that the service has of all its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forewarn.metadata.metrics import RequestMetrics, new_registry, render_text
from forewarn.metadata.request_counters import RequestTotals

_SILENT_S = 3.0


class MeasuredNode(Protocol):
    """What the metrics read of a host node, the process that answers the VMs of one host."""

    def request_totals(self) -> RequestTotals:
        """Return the counts of VMs' requests since the node began to serve; zeros while it does not serve."""

    def silent_s(self) -> float:
        """Return the seconds of real time since the node last heard the service; infinity if it never did."""

    @property
    def joins(self) -> Mapping[str, int]:
        """How often the node had to ask the service for the complete state, by reason, such as `gap`."""

    @property
    def vm_count(self) -> int:
        """How many VMs the node knows, on its host or on their way to it; 0 before its first complete state."""

    @property
    def orders_refused(self) -> int:
        """How many orders of an older term the node's process has refused since its start."""


class NodeMetrics:
    """The metrics of a host node's process; `node` returns the host node, or None while it is starting."""

    def __init__(self, node: Callable[[], MeasuredNode | None]) -> None:
        self._registry = new_registry()
        self._registry.register(
            RequestMetrics(lambda: found.request_totals() if (found := node()) else RequestTotals())
        )
        self._registry.register(_NodeCollector(node))

    async def render(self) -> bytes:
        """Return the metrics of this host node as Prometheus text, read now."""
        return render_text(self._registry)


class HostNodesCollector(Collector):
    """The metrics that a service has of all its host nodes, read at each scrape."""

    def __init__(self, nodes: Callable[[], list[dict[str, Any]]]) -> None:
        self._nodes = nodes

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registering this collector asks for no nodes."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counts = dict.fromkeys(("answering", "silent", "stopped"), 0)
        oldest_s = 0.0
        for node in self._nodes():
            is_silent = node["silent_s"] > _SILENT_S
            counts["stopped" if node["stopped"] else "silent" if is_silent else "answering"] += 1
            if is_silent and not node["stopped"]:
                oldest_s = max(oldest_s, node["silent_s"])
        family = GaugeMetricFamily(
            "forewarn_host_nodes", "Host nodes that have joined since the start, by their state.", labels=["state"]
        )
        for state, count in counts.items():
            family.add_metric([state], count)
        yield family
        yield GaugeMetricFamily(
            "forewarn_host_node_silent_oldest_seconds",
            "How long the host node that has been silent longest was not heard, in real time; 0 if none is silent.",
            value=oldest_s,
        )


class _NodeCollector(Collector):
    def __init__(self, node: Callable[[], MeasuredNode | None]) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node()
        if node is None:
            return
        yield GaugeMetricFamily(
            "forewarn_node_service_silent_seconds",
            "On a host node: time since it last heard the active service, in real time.",
            value=node.silent_s(),
        )
        yield GaugeMetricFamily("forewarn_node_vms", "On a host node: the VMs that it serves.", value=node.vm_count)
        joins = CounterMetricFamily(
            "forewarn_node_joins", "On a host node: how often it asked for the complete state.", labels=["reason"]
        )
        for reason, count in node.joins.items():
            joins.add_metric([reason], count)
        yield joins
        yield CounterMetricFamily(
            "forewarn_node_orders_refused",
            "On a host node: orders of a deposed control node that it did not carry out.",
            value=node.orders_refused,
        )
