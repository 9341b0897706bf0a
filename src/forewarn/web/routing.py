"""Routes and handler signatures: method, path, handler, the right it needs, and over which resources.

A handler's signature declares its body, query and response; it controls decoding and the OpenAPI document. The
names of the resource selectors (`everything`, `listing`, …) are published in openapi.json as `x-forewarn-over`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from forewarn.core.access import Right
from forewarn.core.request import MaintenanceRequest
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import EmptyBody, HandlerCall

API_PREFIX = "/forewarn/v1"
Handler = Callable[..., Awaitable[Any]]  # takes `context`, `call`, and `body` or `query` if it declares them
RepeatedView = Callable[[RequestContext, MaintenanceRequest], Awaitable[Any]]  # the response to a repeated call
ResourceSelector = Callable[[RequestContext, HandlerCall], Iterable[str]]  # the resources that need the route's right


def everything(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Select the root resource: for hosts, rollouts, faults and the clock, which belong to no owner of VMs."""
    return (ROOT_RESOURCE,)


def signed_in(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Select no resource, so that any authenticated caller may call the route, with or without a role."""
    return ()


def listing(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Select no resource: the handler leaves out what the caller may not read. Forbidden without any role."""
    context.require_any_role()
    return ()


def named_vm(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Select the present, visible VM that the path parameter `name` names: return its resource id alone."""
    context.require_any_role()
    return (vm_resource_id(context.directory.find(call.path_params["name"])),)


def named_event(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Select all VMs of the event that the path parameter `id` names: return their resource ids.

    The root resource stands for a VM that its scope no longer knows, and for an event without VMs.
    """
    context.require_any_role()
    event = context.find_event(call.path_params["id"])
    vms_by_name = {vm.name.casefold(): vm for vm in context.store.vms(scope_id=event.scope_id, removed=True)}
    affected = [vms_by_name.get(name.casefold()) for name in event.vms]
    return [ROOT_RESOURCE if vm is None else vm_resource_id(vm) for vm in affected] or [ROOT_RESOURCE]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSignature:
    """What a handler declares: the structs of its body and query, its response type and its summary."""

    body: type[msgspec.Struct] | None  # None: the handler takes none
    query: type[msgspec.Struct] | None  # None: the handler takes none
    response_type: Any  # the return annotation
    summary: str  # the first line of the handler's docstring

    def parse(self, call: HandlerCall) -> dict[str, msgspec.Struct]:
        """Decode body and query of a call; return, as `body` and `query`, those that the handler declares."""
        body, query = call.parse_body(self.body or EmptyBody), call.parse_query(self.query or EmptyBody)
        arguments = {"body": body} if self.body else {}
        return {**arguments, "query": query} if self.query else arguments


@cache
def handler_signature(handler: Handler) -> HandlerSignature:
    """Read a handler's signature from its annotations and docstring; cached."""
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


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route of the API: the caller needs `right` over each resource id that `resources` returns.

    With `show_repeated`, the route takes an Idempotency-Key.
    """

    method: str  # such as GET
    path: str  # below API_PREFIX, in starlette's syntax
    handler: Handler  # takes `context`, `call`, and `body` or `query` if it declares them
    right: Right  # that the caller needs over each resource
    status: int = 200  # of a successful response
    resources: ResourceSelector = everything  # returns the resource ids of a call
    show_repeated: RepeatedView | None = None  # answers a repeated call; None: the route creates no request

    @property
    def signature(self) -> HandlerSignature:
        """What the handler declares: its body, query, response type and summary."""
        return handler_signature(self.handler)


ApiRouteTable = Mapping[tuple[str, str], ApiRoute]  # by method and path
