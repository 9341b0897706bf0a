"""Calls about replays: start one, show them, stop one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.console.body import Text
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.core.replay import telling
from forewarn.core.request import Request
from forewarn.core.script import Recording


class NewReplay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    vm: Text
    recording: Recording
    speed: float = 1.0
    loops: int = 1
    map: dict[Text, Annotated[str, Meta(min_length=1, max_length=200)]] = {}


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    vm: str
    scope: str
    who: str
    at: float
    speed: float
    loops: int
    loop: int  # the telling that is on, from 1
    step: int  # steps shown of it
    steps: int
    shows: str  # what the scope is shown now, in words; "": its own document
    begun_at: float  # this telling
    ends_at: float  # the last telling, if nothing ends it before
    ended: str | None
    ended_at: float | None
    reason: str


class ReplaysView(msgspec.Struct, frozen=True, kw_only=True):
    replays: tuple[ReplayView, ...]


async def start(room: Room, call: Call, asked: NewReplay) -> ReplayView:
    """Show a recording to the scope of a VM."""
    vm = room.directory.find(asked.vm)
    request = await room.control.replays.start(
        vm, asked.recording, who=room.who, speed=asked.speed, loops=asked.loops, names=asked.map
    )
    await room.catch_up()
    return _view(room, room.control.replays.find(request.id))


async def show_all(room: Room, call: Call) -> ReplaysView:
    """The replays under way, and the recent ones."""
    return ReplaysView(replays=read_replays(room))


def read_replays(room: Room) -> tuple[ReplayView, ...]:
    return tuple(_view(room, request) for request in room.control.replays.all())


async def show(room: Room, call: Call) -> ReplayView:
    """One replay."""
    return _view(room, room.control.replays.find(call.names["id"]))


async def stop(room: Room, call: Call) -> ReplayView:
    """End a replay."""
    request = await room.control.replays.stop(call.names["id"], who=room.who)
    return _view(room, request)


def _view(room: Room, request: Request) -> ReplayView:
    replay = request.replay
    assert replay is not None
    step = room.control.replays.step(request)
    return ReplayView(
        id=request.id,
        vm=replay.name,
        scope=replay.scope_id,
        who=request.who,
        at=request.at,
        speed=replay.speed,
        loops=replay.loops,
        loop=replay.loop + 1,
        step=replay.done,
        steps=replay.steps,
        shows=telling(step) if step else "",
        begun_at=replay.begun_at,
        ends_at=replay.ends_at,
        ended=replay.ended,
        ended_at=replay.ended_at,
        reason=replay.reason,
    )
