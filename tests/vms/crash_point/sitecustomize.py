"""Kills the service at one point of an act; Python imports this file at its start if it is on its path.

CRASH_POINT is `before:OPERATION` or `after:OPERATION` of the QEMU driver, `step:STEP` of the journal (after the step is
durable), `spawned` (QEMU was started, and has not come up), or `listening` (QEMU waits for a live migration, and the
definition of its VM is still being written).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_around_operation(when: str, name: str) -> None:
    from forewarn.machines.qemu.driver import QemuDriver

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


def _never_complete_definitions() -> None:
    """Let definitions be written for ever, as by a disk that is slower than QEMU."""
    from forewarn.machines.qemu import definition_writes

    def write(path: Path, data: bytes) -> None:
        path.with_name(f"{path.name}.new").write_bytes(data)
        threading.Event().wait()

    vars(definition_writes).update(write_durably=write)


def _install(point: str) -> None:
    from forewarn.machines.journal import MachineJournal
    from forewarn.machines.qemu.processes import QemuInstance

    when, _, name = point.partition(":")
    if when == "spawned":
        _die_after(QemuInstance, "start", lambda *_: True)
    elif when == "listening":
        _never_complete_definitions()
        _die_around_operation("after", "_prepare_to_receive")
    elif when == "step":
        _die_after(MachineJournal, "enter", lambda journal, act_id, entered: entered.step == name)
    else:
        _die_around_operation(when, name)


if _point := os.environ.get("CRASH_POINT"):
    _install(_point)
