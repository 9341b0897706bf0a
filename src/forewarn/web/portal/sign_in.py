"""Sign-in and sign-out routes: by client secret, by one-time link, and by an OpenID Connect issuer.

These are the only routes open to people who are not signed in. After a redirect from another site the browser sends
no SameSite=Strict cookie, so a page of our own continues the sign-in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from forewarn.auth.claims import Claims, InvalidToken, quote_excerpt
from forewarn.auth.code_flow import AuthorizationCodeFlow, PendingSignIn
from forewarn.auth.sessions import SESSION_LIFETIME_S, EndedSessions, PortalSession, SessionIssuer, SignInLinks
from forewarn.auth.token_service import TokenService, claims_of_client
from forewarn.core.access import ADMIN_CLIENT_ID, Principal, RegisteredClient, owner_principal
from forewarn.errors import Rejected, Unauthenticated
from forewarn.web.authentication import principal_for_claims, verify_client_secret
from forewarn.web.dependencies import Dependencies
from forewarn.web.errors import Surface, message_for, status_and_message
from forewarn.web.portal.browser_security import (
    PORTAL_HOME,
    require_csrf_token,
    require_same_origin,
    safe_redirect_path,
)
from forewarn.web.portal.context import PORTAL_PREFIX, CurrentSession
from forewarn.web.portal.rendering import SIGN_IN_PATH, public_page_response
from forewarn.web.request_parsing import MAX_FORM_BYTES, read_limited_body

# Portal sessions: reads and writes the session cookie and resolves it to a principal per request.
#
# The cookie is signed and survives a restart. Only ended sessions are stored, so that a revoked client or role counts
# at once. Cookie names carry the tenant id, because browsers separate cookies by host and not by port.

_TENANT_ID_LENGTH = 8


class ServiceCookie:
    """A cookie of this service: HttpOnly and SameSite=Strict; over TLS also Secure and bound to this host."""

    # Its name has a part of the tenant id, so that two services on one machine do not overwrite each other's cookies.

    def __init__(self, name: str, tenant_id: str, *, max_age_s: int) -> None:
        self._name = f"{name}-{tenant_id[:_TENANT_ID_LENGTH]}"
        self._max_age_s = max_age_s

    def read(self, request: Request) -> str:
        """Return the text of the cookie in a request; "" if the browser sent none. Verifies nothing."""
        return request.cookies.get(self._name_for(request), "")

    def write(self, request: Request, response: Response, text: str) -> None:
        """Add the cookie with the value `text` to `response`, for `max_age_s` seconds."""
        self._set_cookie(request, response, text, self._max_age_s)

    def clear(self, request: Request, response: Response) -> None:
        """Add a header to `response` that makes the browser delete this cookie."""
        self._set_cookie(request, response, "", 0)

    def _set_cookie(self, request: Request, response: Response, text: str, max_age_s: int) -> None:
        response.set_cookie(
            self._name_for(request),
            text,
            max_age=max_age_s,
            path="/",
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def _name_for(self, request: Request) -> str:
        return f"__Host-{self._name}" if _is_secure(request) else self._name


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


_ENDED_SESSIONS_KEY = "portal sessions ended, by person"  # in the store; must not change
_NOT_SIGNED_IN_MESSAGE = "you are not signed in: sign in"
_SIGNED_OUT_MESSAGE = "this session was signed out: sign in again"


class SessionManager:
    """Starts, resolves and ends portal sessions, which are signed cookies, valid for 12 hours (real time)."""

    # Only ended sessions are stored. Each request resolves the user's rights anew, so that a revocation counts at once.

    def __init__(self, *, dependencies: Dependencies, sign_in: TokenService, sessions: SessionIssuer) -> None:
        self.dependencies = dependencies
        self.sign_in = sign_in
        self._store = dependencies.control.store
        self._sessions = sessions
        self._cookie = ServiceCookie("forewarn", sign_in.tenant_id, max_age_s=SESSION_LIFETIME_S)
        stored = self._store.load(_ENDED_SESSIONS_KEY)
        self._ended_sessions = EndedSessions() if stored is None else msgspec.json.decode(stored, type=EndedSessions)
        self._ended_sessions_lock = asyncio.Lock()

    async def authenticate(self, request: Request) -> CurrentSession:
        """Return the session of a request, with the user's current rights; `history_seq` is not set."""
        text = self._cookie.read(request)
        session = self._read_session(text)
        return CurrentSession(
            principal=self._principal_of(session), csrf_token=_csrf_token_for(text), ends_at=session.ends_at
        )

    def start_session(
        self, request: Request, response: Response, claims: Claims, *, issuer: str = "", is_owner: bool = False
    ) -> None:
        """Sign a user in for 12 hours: add the session cookie to `response`. Stores nothing."""
        text = self._sessions.issue(claims, self.dependencies.real_time(), issuer=issuer, is_owner=is_owner)
        self._principal_of(self._read_session(text))
        self._cookie.write(request, response, text)

    async def end_session(self, request: Request, response: Response) -> None:
        """Sign out: clear the cookie, and store that the session ended, so that a copy of it is worthless."""
        session = self._read_session(self._cookie.read(request))
        async with self._ended_sessions_lock:
            ended = self._ended_sessions.with_session(session, self.dependencies.real_time())
            await self._store.save(_ENDED_SESSIONS_KEY, msgspec.json.encode(ended))
            self._ended_sessions = ended
        self.clear_cookie(request, response)

    def clear_cookie(self, request: Request, response: Response) -> None:
        """Make the browser delete the session cookie."""
        self._cookie.clear(request, response)

    def _read_session(self, text: str) -> PortalSession:
        if not text:
            raise Unauthenticated(_NOT_SIGNED_IN_MESSAGE)
        try:
            session = self._sessions.verify(text, self.dependencies.real_time())
        except InvalidToken as error:
            raise Unauthenticated(str(error)) from None
        if self._ended_sessions.contains(session):
            raise Unauthenticated(_SIGNED_OUT_MESSAGE)
        return session

    def _principal_of(self, session: PortalSession) -> Principal:
        if session.is_owner:
            return owner_principal(self.dependencies.owner_name)
        external = self.sign_in.external.url if self.sign_in.external else ""
        if session.issuer != external:
            issuer_text = repr(external) if external else "this service itself"
            raise Unauthenticated(f"users sign in at {issuer_text} now: sign in again")
        return principal_for_claims(session.claims, self._store)


def _csrf_token_for(text: str) -> str:
    """The CSRF token of a session cookie: a keyed hash, which does not reveal the cookie."""
    digest = hmac.digest(text.encode(), b"what forms repeat", hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


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
