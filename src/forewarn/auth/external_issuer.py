"""An issuer of tokens outside (OpenID Connect): its keys, fetched and kept, and who its tokens say is asking."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable

from forewarn.access import jws
from forewarn.access.claims import BadToken, Bounds, Claims, Reason, all_spelled, must_hold, shown, spelled
from forewarn.access.discovery import discovered
from forewarn.access.fetch import fetch, must_be_safe
from forewarn.access.jwks import ALGORITHMS, Key, keys_in
from forewarn.errors import Rejected, Unavailable

_KEPT_S = 3600
_PACE_S = 30  # tokens that name keys at random must not become a flood of requests to the issuer
_FIRST_PACE_S = 5  # without any key nobody can come in
_LONGEST_NAME = 200


class _Payload(Bounds, frozen=True, kw_only=True):
    sub: str | None = None
    oid: str | None = None
    tid: str | None = None
    appid: str | None = None
    azp: str | None = None
    client_id: str | None = None
    idtyp: str | None = None
    scp: str | list[str] | None = None
    scope: str | list[str] | None = None
    preferred_username: str | None = None
    upn: str | None = None
    email: str | None = None
    nonce: str | None = None


class ExternalIssuer:
    """Verifies an issuer's tokens for `audiences`; with the keys it had, while the issuer is unreachable."""

    def __init__(self, issuer_url: str, audiences: Iterable[str], jwks_url: str = "") -> None:
        self.url = issuer_url
        self._jwks_url = jwks_url
        self.audiences = all_spelled(audiences)
        if not self.audiences:
            raise Rejected(f"issuer {issuer_url!r} has no audience, so tokens for anybody would do: name at least one")
        for url in (issuer_url, *([jwks_url] if jwks_url else [])):
            must_be_safe(url)
        self._keys: dict[str, Key] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._trouble = ""
        self._fetching: asyncio.Task[None] | None = None

    async def verify(self, token: str, now: float) -> Claims:
        """Raises BadToken, or Unavailable where the issuer could never be reached."""
        payload = await self._payload(token, self.audiences, now)
        return _claims(payload, _ids(payload))

    async def verify_person(self, id_token: str, *, client_id: str, nonce: str, now: float) -> Claims:
        """Who signed in by way of this client of the issuer's, by the ids that their access tokens have."""
        payload = await self._payload(id_token, frozenset({spelled(client_id)}), now)
        if payload.azp is not None and payload.azp != client_id:
            raise BadToken(Reason.WRONG_AUDIENCE, f"the sign-in was for {shown(payload.azp)}: sign in once more")
        if not hmac.compare_digest((payload.nonce or "").encode(), nonce.encode()):
            raise BadToken(Reason.MALFORMED, "the issuer answers another sign-in than this one: sign in once more")
        return _claims(payload, list(filter(None, [payload.oid or payload.sub])))

    async def _payload(self, token: str, audiences: frozenset[str], now: float) -> _Payload:
        header = jws.header_of(token)
        jws.must_be_signed_with(ALGORITHMS, header)
        key = await self._key(header, now)
        payload = jws.payload_of(token, key.public, header.alg, _Payload)
        must_hold(payload, issuer=self.url, audiences=audiences, now=now)
        return payload

    async def _key(self, header: jws.Header, now: float) -> Key:
        if header.kid not in self._keys or not 0 <= now - self._fetched_at < _KEPT_S:
            await self._refresh(now)
        if not self._keys:
            raise Unavailable(f"issuer {self.url!r} cannot vouch for anybody now: {self._trouble}; try again later")
        key = self._keys.get(header.kid)
        if key is None:
            sentence = f"the token names the key {shown(header.kid)}, unknown to {self.url!r}: sign in again"
            raise BadToken(Reason.UNKNOWN_KEY, sentence)
        if header.alg not in key.algorithms:
            sentence = f"the token is signed with {header.alg}, which is not what its key is for: sign in again"
            raise BadToken(Reason.BAD_SIGNATURE, sentence)
        return key

    async def _refresh(self, now: float) -> None:
        """Fetch the keys, unless that was tried a moment ago. All who wait share one attempt."""
        pace = _PACE_S if self._keys else _FIRST_PACE_S
        if self._fetching is None and not 0 <= now - self._tried_at < pace:
            self._tried_at = now
            self._fetching = asyncio.create_task(self._fetch(now))
        if self._fetching is not None:
            await asyncio.shield(self._fetching)  # whoever gives up waiting does not take it from the others

    async def _fetch(self, now: float) -> None:
        try:
            self._keys = await asyncio.to_thread(self._published)
            self._fetched_at = now
        except (Unavailable, Rejected) as error:
            self._trouble = str(error)
        finally:
            self._fetching = None

    def _published(self) -> dict[str, Key]:
        return keys_in(fetch(self._jwks_url or discovered(self.url).jwks_uri))


def _claims(payload: _Payload, ids: list[str]) -> Claims:
    if not ids:
        raise BadToken(Reason.MALFORMED, "the token does not say whose it is (no oid, no sub): get an access token")
    named = payload.preferred_username or payload.upn or payload.email or _app(payload) or ids[0]
    return Claims(
        ids=tuple(f"oidc:{found}" for found in ids),
        name="".join(filter(str.isprintable, named))[:_LONGEST_NAME],
        tenant=payload.tid or "",
        expires_at=payload.exp,
    )


def _ids(payload: _Payload) -> list[str]:
    """An app goes by its app id too. A person does not: what an app may do is not for everybody who signs in by it."""
    person, app = payload.oid or payload.sub, _app(payload)
    asking = (app, person) if _is_app(payload) else (person,)
    return list(dict.fromkeys(filter(None, asking)))


def _app(payload: _Payload) -> str | None:
    return payload.appid or payload.azp or payload.client_id


def _is_app(payload: _Payload) -> bool:
    """By the issuer's word, or a subject that is the app itself; else by what the vendor's tokens of apps look like:
    in its tenant, one object as both `oid` and `sub`, and no sign of a person for whom the app would be acting.
    """
    if payload.idtyp:
        return payload.idtyp == "app"
    if payload.sub and payload.sub == _app(payload):
        return True
    signs = (payload.scp, payload.scope, payload.preferred_username, payload.upn, payload.email)
    return bool(payload.tid and payload.oid and payload.oid == payload.sub and not any(signs))
