"""Commands that run programs inside namespace VMs, where 169.254.169.254 is the service."""

from __future__ import annotations

import os
from typing import Any

import click

from forewarn.cli.completion import vm_names
from forewarn.cli.invocation import CommandFunction, Invocation, local_command, service_command
from forewarn.cli.output import Cell, dim, state_text
from forewarn.errors import Rejected
from forewarn.namespace_vm.run import DEFAULT_GRACE_S, VmRunOptions
from forewarn.namespace_vm.run import run_vm as run_wish
from forewarn.namespace_vm.vm_spec import NetworkMode


@click.group()
def vm() -> None:
    """Put programs inside VMs."""


def _vm_options(function: CommandFunction) -> CommandFunction:
    """What both `run` and `shell` can be told."""
    options = (
        click.argument("name", metavar="VM", shell_complete=vm_names),
        click.option("--netns", metavar="PATH|NAME", help="Join this network namespace, and leave it as it was."),
        click.option("--no-vnet", is_flag=True, help="Outside a virtual network: DHCP tells the endpoint."),
        click.option("--isolated", is_flag=True, help="Reach nothing but the service, also where pasta is installed."),
        click.option(
            "--grace",
            type=click.FloatRange(0, 3600),
            default=DEFAULT_GRACE_S,
            metavar="SECONDS",
            show_default=True,
            help="Between asking the program to end and ending it.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class _CommandWithProgram(click.Command):
    """Tells who forgot the `--` about it, when an option of the program is taken for one of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in typed or error.possibilities:
                raise
            hint = f"{error.format_message().rstrip('.')}: what is for the program comes after `--`"
            raise click.UsageError(hint, ctx) from error


@vm.command(cls=_CommandWithProgram)
@_vm_options
@click.option("--detached", is_flag=True, help="Without a terminal: what it writes is kept with the service's data.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@local_command
def run(call: Invocation, command: tuple[str, ...], detached: bool, **where: Any) -> int:
    """Run a program inside a VM.

    \b
    forewarn vm run web-0 -- python3 app.py
    forewarn vm run web-0 -- curl -H Metadata:true 'http://169.254.169.254/metadata/versions'

    It runs as you, in this directory; its exit code is ours. What happens to the VM happens to it: it stands still
    in a Freeze, and is ended and started again in a Reboot.
    """
    return _run_in_vm(call, command, detached=detached, **where)


@vm.command()
@_vm_options
@local_command
def shell(call: Invocation, **where: Any) -> int:
    """Start a shell inside a VM."""
    return _run_in_vm(call, (os.environ.get("SHELL") or "/bin/sh",), detached=False, **where)


@vm.command("list")
@service_command
def list_(call: Invocation) -> None:
    """Show the VMs that have a program in them."""
    answer = call.api.get("keepers")
    if call.output.as_json:
        call.output.print_json(answer)
        return
    rows = [_vm_row(keeper) for keeper in answer["keepers"]]
    if rows:
        call.output.print_table(("vm", "state", "keeper", "boot id", "program"), rows)
    else:
        call.output.print_line(dim("No VM has a program in it: start one with `forewarn vm run VM -- COMMAND`."))


def _vm_row(keeper: dict[str, Any]) -> tuple[Cell, ...]:
    program = " ".join(keeper.get("program") or ())
    return keeper["vm"], state_text(keeper["state"]), str(keeper["pid"]), dim(keeper["boot_id"]), program


def _run_in_vm(
    call: Invocation,
    command: tuple[str, ...],
    *,
    name: str,
    netns: str | None,
    no_vnet: bool,
    isolated: bool,
    grace: float,
    detached: bool,
) -> int:
    if netns and no_vnet:
        raise Rejected("--netns and --no-vnet exclude each other: a network that you made is left as it is")
    net = NetworkMode.JOINED if netns else NetworkMode.NO_VNET if no_vnet else NetworkMode.OWN
    wish = VmRunOptions(
        vm=name,
        program=command,
        data=call.data,
        network_mode=net,
        joined_netns=netns,
        is_isolated=isolated,
        is_detached=detached,
        grace_s=grace,
    )
    return run_wish(wish, call.output.print_note)
