"""Calls about rollouts: start, show, pause, resume, abort."""

from __future__ import annotations

from typing import Any

from forewarn.console.body import NewRollout
from forewarn.console.call import Call
from forewarn.console.room import Room, must_be_told_once
from forewarn.console.showing import Showing
from forewarn.console.views import RolloutsView, RolloutView, RolloutWithEvents
from forewarn.control.rollouts import Reach
from forewarn.core.request import Progress, Request, Rollout
from forewarn.core.rollout import remaining


async def start(room: Room, call: Call, asked: NewRollout) -> RolloutView:
    """Start a rollout over hosts or a scope."""
    request = await room.control.requests.start_rollout(
        rollout_of(room, asked), who=room.who, notice_s=asked.notice_s, short_notice=asked.short_notice
    )
    await room.catch_up()
    return view_of(room, request.id)


def rollout_of(room: Room, asked: NewRollout) -> Rollout:
    """With its hosts and its scope by their own names."""
    hosts = tuple(room.control.requests.host(name).name for name in asked.hosts)
    must_be_told_once(asked.hosts, list(hosts))
    scope_id = room.scope(asked.scope).id if asked.scope else ""
    return Rollout(impact=asked.impact, hosts=hosts, scope_id=scope_id, max_failures=asked.max_failures)


async def show_all(room: Room, call: Call) -> RolloutsView:
    """The rollouts under way, and the recent ones."""
    return RolloutsView(rollouts=read_rollouts(room))


def read_rollouts(room: Room) -> tuple[RolloutView, ...]:
    return tuple(view_of(room, request.id) for request in room.rollouts())


async def show(room: Room, call: Call) -> RolloutWithEvents:
    """One rollout, with its events."""
    request = room.rollout(call.names["id"])
    events = Showing(room).events(room.store.events(request_id=request.id))
    return RolloutWithEvents(events=events, **_facts(room, request.id))


async def pause(room: Room, call: Call) -> RolloutView:
    """Pause a rollout: it publishes nothing until it is resumed."""
    return await _steer(room, call, Progress.PAUSED)


async def resume(room: Room, call: Call) -> RolloutView:
    """Go on with a rollout that is paused."""
    return await _steer(room, call, Progress.RUNNING)


async def abort(room: Room, call: Call) -> RolloutView:
    """End a rollout; what has not started is withdrawn."""
    return await _steer(room, call, Progress.ABORTED)


async def _steer(room: Room, call: Call, progress: Progress) -> RolloutView:
    request = room.rollout(call.names["id"])
    await room.control.requests.steer_rollout(request.id, progress, who=room.who)
    await room.catch_up()
    return view_of(room, request.id)


def view_of(room: Room, request_id: str) -> RolloutView:
    return RolloutView(**_facts(room, request_id))


def _facts(room: Room, request_id: str) -> dict[str, Any]:
    request = room.control.requests.rollout(request_id)
    assert request.rollout is not None
    reach = None if request.rollout.tally else room.control.rollouts.reach_of(request, request.rollout)
    return facts_of(room, request, request.rollout, reach)


def facts_of(room: Room, request: Request, rollout: Rollout, reach: Reach | None) -> dict[str, Any]:
    """What is shown of a rollout; one that is closed needs no reach."""
    return {
        "id": request.id,
        "impact": rollout.impact,
        "hosts": rollout.hosts,
        "scope": rollout.scope_id,
        "progress": rollout.progress,
        "why": rollout.why,
        "closed": rollout.closed,
        "who": request.who,
        "at": request.at,
        "notice_s": request.notice_s,
        "max_failures": rollout.max_failures,
        "tally": room.control.rollouts.tally_of(request, rollout, reach),
        "next_update_domains": () if reach is None else next_domains(room, request, reach),
    }


def next_domains(room: Room, request: Request, reach: Reach) -> tuple[int, ...]:
    """Which of its scopes' update domains come next."""
    rollout = request.rollout
    if rollout is None or not request.is_open or rollout.progress not in (Progress.RUNNING, Progress.PAUSED):
        return ()
    planned = room.store.planned(request_id=request.id)
    lowest: dict[str, int] = {}
    for vm in remaining(rollout, reach.vms, reach.events, planned):
        lowest[vm.scope_id] = min(vm.update_domain, lowest.get(vm.scope_id, vm.update_domain))
    return tuple(sorted(set(lowest.values())))
