"""Control node handlers: list and show the nodes of a cluster, and let the active one resign."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forewarn.base.wording import did_you_mean
from forewarn.core.control_node import NodeRow
from forewarn.errors import NotFound, Refused
from forewarn.web.context import RequestContext
from forewarn.web.dependencies import ControlNodeView
from forewarn.web.request_parsing import HandlerCall

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


async def list_nodes(context: RequestContext, call: HandlerCall) -> NodesView:
    """List the control nodes of the cluster, and which one is active."""
    return nodes_view(context.dependencies.control_node)


async def show_node(context: RequestContext, call: HandlerCall) -> NodeView:
    """Show one control node."""
    wanted, view = call.path_params["name"], nodes_view(context.dependencies.control_node)
    found = next((node for node in view.nodes if node.name.casefold() == wanted.casefold()), None)
    if found is None:
        known = did_you_mean(wanted, [node.name for node in view.nodes])
        raise NotFound(f"control node {wanted!r} does not exist{known or ': GET /forewarn/v1/nodes lists them'}")
    return found


async def resign(context: RequestContext, call: HandlerCall) -> NodesView:
    """Let the active control node give control to another one."""
    node = context.dependencies.control_node
    if node is None:
        raise Refused("this service runs alone and is not part of a cluster: there is no other control node")
    view = nodes_view(node)
    node.resign()
    return view
