"""Views of the control nodes of a cluster, for the API, the command line and the portal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forewarn.core.control_node import NodeRow
from forewarn.web.dependencies import ControlNodeView

SILENT_AFTER_S = 10.0  # a node that has not described itself for longer is shown as silent


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A control node of a cluster, as it last described itself."""

    name: str  # unique in the cluster
    url: str  # where the other nodes reach it
    role: str  # standby, starting, active, suspended or stopping; `silent` if it has not been seen for 10 s
    version: str  # the version of forewarn
    number: int  # the number of the last group of writes in its copy
    behind: int  # how many groups of writes its copy lacks, of those that a node is known to have
    last_seen_ago_s: float  # seconds of real time since it described itself
    problem: str = ""  # a sentence, such as why it cannot take over or write, or that commits were lost; "": none


class NodesView(msgspec.Struct, frozen=True, kw_only=True):
    """The control nodes of a cluster, sorted by name; none for a service that runs alone."""

    active: str  # the name of the node that has the lease, as far as known; "": none has, or the service runs alone
    term: int  # the term of that lease; 0 if `active` is ""
    nodes: tuple[NodeView, ...]  # sorted by name


def nodes_view(node: ControlNodeView | None) -> NodesView:
    """Return the view of all control nodes of the cluster, as `node`, the one that answers, knows them."""
    if node is None:
        return NodesView(active="", term=0, nodes=())
    return NodesView(active=node.active_name, term=node.active_term, nodes=_node_list(node.nodes))


def _node_list(rows: Sequence[NodeRow]) -> tuple[NodeView, ...]:
    newest = max((row.number for row in rows), default=0)
    return tuple(_node_view(row, newest) for row in rows)


def _node_view(row: NodeRow, newest: int) -> NodeView:
    is_silent = row.last_seen_ago_s > SILENT_AFTER_S
    problem = row.status
    if is_silent and not problem:
        problem = "it is not running, or cannot reach PostgreSQL: start it, or read its log"
    return NodeView(
        name=row.name,
        url=row.url,
        role="silent" if is_silent else row.role,
        version=row.version,
        number=row.number,
        behind=max(0, newest - row.number),
        last_seen_ago_s=round(row.last_seen_ago_s, 1),
        problem=problem,
    )
