"""`forewarn node`: shows and switches the nodes of a cluster, and runs the node of a hypervisor host."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from forewarn.base.log_rate_limit import limit_repeated_messages
from forewarn.cli.control_nodes import list_nodes, resign_node, show_node
from forewarn.cli.formatting import count_noun
from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.cli.output import discard_unwritable_output


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
