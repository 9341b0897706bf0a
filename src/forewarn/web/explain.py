"""The explain handler: resolves a name to a VM, host, scope, event or request, and explains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forewarn.core.event import Event
from forewarn.core.explain.explanation import Explanation
from forewarn.errors import NotFound, Refused, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.explanations import explain_event, explain_host, explain_request, explain_scope, explain_vm
from forewarn.web.request_parsing import HandlerCall

T = TypeVar("T")


async def explain(context: RequestContext, call: HandlerCall) -> Explanation:
    """Explain what happened to a VM, event, host, scope, rollout or request, and why."""
    thing = call.path_params["thing"]
    await context.dependencies.flush_observations()
    # A name may match several kinds: the likeliest is tried first.
    if (vm := _find_or_none(context.directory.find_any, thing)) is not None:
        return await explain_vm(context, vm)
    if context.can_see_everything() and (host := _find_or_none(context.find_host, thing)) is not None:
        return explain_host(context, host)
    if (scope := _find_or_none(context.find_scope, thing)) is not None:
        return explain_scope(context, scope)
    if (request := _find_or_none(context.find_request, thing)) is not None:
        return explain_request(context, request)
    event = _find_or_none(context.find_event, thing)
    rollout = _find_or_none(context.find_rollout, thing) if event is None or not _is_full_id(thing, event) else None
    if event is not None and rollout is not None:
        raise Refused(
            f"{thing!r} is ambiguous, event {event.id} and rollout {rollout.id} start with it: give more of the id"
        )
    if event is not None:
        return explain_event(context, event)
    if rollout is not None:
        return explain_request(context, rollout)
    suggestion = context.similar_name(thing)
    text = f"{thing!r} is not a VM, host, scope, event, rollout or request{suggestion}"
    raise NotFound(text, Remedy.LIST_EXPLAINABLE)


def _is_full_id(thing: str, event: Event) -> bool:
    return thing.strip().upper() == event.id


def _find_or_none(find: Callable[[str], T], name: str) -> T | None:
    try:
        return find(name)
    except NotFound:
        return None
