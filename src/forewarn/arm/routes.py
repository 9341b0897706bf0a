"""From a request to a route of Azure's API and back: one place where such calls are read and answers written."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.console.arm.refusal import answer_for, refusal
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, Handler, Openly
from forewarn.console.arm.routes import ROUTES
from forewarn.console.arm.version import must_be_known
from forewarn.console.reading import LONGEST_BODY, LONGEST_FORM, read_query, read_whole
from forewarn.console.room import Enter

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_FORM = "application/x-www-form-urlencoded"


def arm_routes(enter: Enter) -> list[Route]:
    async def endpoint(request: Request) -> Response:
        answer = await _answer(enter, request)
        body = b"" if answer.body is None else msgspec.json.encode(answer.body)
        media = None if answer.body is None else "application/json"
        return Response(body, status_code=answer.status, media_type=media, headers=dict(answer.headers))

    return [Route("/{path:path}", endpoint, methods=_METHODS)]


async def _answer(enter: Enter, request: Request) -> ArmAnswer:
    path = _plain(request.scope["path"])  # not from its URL, where some signs are quoted again
    fitting = [(route, names) for route in ROUTES if (names := route.names_in(path)) is not None]
    method = "GET" if request.method == "HEAD" else request.method
    found = next(((route, names) for route, names in fitting if route.method == method), None)
    if found is None:
        return _not_served(request.method, path, [route.method for route, _ in fitting])
    try:
        return await _call(enter, request, path, *found)
    except ClientDisconnect:
        return ArmAnswer(status=400)  # nobody is left to read it
    except Exception as error:
        return answer_for(error)


async def _call(enter: Enter, request: Request, path: str, route: ArmRoute, names: dict[str, str]) -> ArmAnswer:
    # Who asks is settled first: a stranger learns nothing, not even that the body is too long.
    room = await enter(request) if route.right is not None else None
    longest = LONGEST_BODY if room is not None else LONGEST_FORM
    body = await read_whole(request, longest)
    if body is None:
        return refusal(413, "RequestEntityTooLarge", f"the body is longer than {longest} bytes: send less")
    call = ArmCall(
        method=route.method,
        path=path,
        names=names,
        query=read_query(request),
        body=body,
        base=f"{request.url.scheme}://{request.url.netloc}",
        resource=route.resource(names),
        fields=_fields(request, body),
        authorization=request.headers.get("authorization", ""),
    )
    if room is None or route.right is None:
        return await cast(Openly, route.handler)(request.app.state.dependencies, call)
    if room.house.strict_api_versions:
        must_be_known(call.api_version, path)
    route.over(room, call, route.right)
    return await cast(Handler, route.handler)(room, call)


def _plain(path: str) -> str:
    """As clients mean it: some double a slash, some end with one."""
    single = re.sub(r"/{2,}", "/", path)
    return single if single == "/" else single.rstrip("/")


def _fields(request: Request, body: bytes) -> dict[str, str]:
    if not request.headers.get("content-type", "").startswith(_FORM):
        return {}
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True))


def _not_served(method: str, path: str, allowed: list[str]) -> ArmAnswer:
    if allowed:
        message = f"{method} {path} is not served: use {', '.join(sorted(set(allowed)))}"
        answer = refusal(405, "MethodNotAllowed", message)
        return ArmAnswer(status=405, body=answer.body, headers={"Allow": ", ".join(sorted(set(allowed)))})
    message = (
        f"{method} {path} is not served here: our own API lives under /forewarn/v1/, Azure's under /subscriptions/"
    )
    return refusal(404, "ResourceNotFound", message)
