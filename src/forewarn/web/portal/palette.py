"""The command palette: finds pages, actions, VMs, hosts, scopes, events and rollouts by name.

`GET /portal/palette?q=` answers with at most 20 results as JSON, which palette.js shows. It is called at each key
press: VMs, hosts, scopes and live events come from the indexes in memory, and reads of the store are few and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.base.wording import scope_name_from_id
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import event_kind_text, join_names
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import ROOT_RESOURCE, vm_resource_id
from forewarn.core.waves import rollout_target_text
from forewarn.web.errors import Surface, status_and_message
from forewarn.web.portal.context import PORTAL_PREFIX, PageAuthenticator, PortalContext
from forewarn.web.portal.form_catalog import EVENT_FORMS, FORMS, VM_FORMS
from forewarn.web.portal.form_definition import FieldKind, Form
from forewarn.web.portal.navigation import SUBPAGES, pages_for
from forewarn.web.portal.states import event_state, state_label
from forewarn.web.queries import event_lists_vm
from forewarn.web.request_parsing import HandlerCall, StrictBody, unique_query_params
from forewarn.web.routing import listing
from forewarn.web.views import BaseView

MAX_RESULTS = 20
_MAX_VMS, _MAX_OTHERS = 8, 5  # of each kind
_MAX_READ = 200  # the newest requests, and the newest events of a VM's scope, that are searched
_MAX_VMS_WITH_EVENTS = 3  # VMs found whose events are shown
_LIVE = (EventState.SCHEDULED, EventState.STARTED)
_EVENT_ID_LENGTH = 36
_EVENT_ID = re.compile(r"[0-9a-f]{4,8}|[0-9a-f]{8}-[0-9a-f-]{0,27}")  # or the beginning of one
_EXACT, _BEGINNING, _CONTAINING = range(3)


class _PaletteQuery(StrictBody, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""  # letter case is ignored; "": the pages, and what the user may do


class _PaletteResult(BaseView, frozen=True, kw_only=True):
    kind: str  # page, action, VM, host, scope, event or rollout
    title: str
    detail: str  # more about it, in words
    href: str
    keys: str = ""  # that open it too, such as `g f`


class _PaletteResults(BaseView, frozen=True, kw_only=True):
    results: tuple[_PaletteResult, ...]  # at most MAX_RESULTS


class _RankedResult(NamedTuple):
    rank: int  # how well it matches: _EXACT, _BEGINNING or _CONTAINING
    result: _PaletteResult


def palette_routes(authenticate: PageAuthenticator) -> list[BaseRoute]:
    """Return the route `/portal/palette`, which finds what a user may see or do, and answers with JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            context, _ = await authenticate(request)
            call = HandlerCall(query=unique_query_params(request))
            listing(context, call)
            await context.events.ensure_built()
            found = _search_palette(context, call.parse_query(_PaletteQuery).q)
        except Exception as error:
            status, sentence = status_and_message(error, Surface.PORTAL)
            return PlainTextResponse(sentence, status_code=status)
        return Response(
            msgspec.json.encode(found), media_type="application/json", headers={"Cache-Control": "no-store"}
        )

    return [Route(f"{PORTAL_PREFIX}/palette", endpoint, methods=["GET"])]


def _search_palette(context: PortalContext, text: str) -> _PaletteResults:
    wanted = " ".join(text.split()).casefold()
    vms = _found_vms(context, wanted, _MAX_VMS)
    found = [
        *_vms(context, wanted, vms),
        *_actions_on_vms(context, wanted),
        *_pages(context, wanted),
        *_actions(context, wanted),
        *_hosts(context, wanted),
        *_scopes(context, wanted),
        *_events(context, wanted, vms[:_MAX_VMS_WITH_EVENTS]),
        *_rollouts(context, wanted),
    ]
    found.sort(key=lambda ranked: ranked.rank)  # stable: kinds stay in this order
    return _PaletteResults(results=tuple(ranked.result for ranked in found[:MAX_RESULTS]))


def _rank(name: str, wanted: str) -> int | None:
    folded = name.casefold()
    if folded == wanted:
        return _EXACT
    if folded.startswith(wanted) or f" {wanted}" in folded:
        return _BEGINNING
    return _CONTAINING if wanted in folded else None


def _pages(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    sees_nodes = context.dependencies.is_cluster and context.principal.may(Right.READ, ROOT_RESOURCE)
    subpages = SUBPAGES if wanted and context.principal.may(Right.READ, ROOT_RESOURCE) else ()
    for page in (*pages_for(is_cluster=sees_nodes), *subpages):
        if (rank := _rank(page.title, wanted)) is not None or (rank := _rank(page.summary, wanted)) is not None:
            result = _PaletteResult(kind="page", title=page.title, detail=page.summary, href=page.path, keys=page.keys)
            yield _RankedResult(rank, result)


def _actions(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    _, _, is_lab = context.control.lab_clock.status()
    matching = 0
    for form in FORMS.values():
        rank = _rank(form.title, wanted)
        if rank is None or _needs_id(form) or (form.name.startswith("clock") and not is_lab):
            continue
        if not _may_submit(context, form) or (wanted and matching == _MAX_OTHERS):
            continue
        matching += 1
        yield _RankedResult(rank, _action(form, form.title, {}))


def _needs_id(form: Form) -> bool:
    return form in EVENT_FORMS or any(field.kind is FieldKind.ID for field in form.fields)


def _may_submit(context: PortalContext, form: Form) -> bool:
    right = form.api_route(context.api_routes).right
    if form in VM_FORMS:
        return context.principal.may_anywhere(right)
    return context.principal.may(right, ROOT_RESOURCE)


def _action(form: Form, title: str, values: dict[str, str]) -> _PaletteResult:
    query = f"?{urlencode(values)}" if values else ""
    href = f"{PORTAL_PREFIX}/forms/{form.name}{query}"
    return _PaletteResult(kind="action", title=title, detail=form.description.partition(". ")[0].rstrip("."), href=href)


def _actions_on_vms(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    """`restart web-0` as a form that is filled in; only for VMs that the user may operate."""
    verb, _, name = wanted.partition(" ")
    forms = [form for form in VM_FORMS if form.name.startswith(verb) or form.button.casefold().startswith(verb)]
    vms = _found_vms(context, name, _MAX_OTHERS) if forms else []
    for form in forms:
        right = form.api_route(context.api_routes).right
        for vm in vms:
            if context.principal.may(right, vm_resource_id(vm)):
                rank = _EXACT if vm.name.casefold() == name else _BEGINNING
                yield _RankedResult(rank, _action(form, f"{form.button} {vm.name}", {"vm": vm.key}))


def _found_vms(context: PortalContext, text: str, limit: int) -> list[Vm]:
    keys = context.overview.find_by_name(context.directory, text, limit)
    return [vm for vm in map(context.store.vm, keys) if vm is not None]


def _vms(context: PortalContext, wanted: str, vms: Sequence[Vm]) -> Iterator[_RankedResult]:
    for vm in vms:
        state = state_label(context.overview.state_of(vm.key), "vm")
        detail = ", ".join(filter(None, (state, vm.resource_group, vm.host)))
        result = _PaletteResult(
            kind="VM", title=vm.name, detail=detail, href=f"{PORTAL_PREFIX}/vms/{quote(vm.key, safe='/')}"
        )
        yield _RankedResult(_rank(vm.name, wanted) or _EXACT, result)


def _hosts(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    if not wanted:
        return
    visible = context.overview.visible_hosts(context.directory)
    hosts = (host for host in context.control.placement.hosts() if visible is None or host.name in visible)
    for host in islice((host for host in hosts if wanted in host.name.casefold()), _MAX_OTHERS):
        result = _PaletteResult(
            kind="host",
            title=host.name,
            detail=", ".join((state_label(host.health, "host"), host.location)),
            href=f"{PORTAL_PREFIX}/hosts/{quote(host.name, safe='')}",
        )
        yield _RankedResult(_rank(host.name, wanted) or _EXACT, result)


def _scopes(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    """Scopes of several VMs. A standalone VM is a scope of its own, which is found as a VM."""
    if not wanted:
        return
    visible = context.overview.visible_scopes(context.directory)
    ids = (
        (block.id, group.id)
        for group, _ in context.overview.visible_groups(context.directory)
        for block in group.blocks.values()
        if not block.is_standalone
        and wanted in scope_name_from_id(block.id)
        and (visible is None or block.id in visible)
    )
    for scope_id, group in islice(ids, _MAX_OTHERS):
        result = _PaletteResult(
            kind="scope",
            title=scope_name_from_id(scope_id),
            detail=f"resource group {group.rpartition('/')[2]}",
            href=f"{PORTAL_PREFIX}/scopes/{quote(scope_id, safe='/:')}",
        )
        rank = _rank(scope_name_from_id(scope_id), wanted)
        yield _RankedResult(_CONTAINING if rank is None else rank, result)


def _events(context: PortalContext, wanted: str, vms: Sequence[Vm]) -> Iterator[_RankedResult]:
    found: dict[str, tuple[Event, int]] = {}
    if _EVENT_ID.fullmatch(wanted):
        found.update((event.id, (event, rank)) for event, rank in _events_by_id(context, wanted.upper()))
    for vm in vms:
        for event in context.store.events(scope_id=vm.scope_id, statuses=_LIVE, limit=_MAX_READ):
            if event_lists_vm(event, vm.name):
                found.setdefault(event.id, (event, _BEGINNING))
    if len(wanted) > 2 and len(found) < _MAX_OTHERS:
        of_kind = (event for event in _live_events(context) if event_kind_text(event).casefold().startswith(wanted))
        for event in islice(of_kind, _MAX_OTHERS):
            found.setdefault(event.id, (event, _CONTAINING))
    for event, rank in islice(found.values(), _MAX_OTHERS):
        title = f"{event_kind_text(event)} of {join_names(event.vms)}"
        detail = f"{state_label(event_state(event), 'event')}, {event.id[:8]}"
        result = _PaletteResult(kind="event", title=title, detail=detail, href=f"{PORTAL_PREFIX}/events/{event.id}")
        yield _RankedResult(rank, result)


def _events_by_id(context: PortalContext, wanted: str) -> Iterator[tuple[Event, int]]:
    if len(wanted) == _EVENT_ID_LENGTH:
        event = context.store.event(wanted)
        if event is not None and context.can_see_scope(event.scope_id):
            yield event, _EXACT
        return
    beginning = (event for event in _live_events(context) if event.id.startswith(wanted))
    yield from ((event, _BEGINNING) for event in islice(beginning, _MAX_OTHERS))


def _live_events(context: PortalContext) -> Iterator[Event]:
    visible = context.overview.visible_scopes(context.directory)
    live = chain(context.events.started(), context.events.scheduled())
    return (event for event in live if visible is None or event.scope_id in visible)


def _rollouts(context: PortalContext, wanted: str) -> Iterator[_RankedResult]:
    """Open rollouts and recent ones, by their target, impact or id; only for users who may see everything."""
    if not wanted or not context.principal.may(Right.READ, ROOT_RESOURCE):
        return
    requests = (*context.store.requests(open_only=True), *reversed(context.store.requests(limit=_MAX_READ)))
    rollouts = {request.id: request for request in requests if request.rollout is not None}
    found = 0
    for request in rollouts.values():
        assert request.rollout is not None
        title = f"{request.rollout.impact.capitalize()} over {rollout_target_text(request.rollout)}"
        rank = _BEGINNING if request.id.startswith(wanted) else _rank(f"rollout {title}", wanted)
        if rank is None or found == _MAX_OTHERS:
            continue
        found += 1
        detail = f"{state_label(request.rollout.progress, 'rollout')}, {request.id[:8]}"
        result = _PaletteResult(
            kind="rollout", title=title, detail=detail, href=f"{PORTAL_PREFIX}/rollouts/{request.id}"
        )
        yield _RankedResult(rank, result)
