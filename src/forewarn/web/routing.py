"""Routes and handler signatures: method, path, handler, the right it needs, and over which resources.

A handler's signature declares its body, query and response; requests are decoded and OpenAPI is written from it.
The names of the resource selectors (`everything`, `listing`, ...) are published in openapi.json as `x-forewarn-
over`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from forewarn.core.access import Right
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.errors import Forbidden, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import EmptyBody, HandlerCall

ResourceSelector = Callable[[RequestContext, HandlerCall], Iterable[str]]


def everything(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Hosts, rollouts, faults, the clock: what belongs to no owner of VMs."""
    return (ROOT_RESOURCE,)


def signed_in(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Whoever is signed in, with or without a role: nothing of the fleet is shown."""
    return ()


def listing(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """The handler shows what the caller may read; somebody who may read nothing at all is told so."""
    if not context.principal.may_anywhere(Right.READ):
        _, _, external_id = context.principal.id.partition("oidc:")
        raise Forbidden(f"{context.caller_name} has no role anywhere", Remedy.ASK_FOR_ANY_ROLE, external_id=external_id)
    return ()


def named_vm(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    return (vm_resource_id(context.directory.find(call.path_params["name"])),)


def named_event(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Every VM that it hits; one that has left the scope since is nobody's in particular."""
    event = context.find_event(call.path_params["id"])
    there = {vm.name.casefold(): vm for vm in context.store.vms(scope_id=event.scope_id, removed=True)}
    hit = [there.get(name.casefold()) for name in event.vms]
    return [ROOT_RESOURCE if vm is None else vm_resource_id(vm) for vm in hit] or [ROOT_RESOURCE]


Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSignature:
    body: type[msgspec.Struct] | None
    query: type[msgspec.Struct] | None
    response_type: Any
    summary: str

    def parse(self, call: HandlerCall) -> dict[str, msgspec.Struct]:
        """What the handler is given beside the room and the call."""
        body, query = call.parse_body(self.body or EmptyBody), call.parse_query(self.query or EmptyBody)
        given = {"body": body} if self.body else {}
        return {**given, "query": query} if self.query else given


@cache
def handler_signature(handler: Handler) -> HandlerSignature:
    hints = get_type_hints(handler)
    names = list(inspect.signature(handler).parameters)
    if names[:2] != ["context", "call"] or not set(names[2:]) <= {"body", "query"}:
        raise TypeError(f"{handler.__qualname__} takes {names}: a handler takes context, call, and body or query")
    return HandlerSignature(
        body=hints.get("body"),
        query=hints.get("query"),
        response_type=hints["return"],
        summary=(inspect.getdoc(handler) or "").partition("\n")[0],
    )


API_PREFIX = "/forewarn/v1"


@dataclass(frozen=True, slots=True)
class ApiRoute:
    method: str
    path: str
    handler: Handler
    right: Right
    status: int = 200
    resources: ResourceSelector = everything

    @property
    def signature(self) -> HandlerSignature:
        return handler_signature(self.handler)


ApiRouteTable = Mapping[tuple[str, str], ApiRoute]  # by method and path
