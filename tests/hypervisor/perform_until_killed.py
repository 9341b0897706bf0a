"""A program for the crash tests: performs acts on a ledger, prints the outcomes, and may kill itself.

Usage: perform_until_killed.py LEDGER ACTS LINE. It kills itself (SIGKILL) before the LINEth line of the hypervisor's
code runs; with LINE 0 it ends normally and prints how many lines ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import forewarn.machines
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor

BEGIN_AT = 1_700_000_000.0
_CODE = str(Path(forewarn.machines.__file__).parent)


def acts_of(count: int) -> list[Act]:
    verbs = (Verb.REBOOT, Verb.REDEPLOY, Verb.FREEZE)
    return [
        Act(
            id=f"E{n}:vm-{n % 3}",
            vm=f"s/g/vm-{n % 3}",
            name=f"vm-{n % 3}",
            verb=verbs[n % 3],
            event_id=f"E{n}",
            duration_s=0 if n % 4 == 3 else -1,
        )
        for n in range(count)
    ]


class KillAtLine:
    """Counts the lines of the hypervisor's code as they run, and kills the process before the chosen one."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.passed = 0

    def watch(self, frame: FrameType, what: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_CODE):
            return None
        if what == "line":
            self.passed += 1
            if self.passed == self.line:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.watch


async def perform_all(path: Path, count: int) -> None:
    simulated = SimulatedHypervisor(EffectLedger(path))
    for act in acts_of(count):
        answer = await simulated.perform(act, BEGIN_AT)
        if isinstance(answer, ActUnderWay):
            print(json.dumps({"act": act.id, "later": answer.at}), flush=True)
            answer = await simulated.perform(act, answer.at)
        assert isinstance(answer, ActDone), f"{act.id} asked at its time: {answer}"
        print(json.dumps({"act": act.id, "ok": answer.ok}), flush=True)
    await simulated.close()


def main(path: str, count: str, line: str) -> None:
    killer = KillAtLine(int(line))
    sys.settrace(killer.watch)
    asyncio.run(perform_all(Path(path), int(count)))
    sys.settrace(None)
    print(json.dumps({"lines": killer.passed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
