"""Rollouts: all of them with how far they are, and one with its scopes, update domain by update domain."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

from forewarn.console.call import Call
from forewarn.console.portal.course import Course, course_of
from forewarn.console.portal.page import Table
from forewarn.console.portal.request import DoneQuery, just_done
from forewarn.console.rollout import facts_of, read_rollouts
from forewarn.console.room import Room
from forewarn.console.showing import title_of_scope, title_of_scope_id
from forewarn.console.views import RolloutView, View
from forewarn.control.rollouts import Reach
from forewarn.core.event import Event, Status
from forewarn.core.request import Progress, Tally
from forewarn.core.scope import Scope

PARTS = ("done", "failed", "withdrawn", "started", "scheduled", "waiting")
_MOST_SCOPES = 60
_MOST_ROLLOUTS = 200
_COLUMNS = ("rollout", "impact", "over", "progress", "asked_by", "asked_at", "total", *PARTS)


class Part(View, frozen=True, kw_only=True):
    """A piece of the bar that shows how far a rollout is."""

    name: str
    count: int
    since: int  # VMs before it


class RolloutRow(View, frozen=True, kw_only=True):
    rollout: RolloutView
    parts: tuple[Part, ...]

    @property
    def over(self) -> str:
        hosts = self.rollout.hosts
        if not hosts:
            return title_of_scope_id(self.rollout.scope)
        return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else "")

    @property
    def words(self) -> str:
        """`12 of 40 done, 4 started, 20 waiting`."""
        tally = self.rollout.tally
        rest = [f"{part.count} {_said(part.name, self.rollout)}" for part in self.parts if part.name != "done"]
        return ", ".join([f"{tally.done} of {tally.total} done", *rest])


class RolloutsPage(View, frozen=True, kw_only=True):
    rollouts: tuple[RolloutRow, ...]  # newest first
    sees_all: bool

    def table(self) -> Table:
        return Table(columns=_COLUMNS, rows=[_row(row) for row in self.rollouts])


class Domain(View, frozen=True, kw_only=True):
    """An update domain of a scope, as far as the rollout is about it."""

    number: int
    vms: int
    done: int
    state: str  # done, now, next, waiting


class ScopeCourse(View, frozen=True, kw_only=True):
    id: str
    title: str
    domains: tuple[Domain, ...]


class RolloutPage(View, frozen=True, kw_only=True):
    row: RolloutRow
    scopes: tuple[ScopeCourse, ...]
    more_scopes: int
    course: Course
    done: str

    def svg(self) -> str:
        return self.course.svg()

    def table(self) -> Table:
        return self.course.table()


async def show_all(room: Room, call: Call) -> RolloutsPage:
    """The rollouts under way, and the recent ones."""
    if not room.sees_everything():
        return RolloutsPage(rollouts=(), sees_all=False)
    newest = sorted(read_rollouts(room), key=lambda one: (not one.closed, one.at), reverse=True)
    return RolloutsPage(rollouts=tuple(map(_row_of, newest[:_MOST_ROLLOUTS])), sees_all=True)


async def show(room: Room, call: Call, query: DoneQuery) -> RolloutPage:
    """One rollout, by its id or the beginning of it."""
    await room.house.observe()
    request = room.rollout(call.names["id"])
    assert request.rollout is not None
    reach = room.control.rollouts.reach_of(request, request.rollout)
    await asyncio.sleep(0)  # of a large one all this is much: others get their turn in between
    view = RolloutView(**facts_of(room, request, request.rollout, reach))
    await asyncio.sleep(0)
    scopes = _scopes(reach, is_closed=view.closed, goes_on=view.progress in (Progress.RUNNING, Progress.PAUSED))
    await asyncio.sleep(0)
    return RolloutPage(
        row=_row_of(view),
        scopes=tuple(_titled(room, scopes[:_MOST_SCOPES])),
        more_scopes=max(0, len(scopes) - _MOST_SCOPES),
        course=course_of(room, reach.events),
        done=just_done(query),
    )


def _row_of(view: RolloutView) -> RolloutRow:
    return RolloutRow(rollout=view, parts=tuple(_parts(view.tally)))


def _parts(tally: Tally) -> Iterator[Part]:
    since = 0
    for name in PARTS:
        if count := getattr(tally, name):
            yield Part(name=name, count=count, since=since)
            since += count


def _said(part: str, view: RolloutView) -> str:
    return "never begun" if part == "waiting" and view.closed else part


def _scopes(reach: Reach, *, is_closed: bool, goes_on: bool) -> list[tuple[str, tuple[Domain, ...]]]:
    """Each scope it is about, with its update domains; those under way first."""
    reached: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in reach.events:
        reached[event.scope_id][event.update_domain].append(event)
    listed = {(event.scope_id, name) for event in reach.events for name in event.vms}
    left: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for vm in () if is_closed else reach.vms:
        if (vm.scope_id, vm.name) not in listed:
            left[vm.scope_id][vm.update_domain] += 1
    scopes = [(id_, tuple(_domains(reached[id_], left[id_], goes_on=goes_on))) for id_ in sorted({*reached, *left})]
    return sorted(scopes, key=lambda scope: not any(domain.state == "now" for domain in scope[1]))


def _titled(room: Room, scopes: Iterable[tuple[str, tuple[Domain, ...]]]) -> Iterator[ScopeCourse]:
    for scope_id, domains in scopes:
        scope = room.store.scope(scope_id) or Scope(id=scope_id)
        yield ScopeCourse(id=scope_id, title=title_of_scope(scope), domains=domains)


def _domains(reached: dict[int, list[Event]], left: dict[int, int], *, goes_on: bool) -> Iterator[Domain]:
    coming = min((number for number, count in left.items() if count), default=None)
    for number in sorted({*reached, *left}):
        events = reached.get(number, [])
        over = sum(len(event.vms) for event in events if event.status is Status.OVER)
        if any(event.is_live for event in events):
            state = "now"
        elif not left.get(number):
            state = "done"
        else:
            state = "next" if goes_on and number == coming else "waiting"
        vms = sum(len(event.vms) for event in events) + left.get(number, 0)
        yield Domain(number=number, vms=vms, done=over, state=state)


def _row(row: RolloutRow) -> list[object]:
    view = row.rollout
    counts = [getattr(view.tally, name) for name in PARTS]
    return [view.id, view.impact, row.over, view.progress, view.who, view.at, view.tally.total, *counts]
