"""`GET /metrics`, for Prometheus: to whoever may read everything, by a token or by being signed in to the portal."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from forewarn.console.portal.visit import Welcome
from forewarn.console.refusal import response_for
from forewarn.console.room import Enter, Room
from forewarn.core.access import Right
from forewarn.core.resource import EVERYTHING
from forewarn.errors import NotFound, Unauthenticated

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_routes(enter: Enter, welcome: Welcome | None, see: Callable[..., Room]) -> list[BaseRoute]:
    async def endpoint(request: Request) -> Response:
        try:
            room = await _let_in(request)
            room.must(Right.READ, EVERYTHING)
            if room.house.metrics is None:
                raise NotFound("this service counts nothing for Prometheus: ask one that `forewarn serve` has started")
            shown = await room.house.metrics()
        except Exception as error:
            return response_for(error)
        return Response(shown, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    async def _let_in(request: Request) -> Room:
        if welcome is None or "authorization" in request.headers:
            return await enter(request)
        try:
            return see((await welcome(request)).principal)
        except Unauthenticated:
            return await enter(request)  # who says what a program has to send

    return [Route("/metrics", endpoint, methods=["GET"])]
