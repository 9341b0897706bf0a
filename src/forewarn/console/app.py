"""The starlette app: built from the route table, with one place where calls are read and answers written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.console.call import Call
from forewarn.console.house import House
from forewarn.console.refusal import response_for, said
from forewarn.console.room import Room
from forewarn.console.routes import PREFIX, ROUTES, RouteLine
from forewarn.errors import Rejected

_LONGEST_BODY = 16 * 1024 * 1024  # a fleet file is the longest there is


def build(house: House) -> Starlette:
    room = Room(house)
    by_path: dict[str, list[RouteLine]] = defaultdict(list)
    for line in ROUTES:
        by_path[line.path].append(line)
    routes = [_route(room, path, lines) for path, lines in by_path.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    app.router.redirect_slashes = False
    app.state.house = house
    return app


def _route(room: Room, path: str, lines: Iterable[RouteLine]) -> Route:
    by_method = {line.method: line for line in lines}

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await _answer(room, by_method[method], request)

    return Route(PREFIX + path, endpoint, methods=list(by_method))


async def _answer(room: Room, line: RouteLine, request: Request) -> Response:
    try:
        body = await _body(request)
        if body is None:
            return said(413, "Rejected", f"the body is longer than {_LONGEST_BODY} bytes: send less")
        call = Call(names=request.path_params, query=_query(request), body=body)
        answer = msgspec.json.encode(await line.handler(room, call))
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is left to read it
    except Exception as error:
        return response_for(error)
    return Response(answer, status_code=line.status, media_type="application/json")


async def _body(request: Request) -> bytes | None:
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > _LONGEST_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def _query(request: Request) -> dict[str, str]:
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise Rejected(f"the query has {name!r} more than once: give it once")
    return dict(given)


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
