"""The OAuth token endpoint for clients with a secret (RFC 6749 §4.4), with Azure's error codes."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from forewarn.auth.claims import normalize_audience, quote_excerpt
from forewarn.auth.tokens import MANAGEMENT_AUDIENCES, TokenIssuer
from forewarn.core.access import RegisteredClient
from forewarn.errors import Rejected, Unauthenticated
from forewarn.store.interface import Store
from forewarn.web.arm.discovery import require_sign_in
from forewarn.web.arm.routing import ArmCall, ArmResponse, ArmRoute
from forewarn.web.authentication import verify_client_secret
from forewarn.web.dependencies import Dependencies
from forewarn.web.errors import Surface, message_for

_DEFAULT_SCOPE = "/.default"  # the only scope: everything that was granted
_NO_STORE_HEADERS = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class _TokenError(Rejected):
    """An error of the token endpoint; `number` is that of Azure's same error (`AADSTS`)."""

    def __init__(self, status: int, error: str, number: int, message: str) -> None:
        super().__init__(f"AADSTS{number}: {message}")
        self.status, self.error, self.number = status, error, number


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientCredentials:
    client_id: str
    secret: str = field(repr=False)


async def issue_token(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    """Issue a bearer token for a client's id and secret, from the form or from basic authentication.

    Errors are OAuth error responses; if clients sign in at an external issuer, the response is always an error.
    """
    try:
        return _issue(dependencies, call)
    except _TokenError as error:
        body = {"error": error.error, "error_description": str(error), "error_codes": [error.number]}
        is_basic = error.status == 401 and call.authorization
        challenge = {"WWW-Authenticate": 'Basic realm="forewarn"'} if is_basic else {}
        return ArmResponse(status=error.status, body=body, headers=_NO_STORE_HEADERS | challenge)


def _issue(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    sign_in, now = require_sign_in(dependencies), dependencies.real_time()
    if sign_in.external is not None:
        raise _TokenError(
            400, "unauthorized_client", 700016, f"clients sign in at {sign_in.external.url!r}: sign in there"
        )
    _require_client_credentials(call)
    client = _verify_client(_read_credentials(call), dependencies.control.store)
    audience = _requested_audience(call, sign_in.issuer)

    issued = sign_in.issue_for_client(client, audience, now)

    valid_s = int(issued.expires_at - now)
    body = {"token_type": "Bearer", "expires_in": valid_s, "ext_expires_in": valid_s, "access_token": issued.token}
    return ArmResponse(body=body, headers=_NO_STORE_HEADERS)


def _require_client_credentials(call: ArmCall) -> None:
    grant_type = call.form_fields.get("grant_type", "")
    if not grant_type:
        raise _TokenError(400, "invalid_request", 900144, "the form has no 'grant_type': send 'client_credentials'")
    if grant_type != "client_credentials":
        message = f"grant_type {quote_excerpt(grant_type)} is not supported: use 'client_credentials'"
        raise _TokenError(400, "unsupported_grant_type", 70003, message)


def _read_credentials(call: ArmCall) -> _ClientCredentials:
    scheme, _, encoded = call.authorization.partition(" ")
    credentials = _basic_credentials(encoded) if scheme.lower() == "basic" else _form_credentials(call)
    if not credentials.client_id:
        raise _TokenError(400, "invalid_request", 900144, "the form has no 'client_id': send the id of a client")
    if not credentials.secret:
        message = f"client {quote_excerpt(credentials.client_id)} sent no secret: send it as 'client_secret'"
        raise _TokenError(401, "invalid_client", 7000218, message)
    return credentials


def _form_credentials(call: ArmCall) -> _ClientCredentials:
    return _ClientCredentials(
        client_id=call.form_fields.get("client_id", ""), secret=call.form_fields.get("client_secret", "")
    )


def _basic_credentials(encoded: str) -> _ClientCredentials:
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        message = "the Authorization header is not the base64 of ID:SECRET: send that, or send a form"
        raise _TokenError(400, "invalid_request", 900144, message) from None
    client_id, _, secret = decoded.partition(":")
    return _ClientCredentials(client_id=unquote_plus(client_id), secret=unquote_plus(secret))  # RFC 6749 §2.3.1


def _verify_client(credentials: _ClientCredentials, store: Store) -> RegisteredClient:
    try:
        return verify_client_secret(credentials.client_id, credentials.secret, store)
    except Unauthenticated as error:
        raise _TokenError(401, "invalid_client", 7000215, message_for(error, Surface.ARM)) from None


def _requested_audience(call: ArmCall, issuer: TokenIssuer) -> str:
    """The audience of the token: from `scope`, from the older `resource`, or else Azure's management API."""
    scope, resource = call.form_fields.get("scope", "").strip(), call.form_fields.get("resource", "").strip()
    audience = normalize_audience(scope.removesuffix(_DEFAULT_SCOPE) or resource or MANAGEMENT_AUDIENCES[0])
    if issuer.accepts(audience):
        return audience
    error, number = ("invalid_scope", 70011) if scope else ("invalid_resource", 500011)
    allowed = f"{MANAGEMENT_AUDIENCES[0]}{_DEFAULT_SCOPE if scope else ''}"
    raise _TokenError(
        400, error, number, f"{quote_excerpt(scope or resource)} is not an audience of this service: use {allowed!r}"
    )


ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("POST", "/adfs/oauth2/token", issue_token, None, summary="issues a token for a client's secret"),
    ArmRoute("POST", "/{tenant}/oauth2/v2.0/token", issue_token, None, summary="issues a token for a client's secret"),
)
