"""The waves of a rollout as a diagram over time, and the starts of their events as a calendar.

For a rollout that is previewed, the times are those of the plan if nobody approves; for one that has begun, those of
its events so far, and then the expected ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from forewarn.base.times import Timestamp
from forewarn.core.explain.rollout_plan import PlannedWave, RolloutForecast, WaveTimes
from forewarn.core.request import Rollout
from forewarn.core.waves import wave_specs
from forewarn.web.views import BaseView

_MAX_DAYS = 31  # of the calendar
_MAX_TIMES = 12  # starts of a wave on one day that the calendar lists
_LEAST_WIDTH = 0.4  # percent of the diagram, so that a part of seconds can be seen


class DiagramPart(BaseView, frozen=True, kw_only=True):
    """A part of a wave's bar in the diagram of a rollout's waves."""

    kind: str  # notice, performing or settling
    x: float  # where it begins, in percent of the width
    width: float  # in percent of the width of the diagram, at least 0.4


class DiagramWave(BaseView, frozen=True, kw_only=True):
    """One wave in the diagram of a rollout's waves; times are lab time, None if they are not known."""

    number: int  # its place in the diagram, from 1
    name: str  # that of the rollout's wave
    state: str  # planned (the rollout is not started), waiting (not begun), now, settling or done
    vms: int  # how many VMs it has
    begins_at: Timestamp | None  # when its first event is published
    starts_at: Timestamp | None  # when its first event started, or starts without an approval
    over_at: Timestamp | None  # when its last event is over
    settled_at: Timestamp | None  # when the next wave may begin
    parts: tuple[DiagramPart, ...]  # in order of time; (): it has no times yet


class CalendarStarts(BaseView, frozen=True, kw_only=True):
    """The times of a day at which events of one wave started, or may start without an approval."""

    wave: str  # its name
    times: tuple[str, ...]  # in UTC, such as `02:00`, each once, at most 12
    more: int  # times that are left out


class CalendarDay(BaseView, frozen=True, kw_only=True):
    """A day of the calendar of a rollout's starts, in UTC."""

    day: str  # such as `Sat 2026-12-05`
    starts: tuple[CalendarStarts, ...]  # in the order of the waves


class WaveDiagram(BaseView, frozen=True, kw_only=True):
    """The waves of a rollout over time, and a calendar of its starts. Field names are JSON keys."""

    waves: tuple[DiagramWave, ...]  # in their order
    days: tuple[CalendarDay, ...]  # with starts, ascending; at most 31
    days_omitted: int  # how many more days have starts
    now_x: float | None  # where the current time is, in percent of the width; None: no other time is known


class _WaveFacts(BaseView, frozen=True, kw_only=True):
    name: str
    state: str
    vms: int
    begins_at: Timestamp | None = None
    starts_at: Timestamp | None = None
    over_at: Timestamp | None = None
    settled_at: Timestamp | None = None
    starts: tuple[Timestamp, ...] = ()


def diagram_of_plan(waves: Sequence[PlannedWave], now: float) -> WaveDiagram | None:
    """Return the diagram of a planned rollout at lab time `now`; None if no wave has times."""
    if not any(wave.latest for wave in waves):
        return None
    facts = [_facts(wave.name, "planned", wave.size, wave.latest, wave.starts) for wave in waves if wave.size]
    return _diagram(facts, now)


def diagram_of_rollout(rollout: Rollout, forecast: RolloutForecast, now: float) -> WaveDiagram | None:
    """Return the diagram of a started rollout; None if it has only one wave, which does not settle."""
    specs = wave_specs(rollout)
    if len(specs) == 1 and not rollout.settle_s:
        return None
    facts = [
        _facts(specs[wave.wave].name, "done" if rollout.closed else wave.state, wave.size, wave.times, wave.starts)
        for wave in forecast.waves
        if wave.size or wave.state != "waiting"
    ]
    return _diagram(facts, now)


def _facts(name: str, state: str, vms: int, times: WaveTimes | None, starts: tuple[Timestamp, ...]) -> _WaveFacts:
    if times is None:
        return _WaveFacts(name=name, state=state, vms=vms)
    return _WaveFacts(
        name=name,
        state=state,
        vms=vms,
        begins_at=times.begins_at,
        starts_at=times.starts_at,
        over_at=times.over_at,
        settled_at=times.settled_at,
        starts=starts,
    )


def _diagram(facts: Sequence[_WaveFacts], now: float) -> WaveDiagram:
    known = [at for wave in facts for at in (wave.begins_at, wave.starts_at, wave.over_at, wave.settled_at) if at]
    first, last = min([now, *known]), max([now, *known])
    length = max(last - first, 1.0)
    waves = tuple(
        DiagramWave(
            number=number,
            name=wave.name,
            state=wave.state,
            vms=wave.vms,
            begins_at=wave.begins_at,
            starts_at=wave.starts_at,
            over_at=wave.over_at,
            settled_at=wave.settled_at,
            parts=tuple(_parts(wave, first, length, now)),
        )
        for number, wave in enumerate(facts, 1)
    )
    days = _calendar(facts)
    return WaveDiagram(
        waves=waves,
        days=tuple(days[:_MAX_DAYS]),
        days_omitted=max(0, len(days) - _MAX_DAYS),
        now_x=100 * (now - first) / length if last > first else None,
    )


def _parts(wave: _WaveFacts, first: float, length: float, now: float) -> list[DiagramPart]:
    ends = {
        "notice": (wave.begins_at, wave.starts_at if wave.starts_at is not None else now),
        "performing": (wave.starts_at, wave.over_at if wave.over_at is not None else now),
        "settling": (wave.over_at, wave.settled_at),
    }
    parts: list[DiagramPart] = []
    for what, (since, until) in ends.items():
        if since is None or until is None or until <= since:
            continue
        x = 100 * (since - first) / length
        width = max(100 * (until - since) / length, _LEAST_WIDTH)
        parts.append(DiagramPart(kind=what, x=min(x, 100 - width), width=width))
    return parts


def _calendar(facts: Sequence[_WaveFacts]) -> list[CalendarDay]:
    days: dict[str, dict[str, dict[str, None]]] = {}  # by ISO day, then wave: times in order
    for wave in facts:
        for at in wave.starts:
            then = datetime.fromtimestamp(at, UTC)
            days.setdefault(f"{then:%Y-%m-%d}", {}).setdefault(wave.name, {})[f"{then:%H:%M}"] = None
    return [
        CalendarDay(
            day=f"{datetime.fromisoformat(day):%a} {day}",
            starts=tuple(
                CalendarStarts(wave=name, times=tuple(times)[:_MAX_TIMES], more=max(0, len(times) - _MAX_TIMES))
                for name, times in days[day].items()
            ),
        )
        for day in sorted(days)
    ]
