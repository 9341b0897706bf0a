"""Commands that run programs inside namespace VMs, where 169.254.169.254 is the service."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from forewarn.cli.completion import vm_names
from forewarn.cli.invocation import CommandFunction, Invocation, local_command, service_command
from forewarn.cli.output import Cell, dim, state_text
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.namespace_vm.run import DEFAULT_GRACE_S, VmRunOptions, run_vm
from forewarn.machines.namespace_vm.vm_spec import NetworkMode

# The terminal side of `vm console`: shows what a guest writes, and sends it what is typed.

_DETACH_KEY = b"\x1d"  # Ctrl-]
_BACKLOG_BYTES = 4096


def read_backlog(log: Path, limit: int = _BACKLOG_BYTES) -> bytes:
    """Return the end of a guest's console log, from the beginning of a line, up to `limit` bytes."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read()
    except OSError:
        return b""
    return data if size <= limit else data.partition(b"\n")[2]


def attach(path: Path, vm: str, *, on_connected: Callable[[], None] = lambda: None) -> None:
    """Connect this terminal to the console at the unix socket `path` until Ctrl-], or until it closes."""
    with socket.socket(socket.AF_UNIX) as console:
        try:
            console.connect(str(path))
        except FileNotFoundError:
            raise Rejected(f"VM {vm!r} has no console: only VMs that run in `forewarn lab vms` have one") from None
        except OSError as error:
            raise Unavailable(f"the console of VM {vm!r} does not answer ({error.strerror}): is it running?") from error
        on_connected()
        with _raw_terminal(), selectors.PollSelector() as selector:  # epoll does not accept files as input
            selector.register(console, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is console:
                        data = console.recv(65536)
                        if not data:
                            return
                        _write(data)
                    else:
                        typed = os.read(sys.stdin.fileno(), 1024)
                        if not typed or _DETACH_KEY in typed:
                            return
                        console.sendall(typed)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the guest, if this is a terminal; restores its mode at the end."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


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
