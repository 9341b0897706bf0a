"""Signing in as a client: the server says who issues its tokens, the issuer says where, and gives one for a secret.

The same steps as the vendor's clients take, so they lead to an issuer of the user's own as well.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from forewarn.cli.connection import exchange
from forewarn.cli.profile import Profile
from forewarn.cli.server import Server, read_server
from forewarn.errors import Rejected, Unauthenticated, Unavailable

Connect = Callable[[Server], http.client.HTTPConnection]
_METADATA = "/metadata/endpoints?api-version=2022-09-01"
_WELL_KNOWN = ".well-known/openid-configuration"
_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry
_EARLY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    text: str = field(repr=False)
    issued_at: float
    lifetime_s: float

    def lasts_at(self, now: float) -> bool:
        """Renewed a minute early, so that it does not run out on the way; a short one when half of it is over."""
        return self.issued_at <= now < self.issued_at + max(self.lifetime_s - _EARLY_S, self.lifetime_s / 2)


def sign_in(profile: Profile, connect: Connect, now: float) -> Token:
    issuer, scope = profile.issuer, profile.scope
    if not (issuer and scope):
        found = _get(f"{profile.server}{_METADATA}", connect)
        issuer, scope = issuer or _issuer(profile, found), scope or _scope(profile, found)
    endpoint = _get(f"{issuer.rstrip('/')}/{_WELL_KNOWN}", connect).get("token_endpoint")
    if not isinstance(endpoint, str):
        raise Rejected(f"issuer {issuer} does not say where it gives tokens: name the right one with --issuer")
    return _token(profile, endpoint, scope, connect, now)


def _issuer(profile: Profile, metadata: dict[str, Any]) -> str:
    return str(_authentication(profile, metadata).get("loginEndpoint"))


def _scope(profile: Profile, metadata: dict[str, Any]) -> str:
    audiences = _authentication(profile, metadata).get("audiences")
    audience = audiences[0] if isinstance(audiences, list) and audiences else profile.server
    return f"{str(audience).rstrip('/')}/.default"


def _authentication(profile: Profile, metadata: dict[str, Any]) -> dict[str, Any]:
    found = metadata.get("authentication")
    if not isinstance(found, dict) or not found.get("loginEndpoint"):
        raise Rejected(f"{profile.server} does not say where to sign in, so it is no forewarn service: check its URL")
    return found


def _token(profile: Profile, endpoint: str, scope: str, connect: Connect, now: float) -> Token:
    form = {
        "grant_type": "client_credentials",
        "client_id": profile.client_id,
        "client_secret": profile.read_secret(),
        "scope": scope,
    }
    status, answer = _ask("POST", endpoint, urlencode(form).encode(), connect)
    text = answer.get("access_token")
    if status >= 400 or not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise _refusal(profile, endpoint, status, answer)
    return Token(text=text, issued_at=now, lifetime_s=_seconds(answer.get("expires_in")))


def _seconds(said: object) -> float:
    """A number or a text, as issuers differ; without it a token is good for one question."""
    try:
        return float(str(said))
    except ValueError:
        return 0.0


def _refusal(profile: Profile, endpoint: str, status: int, answer: dict[str, Any]) -> Rejected | Unavailable:
    if status == 429 or status >= 500:
        return Unavailable(f"{endpoint} answers {status} and gives no token now: try again")
    why = str(answer.get("error_description") or answer.get("error") or f"status {status}").rstrip(".")
    return Unauthenticated(
        f"client {profile.client_id!r} could not sign in at {profile.server} ({why}): "
        "give its id and its secret once more with `forewarn login`"
    )


def _get(url: str, connect: Connect) -> dict[str, Any]:
    status, answer = _ask("GET", url, None, connect)
    if status >= 500:
        raise Unavailable(f"{url} answers {status}: try again")
    if status >= 400:
        raise Rejected(f"{url} answers {status}, so this is no forewarn service or issuer: check its URL")
    return answer


def _ask(method: str, url: str, payload: bytes | None, connect: Connect) -> tuple[int, dict[str, Any]]:
    server, target = _split(url)
    status, raw = exchange(connect(server), method, target, payload, _FORM if payload is not None else {})
    return status, _object(raw)


def _split(url: str) -> tuple[Server, str]:
    """Https and nothing else: a secret is on its way."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Rejected(f"{url!r} is no URL: name the issuer with --issuer") from None
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return read_server(f"{parts.scheme}://{parts.netloc}"), target


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
