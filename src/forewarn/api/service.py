"""Handlers about the service itself: its description, clock, backup and health checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forewarn.core.history import EntryKind
from forewarn.errors import Refused, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import AdvanceClockBody, ClockSpeedBody, HandlerCall, NonEmptyText, StrictBody
from forewarn.web.views import BackupView, ClockView, HealthCheckView, HealthReportView


class BackupBody(StrictBody, frozen=True, kw_only=True):
    path: NonEmptyText


_PUBLIC_INFO_KEYS = (
    "version",
    "now",
    "lab",
    "speed",
    "enablement",
)  # the rest tells of the machine, and of everybody's VMs


async def show_service(context: RequestContext, call: HandlerCall) -> dict[str, Any]:
    """What the service is, and where it listens."""
    info = context.dependencies.service_info()
    return info if context.can_see_everything() else {name: info[name] for name in _PUBLIC_INFO_KEYS if name in info}


async def show_clock(context: RequestContext, call: HandlerCall) -> ClockView:
    """The time that documents and the history show."""
    return _clock_view(context)


async def advance_clock(context: RequestContext, call: HandlerCall, body: AdvanceClockBody) -> ClockView:
    """Advance a lab's clock."""
    await context.dependencies.flush_observations()
    await context.control.lab_clock.advance(body.by_s, who=context.caller_name)
    return _clock_view(context)


async def set_clock_speed(context: RequestContext, call: HandlerCall, body: ClockSpeedBody) -> ClockView:
    """Let a lab's clock run faster, slower, or stand."""
    await context.control.lab_clock.set_speed(body.speed, who=context.caller_name)
    return _clock_view(context)


def _clock_view(context: RequestContext) -> ClockView:
    now, speed, lab = context.control.lab_clock.status()
    return ClockView(now=now, speed=speed, lab=lab)


async def create_backup(context: RequestContext, call: HandlerCall, body: BackupBody) -> BackupView:
    """Copy the database to a file on the service's machine."""
    path = Path(body.path)
    if not path.is_absolute() or "\0" in str(path):
        raise Rejected(f"the backup {str(path)!r} is no absolute path: give one that begins with /, without odd signs")
    try:
        _require_new_path(path)
    except OSError as error:
        raise Rejected(f"the backup {str(path)!r} cannot be made: {error.strerror}; give another path") from error
    await context.store.back_up(path)
    await context.record_history(EntryKind.UPKEEP, f"store copied to {str(path)!r}")
    return BackupView(path=str(path), bytes=path.stat().st_size)


def _require_new_path(path: Path) -> None:
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name")
    if not path.parent.is_dir():
        raise Rejected(f"there is no directory {str(path.parent)!r} for the backup: make it, or give another path")


async def run_health_checks(context: RequestContext, call: HandlerCall) -> HealthReportView:
    """Check whether the service has what it needs."""
    found = await context.dependencies.run_health_checks()
    return HealthReportView(
        checks=tuple(HealthCheckView(name=c.name, ok=c.ok, text=c.text, remedy=c.remedy) for c in found)
    )
