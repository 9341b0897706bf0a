"""Signing in: a client's secret for a token (RFC 6749 §4.4), refused in the words that Azure's clients show."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from forewarn.access.claims import shown, spelled
from forewarn.access.token import MANAGEMENT, Issuer
from forewarn.console.arm.discovery import who_signs_in
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute
from forewarn.console.house import House
from forewarn.console.proof import proven
from forewarn.core.access import Client
from forewarn.errors import Rejected, Unauthenticated
from forewarn.store.seam import Store

_DEFAULT = "/.default"  # all that was granted: the one scope there is
_UNCACHED = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class NoToken(Rejected):
    """Said as OAuth says it. The number is by which the vendor's own refusals of this sort are known."""

    def __init__(self, status: int, error: str, number: int, sentence: str) -> None:
        super().__init__(f"AADSTS{number}: {sentence}")
        self.status, self.error, self.number = status, error, number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Credentials:
    client_id: str
    secret: str = field(repr=False)


async def issue_token(house: House, call: ArmCall) -> ArmAnswer:
    try:
        return _token(house, call)
    except NoToken as refused:
        body = {"error": refused.error, "error_description": str(refused), "error_codes": [refused.number]}
        asked = {"WWW-Authenticate": 'Basic realm="forewarn"'} if refused.status == 401 and call.authorization else {}
        return ArmAnswer(status=refused.status, body=body, headers=_UNCACHED | asked)


def _token(house: House, call: ArmCall) -> ArmAnswer:
    sign_in, now = who_signs_in(house), house.real_time()
    if sign_in.external is not None:
        raise NoToken(400, "unauthorized_client", 700016, f"clients sign in at {sign_in.external.url!r}: go there")
    _must_be_for_a_client(call)
    client = _proven(_credentials(call), house.control.store)
    audience = _audience(call, sign_in.issuer)

    issued = sign_in.for_client(client, audience, now)

    left_s = int(issued.expires_at - now)
    body = {"token_type": "Bearer", "expires_in": left_s, "ext_expires_in": left_s, "access_token": issued.token}
    return ArmAnswer(body=body, headers=_UNCACHED)


def _must_be_for_a_client(call: ArmCall) -> None:
    grant = call.fields.get("grant_type", "")
    if not grant:
        raise NoToken(400, "invalid_request", 900144, "the form has no 'grant_type': send 'client_credentials'")
    if grant != "client_credentials":
        sentence = f"grant_type {shown(grant)} is not served here: use 'client_credentials'"
        raise NoToken(400, "unsupported_grant_type", 70003, sentence)


def _credentials(call: ArmCall) -> _Credentials:
    scheme, _, encoded = call.authorization.partition(" ")
    found = _basic(encoded) if scheme.lower() == "basic" else _in_form(call)
    if not found.client_id:
        raise NoToken(400, "invalid_request", 900144, "the form has no 'client_id': send the id of a client")
    if not found.secret:
        sentence = f"client {shown(found.client_id)} sent no secret: send it as 'client_secret'"
        raise NoToken(401, "invalid_client", 7000218, sentence)
    return found


def _in_form(call: ArmCall) -> _Credentials:
    return _Credentials(client_id=call.fields.get("client_id", ""), secret=call.fields.get("client_secret", ""))


def _basic(encoded: str) -> _Credentials:
    try:
        given = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        sentence = "the Authorization header is no base64 of ID:SECRET: send it so, or send a form"
        raise NoToken(400, "invalid_request", 900144, sentence) from None
    client_id, _, secret = given.partition(":")
    return _Credentials(client_id=unquote_plus(client_id), secret=unquote_plus(secret))  # RFC 6749 §2.3.1


def _proven(given: _Credentials, store: Store) -> Client:
    try:
        return proven(given.client_id, given.secret, store)
    except Unauthenticated as refused:
        raise NoToken(401, "invalid_client", 7000215, str(refused)) from None


def _audience(call: ArmCall, issuer: Issuer) -> str:
    """What the token is to be for, by `scope` or as it used to be by `resource`; unasked, Azure's own API."""
    scope, resource = call.fields.get("scope", "").strip(), call.fields.get("resource", "").strip()
    audience = spelled(scope.removesuffix(_DEFAULT) or resource or MANAGEMENT[0])
    if issuer.accepts(audience):
        return audience
    error, number = ("invalid_scope", 70011) if scope else ("invalid_resource", 500011)
    wanted = f"{MANAGEMENT[0]}{_DEFAULT if scope else ''}"
    raise NoToken(400, error, number, f"{shown(scope or resource)} is nothing that tokens are for here: ask {wanted!r}")


ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("POST", "/adfs/oauth2/token", issue_token, None, summary="a token for a client's secret"),
    ArmRoute("POST", "/{tenant}/oauth2/v2.0/token", issue_token, None, summary="a token for a client's secret"),
)
