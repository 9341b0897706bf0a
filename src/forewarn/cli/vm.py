"""Commands that run programs inside namespace VMs, where 169.254.169.254 is the service."""

from __future__ import annotations

import os
from typing import Any

import click

from forewarn.cli.completion import vm_names
from forewarn.cli.invocation import CommandFunction, Invocation, local_command, service_command
from forewarn.cli.output import Cell, dim, state_text
from forewarn.errors import Rejected
from forewarn.machines.namespace_vm.run import DEFAULT_GRACE_S, VmRunOptions, run_vm
from forewarn.machines.namespace_vm.vm_spec import NetworkMode


@click.group()
def vm() -> None:
    """Run programs inside VMs."""


def _vm_options(function: CommandFunction) -> CommandFunction:
    options = (
        click.argument("name", metavar="VM", shell_complete=vm_names),
        click.option("--netns", metavar="PATH|NAME", help="Join this network namespace, unchanged."),
        click.option(
            "--no-vnet", is_flag=True, help="Run it outside a virtual network: it finds the endpoint by DHCP."
        ),
        click.option("--isolated", is_flag=True, help="Allow no network except the service, even with pasta."),
        click.option(
            "--grace",
            type=click.FloatRange(0, 3600),
            default=DEFAULT_GRACE_S,
            metavar="SECONDS",
            show_default=True,
            help="Wait this long between SIGTERM and SIGKILL.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class _CommandWithProgram(click.Command):
    """A command that hints at a missing `--` when an option of the program is taken for its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in typed or error.possibilities:
                raise
            hint = f"{error.format_message().rstrip('.')}: options of the program come after `--`"
            raise click.UsageError(hint, ctx) from error


@vm.command(cls=_CommandWithProgram)
@_vm_options
@click.option("--detached", is_flag=True, help="Run without a terminal; log its output with the service's data.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@local_command
def run(call: Invocation, command: tuple[str, ...], detached: bool, **options: Any) -> int:
    """Run a program inside a VM.

    \b
    forewarn vm run web-0 -- python3 app.py
    forewarn vm run web-0 -- curl -H Metadata:true 'http://169.254.169.254/metadata/versions'

    It runs as you, in this directory, and its exit code is returned. Maintenance of the VM affects it: a Freeze
    suspends it, a Reboot stops it and starts it again.
    """
    return _run_in_vm(call, command, detached=detached, **options)


@vm.command()
@_vm_options
@local_command
def shell(call: Invocation, **options: Any) -> int:
    """Start a shell inside a VM."""
    return _run_in_vm(call, (os.environ.get("SHELL") or "/bin/sh",), detached=False, **options)


@vm.command("list")
@service_command
def list_(call: Invocation) -> None:
    """Show the VMs that run a program."""
    answer = call.api.get("vm-supervisors")
    if call.output.as_json:
        call.output.print_json(answer)
        return
    rows = [_vm_row(supervisor) for supervisor in answer["supervisors"]]
    if rows:
        call.output.print_table(("vm", "state", "supervisor", "boot id", "program"), rows)
    else:
        call.output.print_line(dim("No VM runs a program: start one with `forewarn vm run VM -- COMMAND`."))


@vm.command()
@click.argument("name", metavar="VM", shell_complete=vm_names)
@click.option("--log", is_flag=True, help="Print what the guest has written so far, and return.")
@local_command
def console(call: Invocation, name: str, log: bool) -> None:
    """Show the console of a real VM, and type into it.

    For VMs of `forewarn lab vms`. Ctrl-] leaves the console.

    \b
    forewarn vm console web-0
    forewarn vm console web-0 --log
    """
    from forewarn.cli.console import attach, read_backlog

    found = call.api.get("vms", name)
    directory = call.data / "hosts" / found["host"]
    written = read_backlog(directory / f"{found['name']}.console.log")
    click.echo(written, nl=False)
    if not log:
        attach(
            directory / f"{found['name']}.console",
            found["name"],
            on_connected=lambda: call.output.print_note("connected; Ctrl-] leaves the console"),
        )


def _vm_row(supervisor: dict[str, Any]) -> tuple[Cell, ...]:
    program = " ".join(supervisor.get("program") or ())
    state = state_text(supervisor["state"])
    return supervisor["vm"], state, str(supervisor["pid"]), dim(supervisor["boot_id"]), program


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
        raise Rejected("--netns and --no-vnet exclude each other: give only one of them")
    net = NetworkMode.JOINED if netns else NetworkMode.NO_VNET if no_vnet else NetworkMode.OWN
    options = VmRunOptions(
        vm=name,
        program=command,
        data=call.data,
        network_mode=net,
        joined_netns=netns,
        is_isolated=isolated,
        is_detached=detached,
        grace_s=grace,
    )
    return run_vm(options, call.output.print_note)
