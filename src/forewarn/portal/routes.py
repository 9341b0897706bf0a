"""From a request to a page and back: one place where visitors are let in, pages read and written."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from forewarn.console.call import Call
from forewarn.console.directory import Directory
from forewarn.console.house import House
from forewarn.console.portal.context import EnterPortal, PortalContext
from forewarn.console.portal.form import form_routes
from forewarn.console.portal.frame import framed, not_let_in, refused
from forewarn.console.portal.live import live_routes
from forewarn.console.portal.overview import Overview
from forewarn.console.portal.page import PREFIX, Drawn, PageLine, Tabular
from forewarn.console.portal.pages import PAGES
from forewarn.console.portal.visit import Visit, Welcome
from forewarn.console.reading import read_query
from forewarn.console.route import RouteTable
from forewarn.core.access import Principal
from forewarn.errors import NotFound, Rejected

_AS = "as"  # the query's word for another form than HTML
_OF_PAGES = frozenset({"page", "before", "after", "limit"})  # its words for a part: who names one wants no more
_MOST_FILES = 2  # made at a time: each may hold the whole fleet


def portal_routes(house: House, directory: Directory, welcome: Welcome, api_routes: RouteTable) -> list[BaseRoute]:
    """Everything under /portal that needs somebody signed in, and the way there from /."""

    files = asyncio.Semaphore(_MOST_FILES)
    overview = Overview(house.control.store, house.control.placement, directory)

    async def enter(request: Request) -> tuple[PortalContext, Visit]:
        async def again() -> Principal:
            return (await welcome(request)).principal

        visit = await welcome(request)
        await overview.ready()
        visit = replace(visit, seq=overview.seq)  # what the store has beyond that may not have been heard of yet
        room = PortalContext(house, directory, visit.principal, again, overview=overview, api_routes=api_routes)
        return room, visit

    return [
        Route("/", _to_portal),
        Route(PREFIX, _to_portal),
        Mount(f"{PREFIX}/static", app=StaticFiles(packages=[("forewarn.console.portal", "static")])),
        *live_routes(enter),
        *form_routes(enter),
        *(_page_route(enter, line, files) for line in PAGES),
        Route(f"{PREFIX}/{{path:path}}", _nowhere(enter)),
    ]


async def _to_portal(request: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/")


def _page_route(enter: EnterPortal, line: PageLine, files: asyncio.Semaphore) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            room, visit = await enter(request)
        except Exception as error:
            return not_let_in(error, request)
        try:
            return await _answer(line, room, visit, request, files)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        except Exception as error:
            return refused(error, room, visit, request)

    return Route(f"{PREFIX}{line.path}", endpoint, methods=["GET"])


async def _answer(
    line: PageLine, room: PortalContext, visit: Visit, request: Request, files: asyncio.Semaphore
) -> Response:
    query = read_query(request)
    wanted = query.pop(_AS, "html")
    is_whole = wanted != "html" and _OF_PAGES.isdisjoint(query)
    call = Call(names=request.path_params, query=query, whole=is_whole)
    for resource in line.over(room, call):
        room.must(line.right, resource)
    given = line.signature.read(call)
    if wanted == "html":
        return framed(line.template, room, visit, request, page=await line.handler(room, call, **given))
    async with files:
        return await _taken_away(await line.handler(room, call, **given), line, wanted)


def _nowhere(enter: EnterPortal) -> Any:
    async def endpoint(request: Request) -> Response:
        try:
            room, visit = await enter(request)
        except Exception as error:
            return not_let_in(error, request)
        return refused(NotFound(f"{request.url.path} is no page here: start at the fleet"), room, visit, request)

    return endpoint


async def _taken_away(view: Any, line: PageLine, wanted: str) -> Response:
    """The view for programs and spreadsheets, as a file."""
    match wanted:
        case "json":
            body, media = msgspec.json.encode(view), "application/json"
        case "csv" if isinstance(view, Tabular):
            body, media = await asyncio.to_thread(_csv, view), "text/csv; charset=utf-8"
        case "svg" if isinstance(view, Drawn):
            body, media = view.svg().encode(), "image/svg+xml"
        case _:
            raise Rejected(f"this page cannot be taken away as {wanted!r}: say json, or another that it offers")
    name = line.path.strip("/").partition("/")[0] or "fleet"
    return Response(
        body, media_type=media, headers={"Content-Disposition": f'attachment; filename="forewarn-{name}.{wanted}"'}
    )


def _csv(view: Tabular) -> bytes:
    """In a thread: of a whole fleet it takes a while."""
    table = view.table()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows([_inert(cell) for cell in row] for row in table.rows)
    if table.note:
        writer.writerow([table.note])
    return text.getvalue().encode()


def _inert(cell: Any) -> Any:
    """A spreadsheet would run what begins like a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
