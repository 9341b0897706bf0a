"""Writes the tables of docs/reference/metrics.md (`make docs`).

Names, types, labels and label values are those of a first scrape, meanings are the help texts of the metrics.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.status import MaintenanceStatus
from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.base.times import RealTime
from forewarn.cluster.metrics import ControlNodeFigures, ControlNodeMetrics
from forewarn.cluster.stream_follower import JOIN_REASONS
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.directory import FleetDirectory
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from forewarn.metadata.metrics import WorkerMetrics, render_text
from forewarn.metadata.node_metrics import HostNodesCollector, NodeMetrics
from forewarn.metadata.request_counters import RequestTotals
from forewarn.store.memory import MemoryStore
from forewarn.web.metrics import ServiceMetrics
from forewarn.web.polling_report import polling_report

# The table of a metric is the first one of which a prefix matches; the last table takes the rest.
_SERVICE_TABLES: Mapping[str, tuple[str, ...]] = {
    "requests": ("polls", "requests", "long_polls", "connections", "sightings"),
    "unannounced": ("unannounced", "hosts_unreachable", "vms_duplicated"),
    "polling": ("vms", "scopes"),
    "events": ("event", "notice", "approval", "started"),
    "acts": ("act",),
    "service": ("",),
}
# Values of labels that depend on the installation.
_OPEN_VALUES = {
    "version": "the program's",
    "python": "its version",
    "worker": "its number, from 1",
    "step": "a step of the file",
    "verb": "[a verb](hypervisors.md)",
}
_NODE_PREFIXES = ("forewarn_node", "forewarn_host_node")
_TABLE = re.compile(r"(<!-- metrics: begin (\w+) .*? -->\n).*?(<!-- metrics: end -->)", re.DOTALL)


def with_metrics(page: str) -> str:
    """The text of docs/reference/metrics.md with new tables of metrics between its comments."""
    families = [*asyncio.run(_service_families()), *asyncio.run(_worker_families())]
    tables: dict[str, dict[str, Metric]] = {name: {} for name in _SERVICE_TABLES}
    for family in families:
        tables[_service_table(family.name)].setdefault(family.name, family)
    nodes = [each for each in asyncio.run(_node_families()) if each.name.startswith(_NODE_PREFIXES)]
    agent = _own_families(AgentMetrics(["drain"]).render(MaintenanceStatus()))
    rows = {name: list(table.values()) for name, table in tables.items()}
    rows |= {"nodes": nodes, "control": _control_node_families(), "agent": agent}
    return _TABLE.sub(lambda match: match[1] + _table(rows.pop(match[2])) + match[3], page)


async def _service_families() -> list[Metric]:
    """The metrics of a service with one worker and an empty fleet."""
    store, clock = (
        MemoryStore(),
        LabClock(ClockSetting(lab_at=0.0, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0)),
    )
    inputs = ControlInputs(
        new_id=lambda: "",
        polls=store.last_polls,
        real_time=lambda: RealTime(0.0),
        http_client=HttpClient(local_targets=LocalTargets.NONE),
    )
    hypervisor = SimulatedHypervisor(EffectLedger(None))
    control = ControlPlane(store=store, clock=clock, hypervisor=hypervisor, inputs=inputs)
    directory = FleetDirectory(store)
    metrics = ServiceMetrics(
        control,
        request_totals=RequestTotals,
        worker_lags=lambda: [(0.0, 0.0)],
        count_polling=lambda live: polling_report(directory, lambda key: None, list, live),
    )
    try:
        return _own_families(await metrics.render_all())
    finally:
        metrics.close()


async def _worker_families() -> list[Metric]:
    """The metrics of a worker, which serves them on a port of its own."""
    return _own_families(await WorkerMetrics(request_totals=RequestTotals, silent_s=lambda: 0.0).render())


async def _node_families() -> list[Metric]:
    """The metrics of a host node that has joined once, and those of a service with a bus."""
    node = _StartedNode()
    registry = CollectorRegistry()
    registry.register(HostNodesCollector(list))
    text = await NodeMetrics(lambda: node).render()
    return [*_own_families(text), *_own_families(render_text(registry))]


class _StartedNode:
    """A host node that has just joined."""

    joins: ClassVar[dict[str, int]] = dict.fromkeys(JOIN_REASONS, 1)
    vm_count = orders_refused = 0

    def request_totals(self) -> RequestTotals:
        return RequestTotals()

    def silent_s(self) -> float:
        return 0.0


def _control_node_families() -> list[Metric]:
    """The metrics that a control node of a cluster has beside those of the service."""
    return _own_families(ControlNodeMetrics(ControlNodeFigures).render())


def _own_families(text: bytes) -> list[Metric]:
    """The metrics of a scrape, without the standard ones of every Prometheus client."""
    families = text_string_to_metric_families(text.decode())
    return [family for family in families if family.name.startswith("forewarn_")]


def _service_table(name: str) -> str:
    short = name.removeprefix("forewarn_")
    return next(table for table, prefixes in _SERVICE_TABLES.items() if short.startswith(prefixes))


def _table(families: Iterable[Metric]) -> str:
    rows = ["| metric and labels | meaning |", "|---|---|"]
    for name, family in sorted((_sample_name(family), family) for family in families):
        note = " (histogram)" if family.type == "histogram" else ""
        rows.append(f"| `{name}` {_labels(family)}".rstrip() + f" | {family.documentation}{note} |")
    return "\n".join(rows) + "\n"


def _sample_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    """Each label of a metric with its values; kinds of events are named in the text of the page."""
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, {})[value] = None
    values.pop("le", None)  # the bucket of a histogram
    is_info = family.name.endswith("_info")
    texts: list[str] = []
    for label, found in values.items():
        if label == "kind" and not family.name.startswith("forewarn_unannounced"):
            texts.append("`kind`")
        elif label == "version" and not is_info:
            texts.append("`version`: an api-version, other, none")
        elif label in _OPEN_VALUES:
            texts.append(f"`{label}`: {_OPEN_VALUES[label]}")
        else:
            texts.append(f"`{label}`: {', '.join(found)}")
    return "; ".join(texts)
