"""Routes of the portal: the table of pages, and how a request becomes a rendered or exported page.

Each page is one `PageRoute`: path, handler, template and the right it needs. A handler returns a msgspec struct,
which the template receives as `page`; `?as=json`, `csv` or `svg` sends the same struct as a file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from forewarn.base.times import encode_time
from forewarn.control.directory import FleetDirectory
from forewarn.core.access import Principal, Right
from forewarn.errors import NotFound, Rejected
from forewarn.web.dependencies import Dependencies
from forewarn.web.pipeline import authorize_and_parse
from forewarn.web.portal import (
    budget_page,
    clients_page,
    event_page,
    fleet_page,
    history_page,
    host_pages,
    lab_page,
    nodes_page,
    overview_page,
    request_page,
    rollout_pages,
    scope_page,
    standing_order_page,
    timeline,
    vm_page,
)
from forewarn.web.portal.context import (
    PORTAL_PREFIX,
    CurrentSession,
    PageAuthenticator,
    PortalContext,
    SessionAuthenticator,
)
from forewarn.web.portal.event_index import EventIndex
from forewarn.web.portal.export import CsvExportable, SvgExportable, encode_csv
from forewarn.web.portal.filters import FilterProblem, UnknownFilter
from forewarn.web.portal.fleet_overview import FleetOverview
from forewarn.web.portal.forms import form_routes
from forewarn.web.portal.live_stream import live_routes
from forewarn.web.portal.live_updates import LiveUpdateHub
from forewarn.web.portal.palette import palette_routes
from forewarn.web.portal.rendering import page_response, run_page_request
from forewarn.web.portal.states import state_stylesheet
from forewarn.web.request_parsing import HandlerCall, unique_query_params
from forewarn.web.routing import (
    ApiRouteTable,
    Handler,
    HandlerSignature,
    ResourceSelector,
    everything,
    handler_signature,
    listing,
)


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One page of the portal: its path, its handler and template, and the right that it needs.

    The handler returns a msgspec struct, which the template receives as `page`. Unless the query has page, before,
    after or limit, an export asks the handler for whole lists (`for_export` of the call).
    """

    path: str  # below /portal, in starlette's syntax
    handler: Handler  # takes the PortalContext, the HandlerCall, and `query` if it declares one
    template: str  # name of its file
    right: Right = Right.READ
    resources: ResourceSelector = listing  # those over which the user needs `right`; `listing`: none, handlers filter

    @property
    def signature(self) -> HandlerSignature:
        """What the page's handler declares by its annotations: the struct of its query, and what it returns."""
        return handler_signature(self.handler)


# A VM may be named group/name, so its parameter is a `:path`. The first path that matches wins.
PAGES: tuple[PageRoute, ...] = (
    PageRoute("/", overview_page.show_overview_page, "overview.html"),
    PageRoute("/fleet", fleet_page.show_fleet_page, "fleet.html"),
    PageRoute("/scopes/{id:path}", scope_page.show_scope_page, "scope.html"),
    PageRoute("/vms/{name:path}", vm_page.show_vm_page, "vm.html"),
    PageRoute("/hosts", host_pages.show_hosts_page, "hosts.html"),
    PageRoute("/hosts/{name}", host_pages.show_host_page, "host.html"),
    PageRoute("/timeline", timeline.show_timeline_page, "timeline.html"),
    PageRoute("/events/{id}", event_page.show_event_page, "event.html"),
    PageRoute("/rollouts", rollout_pages.show_rollouts_page, "rollouts.html"),
    PageRoute("/rollouts/{id}", rollout_pages.show_rollout_page, "rollout.html"),
    PageRoute("/budgets", budget_page.show_budgets_page, "budgets.html", resources=everything),
    PageRoute(
        "/standing-order",
        standing_order_page.show_standing_order_page,
        "standing-order.html",
        resources=everything,
    ),
    PageRoute("/requests/{id}", request_page.show_request_page, "request.html"),
    PageRoute("/nodes", nodes_page.show_nodes_page, "nodes.html", resources=everything),
    PageRoute("/lab", lab_page.show_lab_page, "lab.html"),
    PageRoute("/clients", clients_page.show_clients_page, "clients.html"),
    PageRoute("/history", history_page.show_history_page, "history.html"),
)

_FORMAT_PARAM = "as"  # query parameter that asks for a file instead of HTML
_PAGING_PARAMS = frozenset({"page", "before", "after", "limit"})  # an export with one of these holds that page only
_MAX_CONCURRENT_EXPORTS = 2  # each may hold the whole fleet in memory


def portal_routes(
    dependencies: Dependencies,
    directory: FleetDirectory,
    authenticate_session: SessionAuthenticator,
    api_routes: ApiRouteTable,
) -> list[BaseRoute]:
    """Return the routes under /portal that need a signed-in user, and the redirect from / to them.

    All routes share one fleet overview, one event index and one hub of live updates. The last route answers every other
    path under /portal with 404, so sign-in routes must come before these.
    """
    export_slots = asyncio.Semaphore(_MAX_CONCURRENT_EXPORTS)
    overview = FleetOverview(dependencies.control.store, dependencies.control.placement, directory)
    events = EventIndex(dependencies.control)
    hub = LiveUpdateHub(dependencies, overview)

    async def authenticate(request: Request) -> tuple[PortalContext, CurrentSession]:
        async def reauthenticate() -> Principal:
            return (await authenticate_session(request)).principal

        session = await authenticate_session(request)
        await overview.ensure_built()
        # Not the store's last number: the overview may not have taken in its last commits yet.
        session = replace(session, history_seq=overview.seq)
        context = PortalContext(
            dependencies,
            directory,
            session.principal,
            reauthenticate,
            overview=overview,
            events=events,
            store_health=hub.health,
            api_routes=api_routes,
        )
        return context, session

    return [
        Route("/", _redirect_to_portal),
        Route(PORTAL_PREFIX, _redirect_to_portal),
        Route(f"{PORTAL_PREFIX}/static/states.css", _send_state_stylesheet, methods=["GET"]),
        Mount(f"{PORTAL_PREFIX}/static", app=StaticFiles(packages=[("forewarn.web.portal", "static")])),
        *live_routes(authenticate, hub),
        *form_routes(authenticate),
        *palette_routes(authenticate),
        *(_page_route(authenticate, route, export_slots) for route in PAGES),
        Route(f"{PORTAL_PREFIX}/{{path:path}}", _not_found_endpoint(authenticate)),
    ]


async def _send_state_stylesheet(request: Request) -> Response:
    """The style sheet of states, with a validator, so that a browser loads it once per version."""
    text = state_stylesheet()
    validator = f'"{zlib.crc32(text.encode()):08x}"'
    if request.headers.get("if-none-match") == validator:
        return Response(status_code=304, headers={"ETag": validator})
    return Response(text, media_type="text/css", headers={"ETag": validator})


async def _redirect_to_portal(request: Request) -> Response:
    return RedirectResponse(f"{PORTAL_PREFIX}/")


def _page_route(authenticate: PageAuthenticator, route: PageRoute, export_slots: asyncio.Semaphore) -> Route:
    async def endpoint(request: Request) -> Response:
        async def show(context: PortalContext, session: CurrentSession) -> Response:
            return await _page_response(route, context, session, request, export_slots)

        return await run_page_request(request, authenticate, show)

    return Route(f"{PORTAL_PREFIX}{route.path}", endpoint, methods=["GET"])


async def _page_response(
    route: PageRoute, context: PortalContext, session: CurrentSession, request: Request, export_slots: asyncio.Semaphore
) -> Response:
    query = unique_query_params(request)
    export_format = query.pop(_FORMAT_PARAM, "html")
    for_export = export_format != "html" and _PAGING_PARAMS.isdisjoint(query)
    call = HandlerCall(path_params=request.path_params, query=query, for_export=for_export)
    if export_format == "html":
        page, status, problems = await _page_and_problems(route, context, call)
        return page_response(route.template, context, session, request, status=status, page=page, problems=problems)
    arguments = authorize_and_parse(route, context, call)
    async with export_slots:
        try:
            return await _export_response(await route.handler(context, call, **arguments), route, export_format)
        except UnknownFilter as error:
            raise error.reason from error


async def _page_and_problems(
    route: PageRoute, context: PortalContext, call: HandlerCall
) -> tuple[Any, int, list[FilterProblem]]:
    status = 200
    problems: list[FilterProblem] = []
    while True:
        arguments = authorize_and_parse(route, context, call)
        try:
            return await route.handler(context, call, **arguments), status, problems
        except UnknownFilter as error:
            if error.parameter not in call.query:
                raise error.reason from error
            status, problem = error.problem()
            problems.append(problem)
            left = {name: value for name, value in call.query.items() if name != error.parameter}
            call = dataclasses.replace(call, query=left)


def _not_found_endpoint(authenticate: PageAuthenticator) -> Any:
    async def endpoint(request: Request) -> Response:
        async def refuse(context: PortalContext, session: CurrentSession) -> Response:
            raise NotFound(f"{request.url.path} is not a page of the portal: start at the overview")

        return await run_page_request(request, authenticate, refuse)

    return endpoint


async def _export_response(view: Any, route: PageRoute, export_format: str) -> Response:
    match export_format:
        case "json":
            body, media = msgspec.json.encode(view, enc_hook=encode_time), "application/json"
        case "csv" if isinstance(view, CsvExportable):
            body, media = await asyncio.to_thread(encode_csv, view), "text/csv; charset=utf-8"
        case "svg" if isinstance(view, SvgExportable):
            body, media = view.svg().encode(), "image/svg+xml"
        case _:
            raise Rejected(f"this page cannot be exported as {export_format!r}: use one of the formats that it offers")
    name = route.path.strip("/").partition("/")[0] or "overview"
    return Response(
        body,
        media_type=media,
        headers={"Content-Disposition": f'attachment; filename="forewarn-{name}.{export_format}"'},
    )
