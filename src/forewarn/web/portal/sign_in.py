"""Sign-in and sign-out routes: by client secret, by one-time link, and by an OpenID Connect issuer.

These are the only routes open to people who are not signed in. After a redirect from another site the browser sends
no SameSite=Strict cookie, so a page of our own continues the sign-in.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.auth.claims import InvalidToken, quote_excerpt
from forewarn.auth.code_flow import AuthorizationCodeFlow, PendingSignIn
from forewarn.auth.sessions import SignInLinks
from forewarn.auth.token_service import claims_of_client
from forewarn.core.access import ADMIN_CLIENT_ID, RegisteredClient
from forewarn.errors import Rejected, Unauthenticated
from forewarn.web.authentication import verify_client_secret
from forewarn.web.errors import status_and_message
from forewarn.web.portal.browser_security import (
    PORTAL_HOME,
    require_csrf_token,
    require_same_origin,
    safe_redirect_path,
)
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.rendering import SIGN_IN_PATH, public_page_response
from forewarn.web.portal.session import ServiceCookie, SessionManager
from forewarn.web.remedies import Surface, message_for
from forewarn.web.request_parsing import MAX_FORM_BYTES, read_limited_body

_NO_REFERRER = {"Referrer-Policy": "no-referrer"}

SignInEndpoint = Callable[[Request], Awaitable[Response]]


def _with_error_page(handle: SignInEndpoint) -> SignInEndpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request)
        except ClientDisconnect:
            return Response(status_code=400)  # the browser is gone
        except Exception as error:
            return _sign_in_error_page(error)

    return endpoint


def _sign_in_error_page(error: Exception) -> Response:
    status, sentence = status_and_message(error, Surface.PORTAL)
    return public_page_response("public.html", status=status, title="Not signed in", sentence=sentence)


def _continue_page(to: str, title: str) -> Response:
    # After a redirect from another site a browser sends no SameSite=Strict cookie; from this page it does.
    response = public_page_response("sign-in-continue.html", title=title, to=to)
    response.headers.update(_NO_REFERRER)
    return response


OIDC_START_PATH = f"{SIGN_IN_PATH}/issuer"
OIDC_CALLBACK_PATH = f"{SIGN_IN_PATH}/callback"
_OIDC_FINISH_PATH = f"{SIGN_IN_PATH}/finish"
_FLOW_LIFETIME_S = 600  # from the redirect to the issuer until the browser comes back
_CALLBACK_PARAMS = ("code", "state", "error", "error_description")  # that the issuer adds to the callback URL
_MAX_CALLBACK_PARAM_LENGTH = 4096
_FLOW_EXPIRED_MESSAGE = "this sign-in was started in another browser, or more than ten minutes ago: sign in again"


def _oidc_routes(sessions: SessionManager, code_flow: AuthorizationCodeFlow) -> list[BaseRoute]:
    """The routes of a sign-in at an OpenID Connect issuer; a cookie ties start, callback and finish to one browser."""
    cookie = ServiceCookie("forewarn-flow", sessions.sign_in.tenant_id, max_age_s=_FLOW_LIFETIME_S)
    issuer = code_flow.issuer.url

    async def start(request: Request) -> Response:
        flow = PendingSignIn.start()
        address = await code_flow.authorization_url(flow, _redirect_uri(request), sessions.dependencies.real_time())
        response = RedirectResponse(address, status_code=303)
        cookie.write(request, response, _encode_flow(flow, safe_redirect_path(request.query_params.get("to", ""))))
        return response

    async def callback(request: Request) -> Response:
        """The browser comes from another site and sends no cookie yet: a page of ours leads on to `finish`."""
        callback_params = {
            name: text
            for name, text in request.query_params.items()
            if name in _CALLBACK_PARAMS and len(text) <= _MAX_CALLBACK_PARAM_LENGTH
        }
        return _continue_page(f"{_OIDC_FINISH_PATH}?{urlencode(callback_params)}", "Signing in")

    async def finish(request: Request) -> Response:
        flow, to = _decode_flow(cookie.read(request))
        if not flow.matches_state(request.query_params.get("state", "")):
            raise Rejected(_FLOW_EXPIRED_MESSAGE)
        response: Response = RedirectResponse(to, status_code=303)
        try:
            claims = await code_flow.redeem_code(
                _authorization_code(request, issuer), flow, _redirect_uri(request), sessions.dependencies.real_time()
            )
            sessions.start_session(request, response, claims, issuer=issuer)
        except InvalidToken as error:
            response = _sign_in_error_page(Unauthenticated(str(error)))
        except Exception as error:
            response = _sign_in_error_page(error)
        cookie.clear(request, response)  # a code can be redeemed once, successfully or not
        return response

    return [
        Route(OIDC_START_PATH, _with_error_page(start), methods=["GET"]),
        Route(OIDC_CALLBACK_PATH, _with_error_page(callback), methods=["GET"]),
        Route(_OIDC_FINISH_PATH, _with_error_page(finish), methods=["GET"]),
    ]


def _authorization_code(request: Request, issuer: str) -> str:
    callback_params = request.query_params
    if "error" in callback_params:
        why = quote_excerpt(callback_params.get("error_description") or callback_params["error"])
        raise Unauthenticated(f"issuer {issuer!r} did not sign you in ({why}): try again, or use another account")
    if not (code := callback_params.get("code", "")):
        raise Rejected(f"issuer {issuer!r} sent you back without a code: sign in again")
    return code


def _redirect_uri(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{OIDC_CALLBACK_PATH}"


def _encode_flow(flow: PendingSignIn, to: str) -> str:
    return f"{flow.secret}.{urlsafe_b64encode(to.encode()).decode().rstrip('=')}"


def _decode_flow(text: str) -> tuple[PendingSignIn, str]:
    secret, _, encoded = text.partition(".")
    if not secret:
        raise Rejected(_FLOW_EXPIRED_MESSAGE)
    try:
        to = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        to = ""
    return PendingSignIn(secret), safe_redirect_path(to)


ONE_TIME_LINK_PATH = f"{SIGN_IN_PATH}/once"
_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_PREFETCH_HEADERS = ("sec-purpose", "purpose", "x-purpose", "x-moz")  # mark a prefetch or preview
_PREFETCH_MESSAGE = "your browser only prefetched this sign-in link: open it yourself"


def sign_in_routes(
    sessions: SessionManager, links: SignInLinks, code_flow: AuthorizationCodeFlow | None = None
) -> list[BaseRoute]:
    """Return the routes that need no session: sign-in by secret, link or OpenID Connect, and sign-out."""
    form = partial(_sign_in_form, sessions, code_flow is not None)

    async def show(request: Request) -> Response:
        to = safe_redirect_path(request.query_params.get("to", ""))
        try:
            await sessions.authenticate(request)
        except Unauthenticated:
            return form(to=to)
        return RedirectResponse(to, status_code=303)

    async def sign_in(request: Request) -> Response:
        require_same_origin(request.headers)
        fields = await _read_form_fields(request)
        to, client_id = safe_redirect_path(fields.get("to", "")), fields.get("client_id", "").strip()
        response = RedirectResponse(to, status_code=303)
        try:
            sessions.start_session(
                request,
                response,
                claims_of_client(_authenticate_client(sessions, client_id, fields.get("secret", "").strip())),
            )
        except Unauthenticated as error:
            return form(status=401, to=to, client_id=client_id, sentence=message_for(error, Surface.PORTAL))
        return response

    async def open_link(request: Request) -> Response:
        if _is_prefetch(request):
            raise Rejected(_PREFETCH_MESSAGE)
        identity = links.redeem(request.path_params["code"])
        response = _continue_page(PORTAL_HOME, "Signed in")
        sessions.start_session(request, response, identity.claims, is_owner=identity.is_owner)
        return response

    async def sign_out(request: Request) -> Response:
        response = RedirectResponse(SIGN_IN_PATH, status_code=303)
        try:
            session = await sessions.authenticate(request)
        except Unauthenticated:
            sessions.clear_cookie(request, response)
            return response
        require_csrf_token(session, request.headers, await _read_form_fields(request))
        await sessions.end_session(request, response)
        return response

    return [
        Route(SIGN_IN_PATH, _with_error_page(show), methods=["GET"]),
        Route(SIGN_IN_PATH, _with_error_page(sign_in), methods=["POST"]),
        Route(f"{ONE_TIME_LINK_PATH}/{{code}}", _with_error_page(open_link), methods=["GET"]),
        Route(f"{PORTAL_PREFIX}/sign-out", _with_error_page(sign_out), methods=["POST"]),
        *(_oidc_routes(sessions, code_flow) if code_flow is not None else ()),
    ]


def _sign_in_form(sessions: SessionManager, has_code_flow: bool, *, status: int = 200, **values: Any) -> Response:
    external = sessions.sign_in.external
    defaults = {
        "title": "Sign in",
        "client_id": ADMIN_CLIENT_ID,
        "sentence": "",
        "issuer": external.url if external else "",
        "by_issuer": has_code_flow,
    }
    return public_page_response("sign-in.html", status=status, **{**defaults, **values})


async def _read_form_fields(request: Request) -> dict[str, str]:
    body = await read_limited_body(request, MAX_FORM_BYTES)
    if body is None:
        raise Rejected(f"the form is larger than {MAX_FORM_BYTES} bytes: shorten it")
    if not request.headers.get("content-type", "").startswith(_FORM_MEDIA_TYPE):
        raise Rejected(f"the request is not a form: send {_FORM_MEDIA_TYPE}")
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True))


def _authenticate_client(sessions: SessionManager, client_id: str, secret: str) -> RegisteredClient:
    external = sessions.sign_in.external
    if external is not None:
        raise Unauthenticated(f"client secrets do not sign in here: sign in at {external.url!r}")
    return verify_client_secret(client_id, secret, sessions.dependencies.control.store)


def _is_prefetch(request: Request) -> bool:
    """Whether the browser requests the page without a click, which must not use up a one-time link."""
    is_announced = any("pre" in request.headers.get(name, "").lower() for name in _PREFETCH_HEADERS)
    return request.method == "HEAD" or is_announced or request.headers.get("sec-fetch-dest", "document") != "document"
