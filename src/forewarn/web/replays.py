"""Replay handlers: start, list, show and stop."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.core.limits import NonEmptyText, Number, WholeNumber
from forewarn.core.replay import UploadedRecording
from forewarn.core.request import MaintenanceRequest
from forewarn.web.context import RequestContext
from forewarn.web.faults import read_replays, replay_view
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import ReplayView


class NewReplay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recording to replay to the scope of a VM.

    `speed` 2 takes half the time of the recording. `map` gives recorded VMs other names; without it, the VM that was
    recorded is shown under the name of `vm`, and other VMs as recorded. The letter case of `vm`, and of recorded names,
    is ignored; a name in `map` that was not recorded is rejected.
    """

    vm: NonEmptyText  # a name, `group/name` or key
    recording: UploadedRecording
    speed: Number = 1.0  # 0.01 to 10000
    loops: WholeNumber = 1  # how often to replay it, 1 to 1000
    # Recorded name → name to show.
    map: Annotated[dict[NonEmptyText, Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=10_000)] = {}


class ReplaysView(msgspec.Struct, frozen=True, kw_only=True):
    """Running replays, and ended ones among the 10,000 newest requests; oldest first."""

    replays: tuple[ReplayView, ...]


async def start_replay(context: RequestContext, call: HandlerCall, body: NewReplay) -> ReplayView:
    """Replay a recording to the scope of a VM."""
    vm = context.directory.find(body.vm)
    request = await context.control.replays.start(
        vm,
        body.recording,
        who=context.caller_name,
        speed=body.speed,
        loops=body.loops,
        names=body.map,
        key=call.request_key,
    )
    return await current_replay_view(context, request)


async def current_replay_view(context: RequestContext, request: MaintenanceRequest) -> ReplayView:
    """Wait for the reconciler, then return the view of the replay of this request, as it is now."""
    await context.wait_for_reconciler()
    return replay_view(context, context.control.replays.find(request.id))


async def list_replays(context: RequestContext, call: HandlerCall) -> ReplaysView:
    """List the running replays and recent ones."""
    return ReplaysView(replays=read_replays(context))


async def show_replay(context: RequestContext, call: HandlerCall) -> ReplayView:
    """Show one replay."""
    return replay_view(context, context.control.replays.find(call.path_params["id"]))


async def stop_replay(context: RequestContext, call: HandlerCall) -> ReplayView:
    """Stop a replay."""
    request = await context.control.replays.stop(call.path_params["id"], who=context.caller_name)
    return replay_view(context, request)
