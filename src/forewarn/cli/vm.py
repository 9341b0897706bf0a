"""Programs inside VMs: started where 169.254.169.254 is the service and the hostname is the VM's."""

from __future__ import annotations

import os
from typing import Any

import click

from forewarn.cli.invocation import Function, Invocation, here, served
from forewarn.cli.screen import Cell, faint, word
from forewarn.cli.suggestion import vm_names
from forewarn.errors import Rejected
from forewarn.vm.blueprint import Net
from forewarn.vm.run import GRACE_S, Wish
from forewarn.vm.run import run as run_wish


@click.group()
def vm() -> None:
    """Put programs inside VMs."""


def _where(function: Function) -> Function:
    """What both `run` and `shell` can be told."""
    options = (
        click.argument("name", metavar="VM", shell_complete=vm_names),
        click.option("--netns", metavar="PATH|NAME", help="Join this network namespace, and leave it as it was."),
        click.option("--no-vnet", is_flag=True, help="Outside a virtual network: DHCP tells the endpoint."),
        click.option("--isolated", is_flag=True, help="Reach nothing but the service, also where pasta is installed."),
        click.option(
            "--grace",
            type=click.FloatRange(0, 3600),
            default=GRACE_S,
            metavar="SECONDS",
            show_default=True,
            help="Between asking the program to end and ending it.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class _WithProgram(click.Command):
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


@vm.command(cls=_WithProgram)
@_where
@click.option("--detached", is_flag=True, help="Without a terminal: what it writes is kept with the service's data.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@here
def run(call: Invocation, command: tuple[str, ...], detached: bool, **where: Any) -> int:
    """Run a program inside a VM.

    \b
    forewarn vm run web-0 -- python3 app.py
    forewarn vm run web-0 -- curl -H Metadata:true 'http://169.254.169.254/metadata/versions'

    It runs as you, in this directory; its exit code is ours. What happens to the VM happens to it: it stands still
    in a Freeze, and is ended and started again in a Reboot.
    """
    return _run(call, command, detached=detached, **where)


@vm.command()
@_where
@here
def shell(call: Invocation, **where: Any) -> int:
    """Start a shell inside a VM."""
    return _run(call, (os.environ.get("SHELL") or "/bin/sh",), detached=False, **where)


@vm.command("list")
@served
def list_(call: Invocation) -> None:
    """Show the VMs that have a program in them."""
    answer = call.api.get("keepers")
    if call.screen.as_json:
        call.screen.document(answer)
        return
    rows = [_row(keeper) for keeper in answer["keepers"]]
    if rows:
        call.screen.table(("vm", "state", "keeper", "boot id", "program"), rows)
    else:
        call.screen.say(faint("No VM has a program in it: start one with `forewarn vm run VM -- COMMAND`."))


def _row(keeper: dict[str, Any]) -> tuple[Cell, ...]:
    program = " ".join(keeper.get("program") or ())
    return keeper["vm"], word(keeper["state"]), str(keeper["pid"]), faint(keeper["boot_id"]), program


def _run(
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
    net = Net.JOINED if netns else Net.NO_VNET if no_vnet else Net.OWN
    wish = Wish(
        vm=name,
        program=command,
        data=call.data,
        net=net,
        joins=netns,
        is_isolated=isolated,
        is_detached=detached,
        grace_s=grace,
    )
    return run_wish(wish, call.screen.note)
