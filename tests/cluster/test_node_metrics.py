"""Metrics of nodes: every documented series exists, and says what it means."""

from __future__ import annotations

import asyncio
import re

from forewarn.cluster.metrics import ControlNodeFigures, ControlNodeMetrics
from forewarn.metadata.metrics import render_text
from forewarn.metadata.node_metrics import HostNodesCollector, NodeMetrics
from tests.support.cluster_world import ClusterWorld, run_cluster
from tests.support.markdown_pages import ROOT
from tests.support.world import a_host, a_vm


def test_a_node_and_its_service_export_the_documented_metrics() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(forewarn_(?:node|host_node)\w*)` ", page, re.MULTILINE))

    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        await world.poll(node, "web")
        await asyncio.sleep(2)
        own = (await NodeMetrics(lambda: node.node).render()).decode()
        assert 'forewarn_node_joins_total{reason="start"} 1.0' in own
        assert "forewarn_node_vms 1.0" in own
        assert 'forewarn_polls_total{code="200",version="2020-07-01"} 1.0' in own
        nodes = render_text(HostNodesCollector(world.active.cluster.describe_nodes)).decode()
        assert 'forewarn_host_nodes{state="answering"} 1.0' in nodes
        exported = set(re.findall(r"^(forewarn_(?:node|host_node)\w*)", own + nodes, re.MULTILINE))
        assert exported == documented
        counted = world.active.cluster.request_totals()
        assert sum(row[-1] for row in counted.answered) == 1
        await node.kill()
        world.nodes.remove(node)
        await asyncio.sleep(30)
        nodes = render_text(HostNodesCollector(world.active.cluster.describe_nodes)).decode()
        assert 'forewarn_host_nodes{state="silent"} 1.0' in nodes
        await world.start_node("h1")
        assert sum(row[-1] for row in world.active.cluster.request_totals().answered) == 1

    run_cluster(scenario, vms=[a_vm("web", host="h1", address="10.0.0.1")], hosts=[a_host("h1")])


def test_a_control_node_exports_the_documented_metrics() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    page = page.partition("## Control nodes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(forewarn_\w+)` ", page, re.MULTILINE))
    figures = ControlNodeFigures(is_held=True, term=7, margin_s=-1.0, copy_number=12, clock_difference_s=-0.5)
    text = ControlNodeMetrics(lambda: figures).render().decode()
    assert set(re.findall(r"^(forewarn_\w+)", text, re.MULTILINE)) == documented
    for line in ("forewarn_lease_term 7.0", "forewarn_lease_margin_seconds 0.0", "forewarn_copy_number 12.0"):
        assert line in text
