"""`forewarn node`: shows and switches the nodes of a cluster, and runs the node of a hypervisor host."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import click

from forewarn.base.duration import duration_text
from forewarn.base.log_rate_limit import limit_repeated_messages
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import node_names
from forewarn.cli.invocation import Invocation, local_command, require_server_extra, service_command
from forewarn.cli.output import Cell, bold, count_noun, dim, discard_unwritable_output, state_text
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


@click.group()
def node() -> None:
    """Nodes of a cluster: control nodes, and one node per hypervisor host."""


for command in (list_nodes, show_node, resign_node):
    node.add_command(command)


@node.command("run")
@click.option("--bus", metavar="URL", help="Connect to these NATS servers, such as nats://10.0.0.1:4222.")
@click.option("--host", metavar="NAME", help="Serve the VMs of this host of the fleet.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Read this settings file (TOML).")
@click.option("--hypervisor", metavar="NAME", help="Choose what performs acts on the VMs of this host.")
@click.option("--workers", type=click.IntRange(0, 64), help="Answer VMs in N processes; 0: in the node.")
@click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="Serve VMs on this address; repeatable.")
@local_command
def run_node(call: Invocation, config: Path | None, listen: tuple[str, ...], **options: Any) -> None:
    """Answer the VMs of one host, and perform the acts on them.

    Run it on each hypervisor host, beside a service with the same --bus. It needs no database.

    \b
    forewarn node run --bus nats://10.0.0.1:4222 --host h7 --hypervisor command --config node.toml
    """
    with require_server_extra("node run"):
        from forewarn.service.node_process import run_host_node
        from forewarn.service.settings import load_settings

    flags = {**options, "data": call.given_data, "listen": listen or None}
    settings = load_settings(flags, lab=False, config=config, is_node=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    limit_repeated_messages()

    def announce(info: dict[str, Any]) -> None:
        if call.output.as_json:
            call.output.print_json(info)
            return
        call.output.print_line(
            f"the node of host {info['host']} answers {count_noun(info['vms'], 'VM')}; hypervisor {info['hypervisor']}"
        )
        for listener in info["listeners"]:
            state = "" if listener["open"] else " (not yet)"
            call.output.print_line(f"  {listener['name']}{state}")

    try:
        run_host_node(settings, announce)
    finally:
        discard_unwritable_output()
