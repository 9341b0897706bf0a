"""Signing in to the portal at an issuer outside: there, back with a code, and in."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.access.claims import BadToken, shown
from forewarn.access.code_flow import CodeFlow, Flow
from forewarn.console.portal.answering import answering, go_on, not_in
from forewarn.console.portal.cookie import Cookie
from forewarn.console.portal.frame import SIGN_IN
from forewarn.console.portal.local import local
from forewarn.console.portal.session import Lobby
from forewarn.errors import Rejected, Unauthenticated

ISSUER = f"{SIGN_IN}/issuer"
CALLBACK = f"{SIGN_IN}/callback"
_FINISH = f"{SIGN_IN}/finish"
_LASTS_S = 600  # from leaving for the issuer to coming back
_TOLD = ("code", "state", "error", "error_description")  # by the issuer, when somebody comes back
_LONGEST = 4096
_OTHER = "this sign-in was begun in another browser, or more than ten minutes ago: sign in once more"


def issuer_routes(lobby: Lobby, code_flow: CodeFlow) -> list[BaseRoute]:
    cookie = Cookie("forewarn-flow", lobby.sign_in.tenant_id, lasts_s=_LASTS_S)
    issuer = code_flow.issuer.url

    async def leave(request: Request) -> Response:
        flow = Flow.begun()
        address = await code_flow.address(flow, _redirect_uri(request), lobby.house.real_time())
        response = RedirectResponse(address, status_code=303)
        cookie.put(request, response, _kept(flow, local(request.query_params.get("to", ""))))
        return response

    async def come_back(request: Request) -> Response:
        """Cookies are sent to us by ourselves only, so the next step is one from a page of ours."""
        told = {name: text for name, text in request.query_params.items() if name in _TOLD and len(text) <= _LONGEST}
        return go_on(f"{_FINISH}?{urlencode(told)}", "Signing in")

    async def finish(request: Request) -> Response:
        flow, to = _begun(cookie.read(request))
        if not flow.is_answered_by(request.query_params.get("state", "")):
            raise Rejected(_OTHER)
        response: Response = RedirectResponse(to, status_code=303)
        try:
            claims = await code_flow.redeem(
                _code(request, issuer), flow, _redirect_uri(request), lobby.house.real_time()
            )
            lobby.begin(request, response, claims, issuer=issuer)
        except BadToken as error:
            response = not_in(Unauthenticated(str(error)))
        except Exception as error:
            response = not_in(error)
        cookie.take_back(request, response)  # whatever came of it, that code is spent
        return response

    return [
        Route(ISSUER, answering(leave), methods=["GET"]),
        Route(CALLBACK, answering(come_back), methods=["GET"]),
        Route(_FINISH, answering(finish), methods=["GET"]),
    ]


def _code(request: Request, issuer: str) -> str:
    told = request.query_params
    if "error" in told:
        why = shown(told.get("error_description") or told["error"])
        raise Unauthenticated(f"issuer {issuer!r} did not sign you in ({why}): try again, or sign in as another")
    if not (code := told.get("code", "")):
        raise Rejected(f"issuer {issuer!r} sent you back without a code: sign in once more")
    return code


def _redirect_uri(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{CALLBACK}"


def _kept(flow: Flow, to: str) -> str:
    return f"{flow.secret}.{urlsafe_b64encode(to.encode()).decode().rstrip('=')}"


def _begun(text: str) -> tuple[Flow, str]:
    secret, _, encoded = text.partition(".")
    if not secret:
        raise Rejected(_OTHER)
    try:
        to = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        to = ""
    return Flow(secret), local(to)
