"""Handlers about the service itself: its description, clock, backup and health checks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from forewarn.base.times import timestamp
from forewarn.core.decision import EnablementMode
from forewarn.core.history import EntryKind
from forewarn.core.limits import Name, NonEmptyLongText
from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import AdvanceClockBody, ClockSpeedBody, HandlerCall, StrictBody
from forewarn.web.views import BackupView, ClockView, HealthCheckView, HealthReportView, HistoryEntryView

_MAX_ENTRIES = 10_000  # history entries in the answer to an advance of the clock
# The other keys describe the machine and the VMs of all owners.
_PUBLIC_INFO_KEYS = ("version", "now", "lab", "speed", "enablement")


class BackupBody(StrictBody, frozen=True, kw_only=True):
    """Where to write a new backup file on the service's machine."""

    path: NonEmptyLongText  # absolute, of a file that does not exist, in an existing directory


class ClockAdvanceView(ClockView, frozen=True, kw_only=True):
    """The clock after an advance (fields of ClockView), and what happened on the way.

    `entries` leave out the history entry about the advance itself.
    """

    polling: int  # how many VMs counted as polling all the time; 0 with `without_polls`
    note: str  # why the rule about idle scopes did not apply, in a sentence; "" if it did or does not matter
    entries: tuple[HistoryEntryView, ...]  # those that the caller may see, oldest first; at most the newest 10,000
    entries_omitted: int  # how many earlier entries are left out


class ServiceQuery(StrictBody, frozen=True, kw_only=True):
    """The VM whose endpoint the description of the service shows as `endpoint`."""

    vm: Name = ""  # a name, `group/name` or key, ignoring letter case; "": the first VM that has an endpoint


async def show_service(context: RequestContext, call: HandlerCall, query: ServiceQuery) -> dict[str, Any]:
    """Show the service: its version, clock, addresses and settings, and the endpoint of a VM."""
    info = context.dependencies.service_info()
    if not context.can_see_everything():
        return {name: info[name] for name in _PUBLIC_INFO_KEYS if name in info}
    vms = [context.directory.find(query.vm)] if query.vm else context.store.vms()
    endpoint = next(filter(None, map(context.dependencies.endpoint_of, vms)), "")
    return {**info, "endpoint": endpoint}


async def show_clock(context: RequestContext, call: HandlerCall) -> ClockView:
    """Show lab time and its speed."""
    return _clock_view(context)


async def advance_clock(context: RequestContext, call: HandlerCall, body: AdvanceClockBody) -> ClockAdvanceView:
    """Advance the clock of a lab."""
    await context.dependencies.flush_observations()
    before = context.store.last_seq()
    advance = await context.control.lab_clock.advance(
        body.by_s, who=context.caller_name, without_polls=body.without_polls
    )
    added = [e for e in context.store.history(after=before) if e.kind is not EntryKind.CLOCK]  # the advance itself
    visible = context.visibility.visible_entries(added)
    shown = visible[-_MAX_ENTRIES:]
    _, speed, lab = context.control.lab_clock.status()
    return ClockAdvanceView(
        now=timestamp(advance.now),
        speed=speed,
        lab=lab,
        polling=advance.polling,
        note=_idle_rule_note(context, body, advance.polling),
        entries=tuple(map(HistoryEntryView.from_entry, shown)),
        entries_omitted=len(visible) - len(shown),
    )


def _idle_rule_note(context: RequestContext, body: AdvanceClockBody, polling: int) -> str:
    """Why no scope was disabled, for a caller who wanted to see that (spec §8.2); else ""."""
    policy = context.control.transactions.policy
    if policy.enablement is EnablementMode.ALWAYS:
        return "no scope becomes idle, because the setting enablement is always" if body.without_polls else ""
    if not polling or body.by_s < policy.idle_s:
        return ""
    vms = "1 VM counts" if polling == 1 else f"{polling} VMs count"
    return f"{vms} as polling throughout, so {'its scope stays' if polling == 1 else 'their scopes stay'} enabled"


async def set_clock_speed(context: RequestContext, call: HandlerCall, body: ClockSpeedBody) -> ClockView:
    """Set the speed of a lab's clock; 0 stops it."""
    await context.control.lab_clock.set_speed(body.speed, who=context.caller_name)
    return _clock_view(context)


def _clock_view(context: RequestContext) -> ClockView:
    now, speed, lab = context.control.lab_clock.status()
    return ClockView(now=timestamp(now), speed=speed, lab=lab)


async def create_backup(context: RequestContext, call: HandlerCall, body: BackupBody) -> BackupView:
    """Write a backup of the database to a new file on the service's machine."""
    path = Path(body.path)
    if not path.is_absolute() or "\0" in str(path):
        raise Rejected(
            f"the backup {str(path)!r} is not an absolute path: give one that starts with /, without NUL characters"
        )
    try:
        _require_new_path(path)
    except OSError as error:
        raise Rejected(f"the backup {str(path)!r} cannot be written: {error.strerror}; give another path") from error
    await context.store.back_up(path)
    with suppress(Unavailable):  # the backup is complete, even if the store rejects writes: then it is needed most
        await context.record_history(EntryKind.UPKEEP, f"store copied to {str(path)!r}")
    return BackupView(path=str(path), bytes=path.stat().st_size)


def _require_new_path(path: Path) -> None:
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another path")
    if not path.parent.is_dir():
        raise Rejected(f"directory {str(path.parent)!r} of the backup does not exist: create it, or give another path")


async def run_health_checks(context: RequestContext, call: HandlerCall) -> HealthReportView:
    """Run the health checks of the service."""
    results = await context.dependencies.run_health_checks()
    return HealthReportView(
        checks=tuple(HealthCheckView(name=r.name, ok=r.ok, text=r.text, remedy=r.remedy) for r in results)
    )
