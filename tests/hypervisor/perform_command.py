"""A process that performs one act with the operator's command, and is killed while it does.

Usage: perform_command.py DIRECTORY ACT COMMAND…
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.command import CommandHypervisor, CommandSpec
from forewarn.machines.interface import ActDone


async def perform(directory: Path, act_id: str, argv: tuple[str, ...]) -> None:
    command = CommandHypervisor({"reboot": CommandSpec(run=argv)}, directory)
    act = Act(id=act_id, vm="s/g/vm-1", name="vm-1", verb=Verb.REBOOT, event_id="E1")
    while not isinstance(answer := await command.perform(act, 1_700_000_000.0), ActDone):
        pass
    print(answer.note, flush=True)
    await command.close()


if __name__ == "__main__":
    asyncio.run(perform(Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])))
