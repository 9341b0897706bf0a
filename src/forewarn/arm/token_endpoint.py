"""The OAuth token endpoint for clients with a secret (RFC 6749 §4.4), with Azure's error codes."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from forewarn.arm.discovery import require_sign_in
from forewarn.arm.routing import ArmCall, ArmResponse, ArmRoute
from forewarn.auth.claims import normalize_audience, quote_excerpt
from forewarn.auth.tokens import MANAGEMENT_AUDIENCES, TokenIssuer
from forewarn.core.access import RegisteredClient
from forewarn.errors import Rejected, Unauthenticated
from forewarn.store.interface import Store
from forewarn.web.authentication import verify_client_secret
from forewarn.web.dependencies import Dependencies

_DEFAULT_SCOPE = "/.default"  # all that was granted: the one scope there is
_NO_STORE_HEADERS = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class TokenError(Rejected):
    """Said as OAuth says it. The number is by which the vendor's own refusals of this sort are known."""

    def __init__(self, status: int, error: str, number: int, sentence: str) -> None:
        super().__init__(f"AADSTS{number}: {sentence}")
        self.status, self.error, self.number = status, error, number


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientCredentials:
    client_id: str
    secret: str = field(repr=False)


async def issue_token(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    try:
        return _issue(dependencies, call)
    except TokenError as refused:
        body = {"error": refused.error, "error_description": str(refused), "error_codes": [refused.number]}
        asked = {"WWW-Authenticate": 'Basic realm="forewarn"'} if refused.status == 401 and call.authorization else {}
        return ArmResponse(status=refused.status, body=body, headers=_NO_STORE_HEADERS | asked)


def _issue(dependencies: Dependencies, call: ArmCall) -> ArmResponse:
    sign_in, now = require_sign_in(dependencies), dependencies.real_time()
    if sign_in.external is not None:
        raise TokenError(400, "unauthorized_client", 700016, f"clients sign in at {sign_in.external.url!r}: go there")
    _require_client_credentials(call)
    client = _verify_client(_read_credentials(call), dependencies.control.store)
    audience = _requested_audience(call, sign_in.issuer)

    issued = sign_in.issue_for_client(client, audience, now)

    left_s = int(issued.expires_at - now)
    body = {"token_type": "Bearer", "expires_in": left_s, "ext_expires_in": left_s, "access_token": issued.token}
    return ArmResponse(body=body, headers=_NO_STORE_HEADERS)


def _require_client_credentials(call: ArmCall) -> None:
    grant = call.form_fields.get("grant_type", "")
    if not grant:
        raise TokenError(400, "invalid_request", 900144, "the form has no 'grant_type': send 'client_credentials'")
    if grant != "client_credentials":
        sentence = f"grant_type {quote_excerpt(grant)} is not served here: use 'client_credentials'"
        raise TokenError(400, "unsupported_grant_type", 70003, sentence)


def _read_credentials(call: ArmCall) -> _ClientCredentials:
    scheme, _, encoded = call.authorization.partition(" ")
    found = _basic_credentials(encoded) if scheme.lower() == "basic" else _form_credentials(call)
    if not found.client_id:
        raise TokenError(400, "invalid_request", 900144, "the form has no 'client_id': send the id of a client")
    if not found.secret:
        sentence = f"client {quote_excerpt(found.client_id)} sent no secret: send it as 'client_secret'"
        raise TokenError(401, "invalid_client", 7000218, sentence)
    return found


def _form_credentials(call: ArmCall) -> _ClientCredentials:
    return _ClientCredentials(
        client_id=call.form_fields.get("client_id", ""), secret=call.form_fields.get("client_secret", "")
    )


def _basic_credentials(encoded: str) -> _ClientCredentials:
    try:
        given = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        sentence = "the Authorization header is no base64 of ID:SECRET: send it so, or send a form"
        raise TokenError(400, "invalid_request", 900144, sentence) from None
    client_id, _, secret = given.partition(":")
    return _ClientCredentials(client_id=unquote_plus(client_id), secret=unquote_plus(secret))  # RFC 6749 §2.3.1


def _verify_client(given: _ClientCredentials, store: Store) -> RegisteredClient:
    try:
        return verify_client_secret(given.client_id, given.secret, store)
    except Unauthenticated as refused:
        raise TokenError(401, "invalid_client", 7000215, str(refused)) from None


def _requested_audience(call: ArmCall, issuer: TokenIssuer) -> str:
    """What the token is to be for, by `scope` or as it used to be by `resource`; unasked, Azure's own API."""
    scope, resource = call.form_fields.get("scope", "").strip(), call.form_fields.get("resource", "").strip()
    audience = normalize_audience(scope.removesuffix(_DEFAULT_SCOPE) or resource or MANAGEMENT_AUDIENCES[0])
    if issuer.accepts(audience):
        return audience
    error, number = ("invalid_scope", 70011) if scope else ("invalid_resource", 500011)
    wanted = f"{MANAGEMENT_AUDIENCES[0]}{_DEFAULT_SCOPE if scope else ''}"
    raise TokenError(
        400, error, number, f"{quote_excerpt(scope or resource)} is nothing that tokens are for here: ask {wanted!r}"
    )


ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("POST", "/adfs/oauth2/token", issue_token, None, summary="a token for a client's secret"),
    ArmRoute("POST", "/{tenant}/oauth2/v2.0/token", issue_token, None, summary="a token for a client's secret"),
)
