"""`forewarn vm run` from beginning to end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from forewarn.vm.act import catch_up
from forewarn.vm.blueprint import Blueprint, Net
from forewarn.vm.enclosure import Enclosure
from forewarn.vm.journal import Journal
from forewarn.vm.keeper import Keeper, Kept, Say, hello_of
from forewarn.vm.link import Link
from forewarn.vm.machine import RUNNING, boot_id_file
from forewarn.vm.message import Vm
from forewarn.vm.passage import open_passage
from forewarn.vm.terminal import Terminal, terminal_is_ours

GRACE_S = 5.0
JOURNAL, OUTPUT = "journal.jsonl", "output.log"
_NAMED = Path("/run/netns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asked for on the command line."""

    vm: str
    program: tuple[str, ...]
    data: Path
    net: Net = Net.OWN
    joins: str | None = None  # a path, or a name below /run/netns
    is_isolated: bool = False
    is_detached: bool = False  # no terminal: what the program writes goes to a file beside its journal
    grace_s: float = GRACE_S
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def run(wish: Wish, say: Say) -> int:
    """Make the VM, run its program in it, and keep it; the program's exit code."""
    kept = Kept(name=wish.vm, program=wish.program, data=wish.data, grace_s=wish.grace_s, first_boot_id=str(uuid4()))
    with ExitStack() as held:
        link = Link.open(wish.data)
        held.callback(link.close)
        vm = asyncio.run(link.introduce(hello_of(kept, boot_id=kept.first_boot_id, state=RUNNING, known={})))
        journal = _prepare(vm, kept.first_boot_id)
        held.callback(journal.close)

        output = vm.directory / OUTPUT if wish.is_detached else None
        plan = _blueprint(wish, vm, output)
        terminal = Terminal() if plan.owns_terminal else None
        if terminal is not None:
            held.callback(terminal.take_back)
        enclosure = Enclosure(plan)
        held.callback(enclosure.close)
        if plan.net is Net.OWN and not wish.is_isolated:
            held.callback(open_passage(enclosure.pid, say))
        kept = replace(kept, output=output)

        async def keep() -> int:
            return await Keeper(kept, vm, enclosure=enclosure, journal=journal, terminal=terminal, say=say).run(link)

        return asyncio.run(keep())


def _prepare(vm: Vm, boot_id: str) -> Journal:
    """What the VM finds when it comes up."""
    for directory in (vm.directory, vm.ephemeral):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    boot_id_file(vm).write_text(f"{boot_id}\n")
    journal = Journal(vm.directory / JOURNAL)
    catch_up(journal, vm)
    return journal


def _blueprint(wish: Wish, vm: Vm, output: Path | None) -> Blueprint:
    return Blueprint(
        hostname=vm.computer_name,
        argv=wish.program,
        environment=wish.environment,
        boot_id_file=boot_id_file(vm),
        net=wish.net,
        joins=_NAMED / wish.joins if wish.joins else None,  # a path of its own stays what it is
        output=os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if output else None,
        owns_terminal=output is None and terminal_is_ours(),
    )
