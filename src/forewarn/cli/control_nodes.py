"""Commands for the control nodes of a cluster: `node list`, `node show` and `node resign`."""

from __future__ import annotations

import time

import click

from forewarn.base.duration import duration_text
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import node_names
from forewarn.cli.invocation import Invocation, service_command
from forewarn.cli.output import Cell, bold, dim, state_text
from forewarn.errors import Unavailable

_TAKEOVER_LIMIT_S = 15.0  # real time that `resign` waits for another node
_LOOK_INTERVAL_S = 0.2


@click.command("list")
@service_command
def list_nodes(call: Invocation) -> None:
    """List the control nodes, and which one is active.

    On the machine of a control node this works even while no node is active.

    \b
    forewarn node list
    """
    view = call.api.get("nodes")
    if call.output.as_json:
        call.output.print_json(view)
        return
    if not view["nodes"]:
        call.output.print_line("this service runs alone: it is not part of a cluster")
        return
    call.output.print_table(("name", "role", "behind", "seen", "version", "url"), map(_row, view["nodes"]))
    for node in view["nodes"]:
        if node["problem"]:
            call.output.print_line(f"{node['name']}: {node['problem']}")
    if not view["active"]:
        call.output.print_line("no control node is active")


def _row(node: JsonObject) -> list[Cell]:
    name = bold(node["name"]) if node["role"] == "active" else node["name"]
    behind = str(node["behind"]) if node["behind"] else "0"
    seen = f"{duration_text(node['last_seen_ago_s'])} ago" if node["last_seen_ago_s"] >= 1 else "now"
    return [name, state_text(node["role"]), behind, seen, dim(node["version"]), node["url"]]


@click.command("show")
@click.argument("name", metavar="NODE", shell_complete=node_names)
@service_command
def show_node(call: Invocation, name: str) -> None:
    """Show one control node.

    \b
    forewarn node show c2
    """
    node = call.api.get("nodes", name)
    if call.output.as_json:
        call.output.print_json(node)
        return
    call.output.print_facts(
        [
            ("name", bold(node["name"])),
            ("role", state_text(node["role"])),
            ("url", node["url"]),
            ("version", node["version"]),
            ("copy", f"at group {node['number']}, {node['behind']} behind"),
            ("seen", f"{duration_text(node['last_seen_ago_s'])} ago"),
            *([("problem", node["problem"])] if node["problem"] else []),
        ]
    )


@click.command("resign")
@service_command
def resign_node(call: Invocation) -> None:
    """Let the active control node give control to another one.

    It becomes a standby, and can be upgraded then. VMs and operators notice at most a short pause.

    \b
    forewarn node resign
    """
    before = call.api.post("nodes", "resign")
    after = _next_active(call, before["term"])
    if call.output.as_json:
        call.output.print_json({"from": before["active"], "to": after["active"], "term": after["term"]})
        return
    call.output.print_line(f"control passed from {before['active']} to {after['active']}, term {after['term']}")


def _next_active(call: Invocation, term: int) -> JsonObject:
    ends_at = time.monotonic() + _TAKEOVER_LIMIT_S
    while time.monotonic() < ends_at:
        try:
            view = call.api.get("nodes")
        except Unavailable:
            view = {"term": 0}
        if view["term"] > term:
            return view
        time.sleep(_LOOK_INTERVAL_S)
    raise Unavailable(
        "the active control node gave control up, but none has taken it yet: look at `forewarn node list`, and at the "
        "logs of the control nodes"
    )
