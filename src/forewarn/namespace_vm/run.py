"""Runs a program in a VM of namespaces from start to end, for `forewarn vm run`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from forewarn.namespace_vm.act_executor import finish_interrupted_acts
from forewarn.namespace_vm.act_journal import VmActJournal
from forewarn.namespace_vm.connection import ServiceConnection
from forewarn.namespace_vm.machine import RUNNING, boot_id_file
from forewarn.namespace_vm.messages import VmDescription
from forewarn.namespace_vm.namespaces import VmNamespaces
from forewarn.namespace_vm.outbound_network import connect_outbound
from forewarn.namespace_vm.supervisor import (
    PrintMessage,
    SupervisorConfig,
    Terminal,
    VmSupervisor,
    build_hello,
    is_in_terminal_foreground,
)
from forewarn.namespace_vm.vm_spec import NetworkMode, VmSpec

DEFAULT_GRACE_S = 5.0
JOURNAL_FILE, OUTPUT_FILE = "journal.jsonl", "output.log"
_NAMED_NETNS_DIRECTORY = Path("/run/netns")


@dataclass(frozen=True, slots=True, kw_only=True)
class VmRunOptions:
    """What somebody asked for on the command line."""

    vm: str
    program: tuple[str, ...]
    data: Path
    network_mode: NetworkMode = NetworkMode.OWN
    joined_netns: str | None = None  # a path, or a name below /run/netns
    is_isolated: bool = False
    is_detached: bool = False  # no terminal: what the program writes goes to a file beside its journal
    grace_s: float = DEFAULT_GRACE_S
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def run_vm(wish: VmRunOptions, say: PrintMessage) -> int:
    """Make the VM, run its program in it, and keep it; the program's exit code."""
    kept = SupervisorConfig(
        name=wish.vm, program=wish.program, data=wish.data, grace_s=wish.grace_s, first_boot_id=str(uuid4())
    )
    with ExitStack() as held:
        link = ServiceConnection.open(wish.data)
        held.callback(link.close)
        vm = asyncio.run(link.send_hello(build_hello(kept, boot_id=kept.first_boot_id, state=RUNNING, known={})))
        journal = _prepare_vm(vm, kept.first_boot_id)
        held.callback(journal.close)

        output = vm.directory / OUTPUT_FILE if wish.is_detached else None
        plan = _make_vm_spec(wish, vm, output)
        terminal = Terminal() if plan.owns_terminal else None
        if terminal is not None:
            held.callback(terminal.restore)
        enclosure = VmNamespaces(plan)
        held.callback(enclosure.close)
        if plan.network_mode is NetworkMode.OWN and not wish.is_isolated:
            held.callback(connect_outbound(enclosure.pid, say))
        kept = replace(kept, output=output)

        async def keep() -> int:
            return await VmSupervisor(kept, vm, enclosure=enclosure, journal=journal, terminal=terminal, say=say).run(
                link
            )

        return asyncio.run(keep())


def _prepare_vm(vm: VmDescription, boot_id: str) -> VmActJournal:
    """What the VM finds when it comes up."""
    for directory in (vm.directory, vm.ephemeral):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    boot_id_file(vm).write_text(f"{boot_id}\n")
    journal = VmActJournal(vm.directory / JOURNAL_FILE)
    finish_interrupted_acts(journal, vm)
    return journal


def _make_vm_spec(wish: VmRunOptions, vm: VmDescription, output: Path | None) -> VmSpec:
    return VmSpec(
        hostname=vm.computer_name,
        argv=wish.program,
        environment=wish.environment,
        boot_id_file=boot_id_file(vm),
        network_mode=wish.network_mode,
        joined_netns=_NAMED_NETNS_DIRECTORY / wish.joined_netns
        if wish.joined_netns
        else None,  # a path of its own stays what it is
        output=os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if output else None,
        owns_terminal=output is None and is_in_terminal_foreground(),
    )
