"""Signing in to the portal: by a client's secret, by a link that is good once, and out again."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.access.code_flow import CodeFlow
from forewarn.access.link import Links
from forewarn.access.sign_in import claims_of
from forewarn.console.portal.answering import answering, go_on
from forewarn.console.portal.frame import SIGN_IN, plain
from forewarn.console.portal.guard import must_be_ours, must_repeat
from forewarn.console.portal.local import HOME, local
from forewarn.console.portal.oidc import issuer_routes
from forewarn.console.portal.page import PREFIX
from forewarn.console.portal.session import Lobby
from forewarn.console.proof import proven
from forewarn.console.reading import LONGEST_FORM, read_whole
from forewarn.core.access import ADMIN, Client
from forewarn.errors import Rejected, Unauthenticated

ONCE = f"{SIGN_IN}/once"
_FORM = "application/x-www-form-urlencoded"
_AHEAD = ("sec-purpose", "purpose", "x-purpose", "x-moz")  # by which browsers say that nobody has clicked yet
_NOBODY_YET = "a browser that looks ahead signs nobody in: open the link yourself"


def sign_in_routes(lobby: Lobby, links: Links, code_flow: CodeFlow | None = None) -> list[BaseRoute]:
    """All that is open to whoever is not signed in yet. With `code_flow`, people sign in at its issuer."""

    def form(*, status: int = 200, **given: Any) -> Response:
        external = lobby.sign_in.external
        issuer = external.url if external else ""
        usual = {"title": "Sign in", "client_id": ADMIN, "sentence": "", "issuer": issuer, "by_issuer": bool(code_flow)}
        return plain("sign-in.html", status=status, **{**usual, **given})

    async def show(request: Request) -> Response:
        to = local(request.query_params.get("to", ""))
        try:
            await lobby.welcome(request)
        except Unauthenticated:
            return form(to=to)
        return RedirectResponse(to, status_code=303)

    async def take(request: Request) -> Response:
        must_be_ours(request.headers)
        fields = await read_fields(request)
        to, client_id = local(fields.get("to", "")), fields.get("client_id", "").strip()
        response = RedirectResponse(to, status_code=303)
        try:
            lobby.begin(request, response, claims_of(_proven(lobby, client_id, fields.get("secret", "").strip())))
        except Unauthenticated as error:
            return form(status=401, to=to, client_id=client_id, sentence=str(error))
        return response

    async def open_link(request: Request) -> Response:
        if _nobody_clicked(request):
            raise Rejected(_NOBODY_YET)
        whom = links.spend(request.path_params["code"])
        response = go_on(HOME, "Signed in")
        lobby.begin(request, response, whom.claims, is_owner=whom.is_owner)
        return response

    async def sign_out(request: Request) -> Response:
        response = RedirectResponse(SIGN_IN, status_code=303)
        try:
            visit = await lobby.welcome(request)
        except Unauthenticated:
            lobby.forget(request, response)
            return response
        must_repeat(visit, request.headers, await read_fields(request))
        await lobby.end(request, response)
        return response

    return [
        Route(SIGN_IN, answering(show), methods=["GET"]),
        Route(SIGN_IN, answering(take), methods=["POST"]),
        Route(f"{ONCE}/{{code}}", answering(open_link), methods=["GET"]),
        Route(f"{PREFIX}/sign-out", answering(sign_out), methods=["POST"]),
        *(issuer_routes(lobby, code_flow) if code_flow is not None else ()),
    ]


async def read_fields(request: Request) -> dict[str, str]:
    """What a form sent."""
    body = await read_whole(request, LONGEST_FORM)
    if body is None:
        raise Rejected(f"the form is longer than {LONGEST_FORM} bytes: send less")
    if not request.headers.get("content-type", "").startswith(_FORM):
        raise Rejected(f"this takes forms, as {_FORM}: send one")
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True))


def _proven(lobby: Lobby, client_id: str, secret: str) -> Client:
    external = lobby.sign_in.external
    if external is not None:
        raise Unauthenticated(f"clients sign in at {external.url!r}: go there")
    return proven(client_id, secret, lobby.house.control.store)


def _nobody_clicked(request: Request) -> bool:
    """A link is spent by being opened, not by being looked at."""
    looks_ahead = any("pre" in request.headers.get(name, "").lower() for name in _AHEAD)
    return request.method == "HEAD" or looks_ahead or request.headers.get("sec-fetch-dest", "document") != "document"
