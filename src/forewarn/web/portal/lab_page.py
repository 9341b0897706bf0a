"""The lab page: the clock, what is due next, active faults, storms and replays, and recent changes."""

from __future__ import annotations

from collections import Counter

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import EventState
from forewarn.core.history import EntryKind
from forewarn.core.limits import HistorySeq
from forewarn.web.context import RequestContext
from forewarn.web.faults import FaultView, StormView, read_faults, read_replays
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.web.portal.history_page import vm_entry_url
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import BaseView, HistoryEntryView, ReplayView

_MAX_RECENT_ENTRIES = 15
_MAX_ENTRIES_READ = 1_000  # of the history, to find them
_MAX_JUMP_ENTRIES = 50  # of an advance of the clock
_MAX_JUMP_ENTRIES_READ = 10_000  # to count them
_MAX_LIVE_EVENTS = 5_000  # with more events, the page does not search them for the next notice to end
_SPEED_CHOICES = ((0.0, "Pause"), (1.0, "×1"), (60.0, "×60"), (600.0, "×600"))
_ADVANCE_CHOICES = ("1m", "15m", "1h", "1d", "7d")
_CSV_COLUMNS = ("fault", "kind", "category", "for", "set_by", "set_at", "remaining", "remaining_s", "applied", "events")


class DueItem(BaseView, frozen=True, kw_only=True):
    """Something that happens next when lab time advances: a notice ends, or a storm sets a fault."""

    at: Timestamp
    text: str  # what happens, as a clause
    event: str = ""  # id of the event that it is about; "": none


class LabPageQuery(DoneMessageQuery, frozen=True, kw_only=True):
    """The query of the lab page. After an advance of the clock, it says which history entries were added."""

    after: HistorySeq | None = None  # the number of the last entry before them; None: the clock was not advanced
    until: HistorySeq = 0  # the number of the last of them; 0: none was added


class ClockJump(BaseView, frozen=True, kw_only=True):
    """What happened while the clock was advanced, as far as the user may see it, from the history."""

    summary: str  # how far the clock was advanced, and who did it; "" if it is not known
    counts: dict[str, int]  # of these entries, of more than 10,000 the first ones, by kind, such as published
    entries: tuple[HistoryEntryView, ...]  # the first 50, oldest first
    more: int  # later entries that are left out
    after: int  # the number of the history entry before the first one

    def vm_url(self, entry: HistoryEntryView) -> str:
        """Return the path of the page of an entry's VM, by key if the entry has a scope, else by name."""
        return vm_entry_url(entry)


class LabPage(BaseView, frozen=True, kw_only=True):
    """The lab page: clock, faults, storms and replays. Field names are JSON keys."""

    now: Timestamp
    speed: float  # lab seconds per real second; 0: paused
    is_lab: bool  # whether the clock can be changed; if not, it shows real time
    due: tuple[DueItem, ...]  # the next three visible notices to end and the next fault of a storm, in order of time
    sees_all: bool  # whether the user may see everything; if not, faults, storms, replays and entries are left out
    faults: tuple[FaultView, ...]  # active ones
    storms: tuple[StormView, ...]  # active ones
    replays: tuple[ReplayView, ...]  # that have not ended
    lately: tuple[HistoryEntryView, ...]  # of clock and faults, among the last 1,000 entries; newest first, at most 15
    done: str  # the done message of the form that led here; "": none
    jump: ClockJump | None = None  # what happened during the advance of the clock that led here; None: none did

    @property
    def speed_choices(self) -> tuple[tuple[float, str], ...]:
        """The speeds that the page offers, in lab seconds per real second, each with its label; 0 pauses."""
        return _SPEED_CHOICES

    @property
    def advance_choices(self) -> tuple[str, ...]:
        """The durations by which the page offers to advance the clock, such as `15m`; ascending."""
        return _ADVANCE_CHOICES

    def table(self) -> ExportTable:
        """Return the CSV export: one row per active fault, without storms and replays."""
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(fault) for fault in self.faults])


async def show_lab_page(context: RequestContext, call: HandlerCall, query: LabPageQuery) -> LabPage:
    """Show the clock, which notices of visible events end next, and faults, storms and replays."""
    now, speed, is_lab = context.control.lab_clock.status()
    sees_all = context.can_see_everything()
    active = await read_faults(context) if sees_all else None
    return LabPage(
        now=timestamp(now),
        speed=speed,
        is_lab=is_lab,
        due=_due_items(context),
        sees_all=sees_all,
        faults=active.faults if active else (),
        storms=active.storms if active else (),
        replays=_active_replays(context) if sees_all else (),
        lately=_recent_entries(context) if sees_all else (),
        done=done_message(query),
        jump=_clock_jump(context, query.after, query.until) if query.after is not None else None,
    )


def _clock_jump(context: RequestContext, after: int, until: int) -> ClockJump:
    # The entry before the first one is that of the advance itself.
    read = context.store.history(after=max(0, after - 1), before=until + 1, limit=_MAX_JUMP_ENTRIES_READ, newest=False)
    visible = context.visibility.visible_entries(read)
    happened = [entry for entry in visible if entry.kind is not EntryKind.CLOCK and entry.seq > after]
    advance = next((entry for entry in visible if entry.kind is EntryKind.CLOCK), None)
    counts = Counter(str(entry.kind) for entry in happened)
    left_out = max(0, until - after - _MAX_JUMP_ENTRIES_READ)
    return ClockJump(
        summary=advance.text if advance is not None else "",
        counts={str(kind): counts[kind] for kind in EntryKind if counts[kind]},
        entries=tuple(map(HistoryEntryView.from_entry, happened[:_MAX_JUMP_ENTRIES])),
        more=max(0, len(happened) - _MAX_JUMP_ENTRIES) + left_out,
        after=after,
    )


def _due_items(context: RequestContext) -> tuple[DueItem, ...]:
    many = context.store.counts().events > _MAX_LIVE_EVENTS
    scheduled = [] if many else context.store.events(statuses=[EventState.SCHEDULED])
    events = sorted(
        (event for event in scheduled if event.not_before > context.now() and context.can_see_scope(event.scope_id)),
        key=lambda event: event.not_before,
    )[:3]
    found = [
        DueItem(
            at=timestamp(e.not_before),
            text=f"the notice of {e.rules.kind or e.rules.verb} of {', '.join(e.vms[:3])} ends",
            event=e.id,
        )
        for e in events
    ]
    if many and (at := context.control.reconciler.next_wake_at()) is not None:
        found.append(DueItem(at=timestamp(at), text="the next of many events continues"))
    if context.can_see_everything() and (at := context.control.fault_storms.next_due_at()) is not None:
        found.append(DueItem(at=timestamp(at), text="a storm sets its next fault"))
    return tuple(sorted(found, key=lambda due: due.at))


def _active_replays(context: RequestContext) -> tuple[ReplayView, ...]:
    return tuple(replay for replay in read_replays(context) if replay.outcome is None)


def _recent_entries(context: RequestContext) -> tuple[HistoryEntryView, ...]:
    recent = context.store.history(limit=_MAX_ENTRIES_READ)
    changes = [entry for entry in reversed(recent) if entry.kind in (EntryKind.CLOCK, EntryKind.FAULT)]
    return tuple(HistoryEntryView.from_entry(entry) for entry in changes[:_MAX_RECENT_ENTRIES])


def _csv_row(fault: FaultView) -> list[object]:
    return [
        fault.id,
        fault.kind,
        fault.category,
        fault.target,
        fault.set_by,
        fault.set_at,
        fault.remaining,
        fault.remaining_s,
        fault.applied,
        " ".join(fault.events),
    ]
