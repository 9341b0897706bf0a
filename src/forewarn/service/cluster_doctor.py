"""Checks of `forewarn doctor` for a cluster: the other control nodes, clocks, the record and the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from forewarn.cluster.bus import Bus
from forewarn.errors import ForewarnError
from forewarn.service.doctor import DoctorCheck
from forewarn.service.node_roles import can_take_over
from forewarn.web.dependencies import ControlNodeView
from forewarn.web.node_views import NodeView, nodes_view

_MAX_BEHIND = 1000  # groups of writes; a standby that lacks more needs seconds to take over

ExamineRecord = Callable[[str], Sequence[str]]  # returns what is wrong with the record at a URL; blocks


def record_problems(url: str) -> Sequence[str]:
    """Examine the record (PostgreSQL) at this URL; return what is wrong, as sentences. Blocks.

    The result is empty if all is well. Raises Rejected or Refused if the URL or the database is not right,
    RecordUnavailable if it does not answer now.
    """
    from forewarn.store.record_report import examine_record

    return examine_record(url).problems


async def cluster_checks(
    node: ControlNodeView, store: str, bus: Bus | None, examine: ExamineRecord = record_problems
) -> list[DoctorCheck]:
    """Check the control nodes, the record (PostgreSQL) at the URL `store`, and the bus.

    Returns, in this order: a failed check for each node with a problem (named like the node; also one that ended within
    the last week), one check of whether another node can take over, one of the record and, unless `bus` is None, one of
    the bus. `node` is this control node. A record that cannot be examined is a failed check, not an error. `examine`
    returns the record's problems; it runs in a thread.
    """
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
