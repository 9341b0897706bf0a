"""The frame around every page: who is looking, what time it is in the lab, and refusals in the API's own words."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forewarn.console.portal.page import PREFIX
from forewarn.console.portal.rendering import render
from forewarn.console.portal.visit import Visit
from forewarn.console.refusal import outcome_of
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.resource import EVERYTHING
from forewarn.errors import Unauthenticated

SIGN_IN = f"{PREFIX}/sign-in"
_HTML = "text/html; charset=utf-8"
_REFUSALS = {403: "Not allowed", 404: "Not found"}  # the titles of those that are no deed undone


def framed(template: str, room: Room, visit: Visit, request: Request, *, status: int = 200, **given: Any) -> Response:
    """A page for somebody who is signed in."""
    now, speed, lab = room.control.labtime.show()

    def may(right: str, over: str = EVERYTHING) -> bool:
        return room.principal.may(Right(right), over)

    text = render(
        template,
        who=room.who,
        token=visit.token,
        path=request.url.path,
        query=dict(request.query_params),
        now=now,
        speed=speed,
        lab=lab,
        seq=visit.seq,
        may=may,
        **given,
    )
    return Response(text, status_code=status, media_type=_HTML)


def plain(template: str, *, status: int = 200, **given: Any) -> Response:
    """A page for somebody who is not signed in."""
    return Response(render(template, **given), status_code=status, media_type=_HTML)


def refused(error: Exception, room: Room, visit: Visit, request: Request) -> Response:
    status, sentence = outcome_of(error)
    title = _REFUSALS.get(status, "Not done")
    return framed("refusal.html", room, visit, request, status=status, title=title, sentence=sentence)


def not_let_in(error: Exception, request: Request) -> Response:
    """To the page where one signs in, and from there back; where that would not help, why."""
    if isinstance(error, Unauthenticated):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{SIGN_IN}?{urlencode({'to': target})}", status_code=303)
    status, sentence = outcome_of(error)
    return plain("plain.html", status=status, title="Not now", sentence=sentence)
