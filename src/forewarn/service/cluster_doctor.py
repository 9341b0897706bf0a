"""Checks of `forewarn doctor` for a cluster: the other control nodes, clocks, the record and the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from forewarn.cluster.bus import Bus
from forewarn.cluster.node_roles import can_take_over
from forewarn.errors import ForewarnError
from forewarn.service.doctor import DoctorCheck
from forewarn.web.dependencies import ControlNodeView
from forewarn.web.node_views import NodeView, nodes_view

_MAX_BEHIND = 1000  # groups of writes; a standby that lacks more needs seconds to take over

ExamineRecord = Callable[[str], Sequence[str]]  # returns what is wrong with the record at a URL; blocks


def record_problems(url: str) -> Sequence[str]:
    """Examine the record (PostgreSQL) at this URL; return what is wrong, as sentences. Blocks."""
    from forewarn.cluster.record_report import examine_record

    return examine_record(url).problems


async def cluster_checks(
    node: ControlNodeView, store: str, bus: Bus | None, examine: ExamineRecord = record_problems
) -> list[DoctorCheck]:
    """Check the control nodes, the record (PostgreSQL) at the URL `store`, and the bus."""
    nodes = nodes_view(node).nodes
    checks = [*_check_nodes(node.name, nodes)]
    try:
        problems = await asyncio.to_thread(examine, store)
    except ForewarnError as error:
        problems = (str(error),)
    checks.append(
        DoctorCheck(
            name="record",
            ok=not problems,
            text="; ".join(problems) or "the record in PostgreSQL is complete, and its standby follows",
            remedy="`forewarn store check` says more; look at the servers of PostgreSQL",
        )
    )
    if bus is not None:
        found = bus.problem or ("NATS answers" if bus.is_connected else "NATS cannot be reached")
        checks.append(
            DoctorCheck(
                name="bus",
                ok=bus.is_connected and not bus.problem,
                text=found,
                remedy="start the NATS servers, and compare their permissions with those of `forewarn cluster init`",
            )
        )
    return checks


def _check_nodes(name: str, nodes: Sequence[NodeView]) -> Iterator[DoctorCheck]:
    for node in nodes:
        if node.problem:
            yield DoctorCheck(
                name=node.name, ok=False, text=node.problem, remedy="`forewarn node list` shows all nodes"
            )
    ready = [node for node in nodes if node.name != name and can_take_over(node.role, node.problem)]
    near = [node for node in ready if node.behind <= _MAX_BEHIND]
    if near:
        names = ", ".join(f"{node.name} ({node.behind} behind)" for node in near)
        yield DoctorCheck(name="standby", ok=True, text=f"can take over: {names}")
    else:
        text = "no other control node can take over"
        if ready:
            text += f": {ready[0].name} is {ready[0].behind} groups of writes behind"
        remedy = "start another control node, or wait until it has caught up"
        yield DoctorCheck(name="standby", ok=False, text=text, remedy=remedy)
