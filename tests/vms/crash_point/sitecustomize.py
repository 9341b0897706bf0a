"""Kills the service at one point of an act; Python imports this file at its start if it is on its path.

CRASH_POINT is `before:OPERATION` or `after:OPERATION` of the QEMU driver, `step:STEP` of the journal (after the step is
durable), or `spawned` (QEMU was started, and has not come up).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_around_operation(when: str, name: str) -> None:
    from forewarn.hypervisor.qemu.driver import QemuDriver

    operation = getattr(QemuDriver, name)

    async def perform(*arguments: Any, **options: Any) -> None:
        if when == "before":
            _die()
        await operation(*arguments, **options)
        _die()

    setattr(QemuDriver, name, perform)


def _die_after(owner: type, name: str, condition: Callable[..., bool]) -> None:
    method = getattr(owner, name)

    def perform(*arguments: Any, **options: Any) -> Any:
        answer = method(*arguments, **options)
        if condition(*arguments):
            _die()
        return answer

    setattr(owner, name, perform)


def _install(point: str) -> None:
    from forewarn.hypervisor.machines.journal import MachineJournal
    from forewarn.hypervisor.qemu.instance import QemuInstance

    when, _, name = point.partition(":")
    if when == "spawned":
        _die_after(QemuInstance, "start", lambda *_: True)
    elif when == "step":
        _die_after(MachineJournal, "enter", lambda journal, act_id, entered: entered.step == name)
    else:
        _die_around_operation(when, name)


if _point := os.environ.get("CRASH_POINT"):
    _install(_point)
