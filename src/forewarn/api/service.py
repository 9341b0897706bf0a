"""Calls about the service itself: what it is, its clock, its backup, its health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forewarn.console.body import Advancing, BackingUp, Speed
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.console.views import BackupView, CheckView, ClockView, DoctorView
from forewarn.core.history import What
from forewarn.errors import Refused, Rejected

_FOR_ALL = ("version", "now", "lab", "speed", "enablement")  # the rest tells of the machine, and of everybody's VMs


async def show_service(room: Room, call: Call) -> dict[str, Any]:
    """What the service is, and where it listens."""
    info = room.house.info()
    return info if room.sees_everything() else {name: info[name] for name in _FOR_ALL if name in info}


async def show_clock(room: Room, call: Call) -> ClockView:
    """The time that documents and the history show."""
    return _clock(room)


async def advance(room: Room, call: Call, asked: Advancing) -> ClockView:
    """Advance a lab's clock."""
    await room.house.observe()
    await room.control.labtime.advance(asked.by_s, who=room.who)
    return _clock(room)


async def set_speed(room: Room, call: Call, asked: Speed) -> ClockView:
    """Let a lab's clock run faster, slower, or stand."""
    await room.control.labtime.set_speed(asked.speed, who=room.who)
    return _clock(room)


def _clock(room: Room) -> ClockView:
    now, speed, lab = room.control.labtime.show()
    return ClockView(now=now, speed=speed, lab=lab)


async def back_up(room: Room, call: Call, asked: BackingUp) -> BackupView:
    """Copy the database to a file on the service's machine."""
    path = Path(asked.path)
    if not path.is_absolute() or "\0" in str(path):
        raise Rejected(f"the backup {str(path)!r} is no absolute path: give one that begins with /, without odd signs")
    try:
        _must_be_new(path)
    except OSError as error:
        raise Rejected(f"the backup {str(path)!r} cannot be made: {error.strerror}; give another path") from error
    await room.store.back_up(path)
    await room.note(What.UPKEEP, f"store copied to {str(path)!r}")
    return BackupView(path=str(path), bytes=path.stat().st_size)


def _must_be_new(path: Path) -> None:
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name")
    if not path.parent.is_dir():
        raise Rejected(f"there is no directory {str(path.parent)!r} for the backup: make it, or give another path")


async def examine(room: Room, call: Call) -> DoctorView:
    """Check whether the service has what it needs."""
    found = await room.house.doctor()
    return DoctorView(checks=tuple(CheckView(name=c.name, ok=c.ok, text=c.text, remedy=c.remedy) for c in found))
