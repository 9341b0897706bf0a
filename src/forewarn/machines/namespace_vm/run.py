"""Runs a program in a VM of namespaces from start to end, for `forewarn vm run`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from forewarn.errors import Unavailable
from forewarn.machines.namespace_vm import syscalls
from forewarn.machines.namespace_vm.act_executor import finish_interrupted_acts
from forewarn.machines.namespace_vm.act_journal import VmActJournal
from forewarn.machines.namespace_vm.connection import ServiceConnection
from forewarn.machines.namespace_vm.machine import RUNNING, boot_id_file
from forewarn.machines.namespace_vm.messages import VmDescription
from forewarn.machines.namespace_vm.namespaces import VmNamespaces
from forewarn.machines.namespace_vm.supervisor import (
    OutputLog,
    PrintMessage,
    SupervisorConfig,
    Terminal,
    VmSupervisor,
    build_hello,
    is_in_terminal_foreground,
)
from forewarn.machines.namespace_vm.vm_spec import NetworkMode, VmSpec

# Connects the VM to the outside through `pasta` or `slirp4netns`, if one of them is installed.
#
# The outside and the host's loopback become reachable, while 169.254.169.254 stays the service.

_MAX_ROUTE_CHECKS, _ROUTE_CHECK_S = 500, 0.01
_ISOLATED_WARNING = (
    "this VM can reach only the service: install pasta (package passt) or slirp4netns for outbound network, "
    "or use --isolated if this is intended"
)

# Ports of the host's loopback appear on the VM's own loopback; nothing of the VM appears on the host.
_PASTA_COMMAND = "pasta --quiet --foreground --config-net --runas {uid}:{gid} -t none -u none -T auto -U auto {pid}"
# The host's loopback is at 10.0.2.2.
_SLIRP_COMMAND = "slirp4netns --configure --mtu=65520 {pid} tap0"


def connect_outbound(pid: int, print_message: Callable[[str], None]) -> Callable[[], None]:
    """Connect the network namespace of process `pid` to the outside; returns a function that undoes it."""
    for tool in (_PASTA_COMMAND, _SLIRP_COMMAND):
        command = tool.format(pid=pid, uid=os.geteuid(), gid=os.getegid()).split()
        child = _start_tool(command) if shutil.which(command[0]) else None
        if child is not None and _is_connected(child, pid):
            return partial(_stop_tool, child)
        if child is not None:
            _stop_tool(child)
    print_message(_ISOLATED_WARNING)
    return lambda: None


def _start_tool(command: list[str]) -> subprocess.Popen[bytes]:
    devnull = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=devnull, stdout=devnull, stderr=devnull, start_new_session=True, preexec_fn=_die_with_supervisor
    )


def _die_with_supervisor() -> None:
    syscalls.die_with_parent(signal.SIGKILL)


def _is_connected(child: subprocess.Popen[bytes], pid: int) -> bool:
    routes = Path(f"/proc/{pid}/net/route")
    for _ in range(_MAX_ROUTE_CHECKS):
        if any(line.split()[1] == "00000000" for line in routes.read_text().splitlines()[1:]):
            return True
        if child.poll() is not None:
            return False
        time.sleep(_ROUTE_CHECK_S)
    return False


def _stop_tool(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


DEFAULT_GRACE_S = 5.0  # between SIGTERM and SIGKILL
JOURNAL_FILE, OUTPUT_FILE = "journal.jsonl", "output.log"
_NAMED_NETNS_DIRECTORY = Path("/run/netns")


@dataclass(frozen=True, slots=True, kw_only=True)
class VmRunOptions:
    """The options of `forewarn vm run`: which VM of which service, its program, and its network."""

    vm: str  # name, `group/name` or key, ignoring letter case
    program: tuple[str, ...]  # with its arguments
    data: Path  # the service's data directory
    network_mode: NetworkMode = NetworkMode.OWN  # which network the program has
    joined_netns: str | None = None  # a path, or a name below /run/netns; None unless the mode is JOINED
    is_isolated: bool = False  # no outbound network; matters only in mode OWN
    is_detached: bool = False  # no terminal: the output goes to a file in the VM's directory
    grace_s: float = DEFAULT_GRACE_S  # real time between SIGTERM and SIGKILL, in seconds
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  # of the program


def run_vm(options: VmRunOptions, print_message: PrintMessage) -> int:
    """Create the VM, run its program, and supervise it until it ends; return the program's exit code.

    The exit code is 128 plus the number if a signal ended the program, 0 if the VM was evicted or deleted, 127 if the
    program is not found, 126 if it cannot be executed. Call it in the main thread, without an event loop.
    """
    try:
        return _run_vm(options, print_message)
    except OSError as error:
        raise Unavailable(
            f"VM {options.vm} cannot run ({error}): check the disk and the permissions of its files, and try again"
        ) from error


def _run_vm(options: VmRunOptions, print_message: PrintMessage) -> int:
    config = SupervisorConfig(
        name=options.vm, program=options.program, data=options.data, grace_s=options.grace_s, first_boot_id=str(uuid4())
    )
    with ExitStack() as stack:
        connection = ServiceConnection.open(options.data)
        stack.callback(connection.close)
        vm = asyncio.run(
            connection.send_hello(build_hello(config, boot_id=config.first_boot_id, state=RUNNING, known={}))
        )
        journal = _prepare_vm(vm, config.first_boot_id)
        stack.callback(journal.close)

        output = OutputLog(vm.directory / OUTPUT_FILE) if options.is_detached else None
        if output is not None:
            stack.callback(output.close)
        spec = _make_vm_spec(options, vm, output)
        terminal = Terminal() if spec.owns_terminal else None
        if terminal is not None:
            stack.callback(terminal.restore)
        namespaces = VmNamespaces(spec)
        stack.callback(namespaces.close)
        if output is not None:
            output.close_write_end()
        if spec.network_mode is NetworkMode.OWN and not options.is_isolated:
            stack.callback(connect_outbound(namespaces.pid, print_message))

        async def supervise() -> int:
            return await VmSupervisor(
                config,
                vm,
                namespaces=namespaces,
                journal=journal,
                terminal=terminal,
                output=output,
                print_message=print_message,
            ).run(connection)

        return asyncio.run(supervise())


def _prepare_vm(vm: VmDescription, boot_id: str) -> VmActJournal:
    for directory in (vm.directory, vm.ephemeral):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    boot_id_file(vm).write_text(f"{boot_id}\n")
    journal = VmActJournal(vm.directory / JOURNAL_FILE)
    finish_interrupted_acts(journal, vm)
    return journal


def _make_vm_spec(options: VmRunOptions, vm: VmDescription, output: OutputLog | None) -> VmSpec:
    return VmSpec(
        hostname=vm.computer_name,
        argv=options.program,
        environment=options.environment,
        boot_id_file=boot_id_file(vm),
        network_mode=options.network_mode,
        # A name is below /run/netns; an absolute path stays as it is.
        joined_netns=_NAMED_NETNS_DIRECTORY / options.joined_netns if options.joined_netns else None,
        output=output.write_end if output else None,
        owns_terminal=output is None and is_in_terminal_foreground(),
    )
