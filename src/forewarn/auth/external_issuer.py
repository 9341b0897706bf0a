"""Verifies the tokens of an external OpenID Connect issuer with its published keys (JWKS).

Keys are cached. While the issuer is unreachable, the cached keys stay in use.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Iterator
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from forewarn.auth import jws
from forewarn.auth.claims import (
    Claims,
    InvalidToken,
    RegisteredClaims,
    TokenErrorReason,
    check_claims,
    normalize_audience,
    normalize_audiences,
    quote_excerpt,
)
from forewarn.auth.oidc_discovery import fetch_document, fetch_oidc_configuration, require_https
from forewarn.base.http_client import HttpClient
from forewarn.errors import Rejected, Unavailable

_RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256"})
_CURVE_ALGORITHMS = {"P-256": frozenset({"ES256"}), "P-384": frozenset({"ES384"})}
# Never HS*: their verification key can also sign.
ACCEPTED_ALGORITHMS = frozenset.union(_RSA_ALGORITHMS, *_CURVE_ALGORITHMS.values())
_MIN_RSA_BITS = 2048


class _VerificationKey(msgspec.Struct, frozen=True, kw_only=True):
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    algorithms: frozenset[str]


class _JwksDocument(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


def _parse_jwks(document: bytes) -> dict[str, _VerificationKey]:
    try:
        listed = msgspec.json.decode(document, type=_JwksDocument).keys
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"its JWKS document is not valid ({error})") from None
    found = dict(_usable_keys(listed))
    if not found:
        raise Unavailable("its JWKS document has no usable key")
    return found


def _usable_keys(listed: list[dict[str, Any]]) -> Iterator[tuple[str, _VerificationKey]]:
    for jwk in listed:
        kid = jwk.get("kid")
        key = _parse_key(jwk) if jwk.get("use", "sig") == "sig" else None
        if key and key.algorithms and isinstance(kid, str) and kid:
            yield kid, key


def _parse_key(jwk: dict[str, Any]) -> _VerificationKey | None:
    try:
        match jwk.get("kty"):
            case "RSA":
                return _parse_rsa_key(jwk)
            case "EC":
                return _parse_ec_key(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        pass
    return None


def _parse_rsa_key(jwk: dict[str, Any]) -> _VerificationKey | None:
    public = RSAAlgorithm.from_jwk(_public_members(jwk, "n", "e"))
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size < _MIN_RSA_BITS:
        return None
    return _VerificationKey(public=public, algorithms=_restrict_to_named_algorithm(_RSA_ALGORITHMS, jwk))


def _parse_ec_key(jwk: dict[str, Any]) -> _VerificationKey | None:
    public = ECAlgorithm.from_jwk(_public_members(jwk, "crv", "x", "y"))
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return None
    return _VerificationKey(
        public=public, algorithms=_restrict_to_named_algorithm(_CURVE_ALGORITHMS.get(jwk["crv"], frozenset()), jwk)
    )


def _public_members(jwk: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: jwk[name] for name in ("kty", *names) if name in jwk}


def _restrict_to_named_algorithm(algorithms: frozenset[str], jwk: dict[str, Any]) -> frozenset[str]:
    """A key that names an algorithm may be used only with that one."""
    return algorithms & {jwk["alg"]} if "alg" in jwk else algorithms


_KEYS_TTL_S = 3600
_REFRESH_INTERVAL_S = 30  # tokens with random key ids must not cause many requests to the issuer
_FIRST_REFRESH_INTERVAL_S = 5  # while no key is known at all
_MAX_NAME_CHARACTERS = 200


class _ExternalPayload(RegisteredClaims, frozen=True, kw_only=True):
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
    """Verifies the tokens of one external OpenID Connect issuer, with its public keys."""

    # The keys are fetched when a token needs them, again after an hour, and for a token with an unknown key, but not
    # within 30 s of the last attempt; while the issuer is unreachable, the old keys stay in use.

    def __init__(self, issuer_url: str, audiences: Iterable[str], jwks_url: str = "", *, client: HttpClient) -> None:
        self.url = issuer_url
        self.client = client
        self._jwks_url = jwks_url
        self.audiences = normalize_audiences(audiences)
        if not self.audiences:
            raise Rejected(
                f"issuer {issuer_url!r} has no audience, so its tokens for any service would be accepted: "
                "name at least one"
            )
        for url in (issuer_url, *([jwks_url] if jwks_url else [])):
            require_https(url)
        self._keys: dict[str, _VerificationKey] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._last_error = ""
        self._fetch_task: asyncio.Task[None] | None = None

    async def verify(self, token: str, now: float) -> Claims:
        """Return the claims of a valid access token of the issuer; `now` is real time."""
        payload = await self._verified_payload(token, self.audiences, now)
        return _claims_from_payload(payload, _principal_ids(payload))

    async def verify_id_token(self, id_token: str, *, client_id: str, nonce: str, now: float) -> Claims:
        """Return the claims of the id token of a sign-in, with the same ids as the person's access tokens.

        The token's audience, and its `azp` if it has one, must be `client_id`, not one of the issuer's audiences.
        """
        payload = await self._verified_payload(id_token, frozenset({normalize_audience(client_id)}), now)
        if payload.azp is not None and payload.azp != client_id:
            raise InvalidToken(
                TokenErrorReason.WRONG_AUDIENCE, f"the sign-in was for {quote_excerpt(payload.azp)}: sign in again"
            )
        if not hmac.compare_digest((payload.nonce or "").encode(), nonce.encode()):
            raise InvalidToken(
                TokenErrorReason.MALFORMED, "the answer of the issuer belongs to another sign-in: sign in again"
            )
        return _claims_from_payload(payload, list(filter(None, [payload.oid or payload.sub])))

    async def _verified_payload(self, token: str, audiences: frozenset[str], now: float) -> _ExternalPayload:
        header = jws.parse_header(token)
        jws.require_algorithm(ACCEPTED_ALGORITHMS, header)
        key = await self._verification_key(header, now)
        payload = jws.verify_payload(token, key.public, header.alg, _ExternalPayload)
        check_claims(payload, issuer=self.url, audiences=audiences, now=now)
        return payload

    async def _verification_key(self, header: jws.JwsHeader, now: float) -> _VerificationKey:
        if header.kid not in self._keys or not 0 <= now - self._fetched_at < _KEYS_TTL_S:
            await self._refresh_keys(now)
        if not self._keys:
            raise Unavailable(
                f"tokens of issuer {self.url!r} cannot be verified now: {self._last_error}; try again later"
            )
        key = self._keys.get(header.kid)
        if key is None:
            sentence = f"{self.url!r} does not know the token's key {quote_excerpt(header.kid)}: sign in again"
            raise InvalidToken(TokenErrorReason.UNKNOWN_KEY, sentence)
        if header.alg not in key.algorithms:
            sentence = f"the token is signed with {header.alg}, which its key does not allow: sign in again"
            raise InvalidToken(TokenErrorReason.BAD_SIGNATURE, sentence)
        return key

    async def _refresh_keys(self, now: float) -> None:
        """Fetch the keys, unless the last attempt was a moment ago. Concurrent callers share one attempt."""
        interval_s = _REFRESH_INTERVAL_S if self._keys else _FIRST_REFRESH_INTERVAL_S
        if self._fetch_task is None and not 0 <= now - self._tried_at < interval_s:
            self._tried_at = now
            self._fetch_task = asyncio.create_task(self._fetch_keys(now))
        if self._fetch_task is not None:
            await asyncio.shield(self._fetch_task)  # a cancelled caller must not cancel it for the others

    async def _fetch_keys(self, now: float) -> None:
        try:
            self._keys = await self._download_keys()
            self._fetched_at = now
        except (Unavailable, Rejected) as error:
            self._last_error = str(error)
        finally:
            self._fetch_task = None

    async def _download_keys(self) -> dict[str, _VerificationKey]:
        jwks_url = self._jwks_url or (await fetch_oidc_configuration(self.client, self.url)).jwks_uri
        return _parse_jwks(await fetch_document(self.client, jwks_url))


def _claims_from_payload(payload: _ExternalPayload, ids: list[str]) -> Claims:
    if not ids:
        raise InvalidToken(TokenErrorReason.MALFORMED, "the token names no owner (no oid, no sub): get an access token")
    named = payload.preferred_username or payload.upn or payload.email or _app_id(payload) or ids[0]
    return Claims(
        ids=tuple(f"oidc:{found}" for found in ids),
        name="".join(filter(str.isprintable, named))[:_MAX_NAME_CHARACTERS],
        tenant=payload.tid or "",
        expires_at=payload.exp,
    )


def _principal_ids(payload: _ExternalPayload) -> list[str]:
    """Return the ids of a token's owner. Only an app itself has the id of the app, not its users."""
    person, app = payload.oid or payload.sub, _app_id(payload)
    asking = (app, person) if _is_app_token(payload) else (person,)
    return list(dict.fromkeys(filter(None, asking)))


def _app_id(payload: _ExternalPayload) -> str | None:
    return payload.appid or payload.azp or payload.client_id


def _is_app_token(payload: _ExternalPayload) -> bool:
    # `idtyp` decides, or a subject that is the app itself. Otherwise the token must look like Azure's tokens for apps:
    # a tenant, the same `oid` and `sub`, and no claim that names a person or a delegated scope.
    if payload.idtyp:
        return payload.idtyp == "app"
    if payload.sub and payload.sub == _app_id(payload):
        return True
    personal = (payload.scp, payload.scope, payload.preferred_username, payload.upn, payload.email)
    return bool(payload.tid and payload.oid and payload.oid == payload.sub and not any(personal))
