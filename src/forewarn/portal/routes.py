"""Routes of the portal: the table of pages, and how a request becomes a rendered or exported page.

Each page is one `PageRoute`: path, handler, template and the right it needs. A handler returns a msgspec struct,
which the template receives as `page`; `?as=json`, `csv` or `svg` sends the same struct as a file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from forewarn.core.access import Principal, Right
from forewarn.errors import NotFound, Rejected
from forewarn.portal import (
    clients_page,
    event_page,
    fleet_page,
    history_page,
    host_pages,
    lab_page,
    request_page,
    rollout_pages,
    scope_page,
    timeline,
    vm_page,
)
from forewarn.portal.context import (
    PORTAL_PREFIX,
    CurrentSession,
    PageAuthenticator,
    PortalContext,
    SessionAuthenticator,
)
from forewarn.portal.export import CsvExportable, SvgExportable, encode_csv
from forewarn.portal.fleet_overview import FleetOverview
from forewarn.portal.forms import form_routes
from forewarn.portal.live_stream import live_routes
from forewarn.portal.rendering import error_page_response, page_response, sign_in_redirect
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.request_parsing import HandlerCall, unique_query_params
from forewarn.web.routing import ApiRouteTable, Handler, HandlerSignature, ResourceSelector, handler_signature, listing


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A handler shows a msgspec Struct, which the template is given as `page`; `?as=json` sends it as it is."""

    path: str
    handler: Handler
    template: str
    right: Right = Right.READ
    over: ResourceSelector = listing

    @property
    def signature(self) -> HandlerSignature:
        return handler_signature(self.handler)


# A VM's name may hold a slash (group/name), so it is a `:path`; of two paths that fit, the first counts.
PAGES: tuple[PageRoute, ...] = (
    PageRoute("/", fleet_page.show_fleet_page, "fleet.html"),
    PageRoute("/scopes/{id:path}", scope_page.show_scope_page, "scope.html"),
    PageRoute("/vms/{name:path}", vm_page.show_vm_page, "vm.html"),
    PageRoute("/hosts", host_pages.show_hosts_page, "hosts.html"),
    PageRoute("/hosts/{name}", host_pages.show_host_page, "host.html"),
    PageRoute("/timeline", timeline.show_timeline_page, "timeline.html"),
    PageRoute("/events/{id}", event_page.show_event_page, "event.html"),
    PageRoute("/rollouts", rollout_pages.show_rollouts_page, "rollouts.html"),
    PageRoute("/rollouts/{id}", rollout_pages.show_rollout_page, "rollout.html"),
    PageRoute("/requests/{id}", request_page.show_request_page, "request.html"),
    PageRoute("/lab", lab_page.show_lab_page, "lab.html"),
    PageRoute("/clients", clients_page.show_clients_page, "clients.html"),
    PageRoute("/history", history_page.show_history_page, "history.html"),
)

_FORMAT_PARAM = "as"  # the query's word for another form than HTML
_PAGING_PARAMS = frozenset({"page", "before", "after", "limit"})  # its words for a part: who names one wants no more
_MAX_CONCURRENT_EXPORTS = 2  # made at a time: each may hold the whole fleet


def portal_routes(
    dependencies: Dependencies, directory: FleetDirectory, welcome: SessionAuthenticator, api_routes: ApiRouteTable
) -> list[BaseRoute]:
    """Everything under /portal that needs somebody signed in, and the way there from /."""

    files = asyncio.Semaphore(_MAX_CONCURRENT_EXPORTS)
    overview = FleetOverview(dependencies.control.store, dependencies.control.placement, directory)

    async def enter(request: Request) -> tuple[PortalContext, CurrentSession]:
        async def again() -> Principal:
            return (await welcome(request)).principal

        visit = await welcome(request)
        await overview.ensure_built()
        visit = replace(
            visit, history_seq=overview.seq
        )  # what the store has beyond that may not have been heard of yet
        context = PortalContext(
            dependencies, directory, visit.principal, again, overview=overview, api_routes=api_routes
        )
        return context, visit

    return [
        Route("/", _redirect_to_portal),
        Route(PORTAL_PREFIX, _redirect_to_portal),
        Mount(f"{PORTAL_PREFIX}/static", app=StaticFiles(packages=[("forewarn.portal", "static")])),
        *live_routes(enter),
        *form_routes(enter),
        *(_page_route(enter, line, files) for line in PAGES),
        Route(f"{PORTAL_PREFIX}/{{path:path}}", _not_found_endpoint(enter)),
    ]


async def _redirect_to_portal(request: Request) -> Response:
    return RedirectResponse(f"{PORTAL_PREFIX}/")


def _page_route(enter: PageAuthenticator, line: PageRoute, files: asyncio.Semaphore) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            context, visit = await enter(request)
        except Exception as error:
            return sign_in_redirect(error, request)
        try:
            return await _page_response(line, context, visit, request, files)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        except Exception as error:
            return error_page_response(error, context, visit, request)

    return Route(f"{PORTAL_PREFIX}{line.path}", endpoint, methods=["GET"])


async def _page_response(
    line: PageRoute, context: PortalContext, visit: CurrentSession, request: Request, files: asyncio.Semaphore
) -> Response:
    query = unique_query_params(request)
    wanted = query.pop(_FORMAT_PARAM, "html")
    is_whole = wanted != "html" and _PAGING_PARAMS.isdisjoint(query)
    call = HandlerCall(path_params=request.path_params, query=query, for_export=is_whole)
    for resource in line.over(context, call):
        context.require(line.right, resource)
    given = line.signature.parse(call)
    if wanted == "html":
        return page_response(line.template, context, visit, request, page=await line.handler(context, call, **given))
    async with files:
        return await _export_response(await line.handler(context, call, **given), line, wanted)


def _not_found_endpoint(enter: PageAuthenticator) -> Any:
    async def endpoint(request: Request) -> Response:
        try:
            context, visit = await enter(request)
        except Exception as error:
            return sign_in_redirect(error, request)
        return error_page_response(
            NotFound(f"{request.url.path} is no page here: start at the fleet"), context, visit, request
        )

    return endpoint


async def _export_response(view: Any, line: PageRoute, wanted: str) -> Response:
    """The view for programs and spreadsheets, as a file."""
    match wanted:
        case "json":
            body, media = msgspec.json.encode(view), "application/json"
        case "csv" if isinstance(view, CsvExportable):
            body, media = await asyncio.to_thread(encode_csv, view), "text/csv; charset=utf-8"
        case "svg" if isinstance(view, SvgExportable):
            body, media = view.svg().encode(), "image/svg+xml"
        case _:
            raise Rejected(f"this page cannot be taken away as {wanted!r}: say json, or another that it offers")
    name = line.path.strip("/").partition("/")[0] or "fleet"
    return Response(
        body, media_type=media, headers={"Content-Disposition": f'attachment; filename="forewarn-{name}.{wanted}"'}
    )
