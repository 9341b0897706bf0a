"""Control node handlers: list and show the nodes of a cluster, and let the active one resign."""

from __future__ import annotations

from forewarn.base.wording import did_you_mean
from forewarn.errors import NotFound, Refused
from forewarn.web.context import RequestContext
from forewarn.web.node_views import NodesView, NodeView, nodes_view
from forewarn.web.request_parsing import HandlerCall


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
