"""Replay handlers: start, list, show and stop."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.core.replay_script import UploadedRecording
from forewarn.core.request import MaintenanceRequest
from forewarn.web.context import RequestContext
from forewarn.web.lab_views import read_replays, replay_view
from forewarn.web.request_parsing import HandlerCall, NonEmptyText
from forewarn.web.views import ReplayView


class NewReplay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recording to replay to the scope of a VM.

    `speed` 2 takes half the time; `loops` is how often to replay; `map` gives recorded VMs other names. Of those that
    it does not name, the VM that was recorded is shown as `vm`, and others as recorded. `vm` is in any case.
    """

    vm: NonEmptyText  # a name, `group/name` or key
    recording: UploadedRecording
    speed: float = 1.0  # 0.01 to 10000
    loops: int = 1  # 1 to 1000
    map: dict[NonEmptyText, Annotated[str, Meta(min_length=1, max_length=200)]] = {}  # recorded name → name to show


class ReplaysView(msgspec.Struct, frozen=True, kw_only=True):
    """Running replays, and ended ones among the 10,000 newest requests; oldest first."""

    replays: tuple[ReplayView, ...]


async def start_replay(context: RequestContext, call: HandlerCall, body: NewReplay) -> ReplayView:
    """Replay a recording to the scope of a VM.

    The scope's VMs get the recorded answers instead of its own; the first is shown on return. Raises NotFound for an
    unknown VM, Rejected outside a lab and for a bad recording, speed or number of loops or a name in `map` that was not
    recorded, Refused if the scope has a live event or another replay, or several VMs match. The history gets an entry.
    """
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
    """Waits for the reconciler, then returns the view of the replay of this request, as it is now.

    Raises NotFound if it is no replay, or ended and no longer among the 10,000 newest requests. Does not check what the
    caller may see.
    """
    await context.wait_for_reconciler()
    return replay_view(context, context.control.replays.find(request.id))


async def list_replays(context: RequestContext, call: HandlerCall) -> ReplaysView:
    """List the running replays and recent ones.

    Oldest first; ended ones among the 10,000 newest requests.
    """
    return ReplaysView(replays=read_replays(context))


async def show_replay(context: RequestContext, call: HandlerCall) -> ReplayView:
    """Show one replay.

    The path parameter `id` is its id or a unique start of it, in any case. Raises NotFound, or Refused if several ids
    start so.
    """
    return replay_view(context, context.control.replays.find(call.path_params["id"]))


async def stop_replay(context: RequestContext, call: HandlerCall) -> ReplayView:
    """Stop a replay.

    The path parameter `id` is its id or a unique start of it, in any case. Its scope shows its own document again.
    Returns the ended replay. Raises NotFound, or Refused if it is over or several ids start so. The history gets an
    entry.
    """
    request = await context.control.replays.stop(call.path_params["id"], who=context.caller_name)
    return replay_view(context, request)
