"""The lab: its clock, the faults and storms that are on, and what was done to them lately."""

from __future__ import annotations

from forewarn.console.call import Call
from forewarn.console.fault import read_faults
from forewarn.console.portal.page import Table
from forewarn.console.portal.request import DoneQuery, just_done
from forewarn.console.replay import ReplayView, read_replays
from forewarn.console.room import Room
from forewarn.console.views import EntryView, FaultView, StormView, View
from forewarn.core.event import Status
from forewarn.core.history import What

_LATELY = 15  # entries shown
_LOOKED_THROUGH = 1_000  # for them
_MANY = 5_000  # events under way, too many to look through for each page
_SPEEDS = ((0.0, "Pause"), (1.0, "×1"), (60.0, "×60"), (600.0, "×600"))
_JUMPS = ("1m", "15m", "1h", "1d", "7d")
_COLUMNS = ("fault", "kind", "strikes", "for", "set_by", "set_at", "left", "left_s", "touched", "events")


class Due(View, frozen=True, kw_only=True):
    """Something that falls due by itself."""

    at: float
    text: str
    event: str = ""  # its id


class LabPage(View, frozen=True, kw_only=True):
    now: float
    speed: float
    is_lab: bool
    due: tuple[Due, ...]  # the next things
    sees_all: bool  # who does not is shown no faults
    faults: tuple[FaultView, ...]
    storms: tuple[StormView, ...]
    replays: tuple[ReplayView, ...]  # under way
    lately: tuple[EntryView, ...]  # newest first
    done: str

    @property
    def speeds(self) -> tuple[tuple[float, str], ...]:
        return _SPEEDS

    @property
    def jumps(self) -> tuple[str, ...]:
        return _JUMPS

    def table(self) -> Table:
        return Table(columns=_COLUMNS, rows=[_row(one) for one in self.faults])


async def show(room: Room, call: Call, query: DoneQuery) -> LabPage:
    """The clock, and what goes wrong on purpose."""
    now, speed, is_lab = room.control.labtime.show()
    sees_all = room.sees_everything()
    on = await read_faults(room) if sees_all else None
    return LabPage(
        now=now,
        speed=speed,
        is_lab=is_lab,
        due=_due(room),
        sees_all=sees_all,
        faults=on.faults if on else (),
        storms=on.storms if on else (),
        replays=_replays(room) if sees_all else (),
        lately=_lately(room) if sees_all else (),
        done=just_done(query),
    )


def _due(room: Room) -> tuple[Due, ...]:
    """When the next notices end, and when a storm sets its next fault."""
    many = room.store.counts().events > _MANY
    scheduled = [] if many else room.store.events(statuses=[Status.SCHEDULED])
    events = sorted(
        (event for event in scheduled if event.not_before > room.now() and room.sees_scope(event.scope_id)),
        key=lambda event: event.not_before,
    )[:3]
    found = [
        Due(
            at=e.not_before, text=f"the notice of {e.row.kind or e.row.verb} of {', '.join(e.vms[:3])} ends", event=e.id
        )
        for e in events
    ]
    if many and (at := room.control.reconciler.next_wake()) is not None:
        found.append(Due(at=at, text="the first of many events goes on"))
    if room.sees_everything() and (at := room.control.storms.next_at()) is not None:
        found.append(Due(at=at, text="a storm sets its next fault"))
    return tuple(sorted(found, key=lambda due: due.at))


def _replays(room: Room) -> tuple[ReplayView, ...]:
    return tuple(one for one in read_replays(room) if one.ended is None)


def _lately(room: Room) -> tuple[EntryView, ...]:
    recent = room.store.history(limit=_LOOKED_THROUGH)
    told = [entry for entry in reversed(recent) if entry.what in (What.CLOCK, What.FAULT)]
    return tuple(EntryView.of(entry) for entry in told[:_LATELY])


def _row(one: FaultView) -> list[object]:
    return [
        one.id,
        one.kind,
        one.strikes,
        one.target,
        one.who,
        one.set_at,
        one.left,
        one.left_s,
        one.touched,
        " ".join(one.events),
    ]
