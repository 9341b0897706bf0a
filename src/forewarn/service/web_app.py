"""The starlette app: built from the route table, with one place where calls are read and answers written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from forewarn.console.arm.app import arm_routes
from forewarn.console.call import Call
from forewarn.console.directory import Directory
from forewarn.console.house import House
from forewarn.console.metrics import metrics_routes
from forewarn.console.patience import Patience
from forewarn.console.portal.app import portal_routes
from forewarn.console.portal.headers import Headers
from forewarn.console.portal.visit import Welcome
from forewarn.console.reading import LONGEST_BODY, read_query, read_whole
from forewarn.console.refusal import response_for, said
from forewarn.console.room import Enter, Room
from forewarn.console.route import PREFIX, RouteLine
from forewarn.console.routes import ROUTES
from forewarn.console.signature import Signature
from forewarn.core.access import Principal, owner

Admit = Callable[[Request], Awaitable[Principal]]  # who is calling; Unauthenticated if that cannot be told


def build(
    house: House,
    admit: Admit | None = None,
    directory: Directory | None = None,
    welcome: Welcome | None = None,
    doors: Sequence[BaseRoute] = (),
) -> Starlette:
    """The app for those whom `admit` lets in; without it, for the owner of the socket, who may do everything.

    With `welcome`, which tells who is signed in there, it has the portal too; `doors` are where people sign in.
    """
    admit = admit or _the_owner(house)
    names = directory or Directory(house.control.store)

    async def enter(request: Request) -> Room:
        return Room(house, names, await admit(request), lambda: admit(request))

    by_name = {(line.method, line.path): line for line in ROUTES}
    portal = portal_routes(house, names, welcome, by_name) if welcome is not None else []
    scraped = metrics_routes(enter, welcome, partial(Room, house, names))
    app = Starlette(
        routes=[*api_routes(enter), *scraped, *doors, *portal, *arm_routes(enter)],
        exception_handlers={HTTPException: _not_served},
    )
    app.router.redirect_slashes = False
    if welcome is not None:
        app.add_middleware(Headers)
    if house.shown is not None:
        app.add_middleware(Patience, shown=house.shown)
    app.state.dependencies = house
    return app


def _the_owner(house: House) -> Admit:
    principal = owner(house.who)

    async def admit(request: Request) -> Principal:
        return principal

    return admit


def api_routes(enter: Enter) -> list[BaseRoute]:
    """Everything under `/forewarn/v1`."""
    by_path: dict[str, list[RouteLine]] = defaultdict(list)
    for line in ROUTES:
        by_path[line.path].append(line)
    routes = [_route(enter, path, lines) for path, lines in by_path.items()]
    return [Mount(PREFIX, app=Router(routes, redirect_slashes=False))]


def _route(enter: Enter, path: str, lines: Iterable[RouteLine]) -> Route:
    by_method = {line.method: (line, line.signature) for line in lines}

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await _answer(enter, *by_method[method], request)

    return Route(path, endpoint, methods=list(by_method))


async def _answer(enter: Enter, line: RouteLine, signature: Signature, request: Request) -> Response:
    try:
        room = await enter(request)
        body = await read_whole(request)
        if body is None:
            return said(413, "Rejected", f"the body is longer than {LONGEST_BODY} bytes: send less")
        call = Call(names=request.path_params, query=read_query(request), body=body)
        for resource in line.over(room, call):
            room.must(line.right, resource)
        answer = msgspec.json.encode(await line.handler(room, call, **signature.read(call)))
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is left to read it
    except Exception as error:
        return response_for(error)
    return Response(answer, status_code=line.status, media_type="application/json")


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{what} is not served: use {allowed}"
        return said(405, "Rejected", message, headers=dict(error.headers or {}))
    if error.status_code == 404:
        return said(404, "NotFound", f"{what} is not served here: the API lives under {PREFIX}/")
    return said(error.status_code, "Rejected", f"{what} cannot be served: {error.detail}")
