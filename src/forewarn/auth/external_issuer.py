"""Verifies the tokens of an external OpenID Connect issuer with its published keys (JWKS).

Keys are cached. While the issuer is unreachable, the cached keys stay in use.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlencode, urlsplit

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
from forewarn.base.http_client import HttpClient, HttpLimits, HttpRequestFailed
from forewarn.errors import Rejected, Unavailable

# Fetches an issuer's OpenID configuration and other documents, over https only, loopback excepted.

_LIMITS = HttpLimits(timeout_s=5.0, body_timeout_s=5.0, max_body_bytes=1024 * 1024)
_HEADERS = {"Accept": "application/json", "User-Agent": "forewarn"}
_FORM_HEADERS = {**_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}


async def fetch_document(client: HttpClient, url: str) -> bytes:
    """Send a GET request for JSON, and return the body of the answer, undecoded."""
    status, content = await _exchange(client, "GET", url, _HEADERS)
    if status >= 300:
        raise Unavailable(f"{url!r} answered {status}")
    return content


async def post_form(
    client: HttpClient, url: str, fields: Mapping[str, str], authorization: str = ""
) -> tuple[int, bytes]:
    """Send a URL-encoded form by POST, and return status and body; error statuses and redirects are returned too."""
    headers = {**_FORM_HEADERS, **({"Authorization": authorization} if authorization else {})}
    return await _exchange(client, "POST", url, headers, urlencode(fields).encode())


async def _exchange(
    client: HttpClient, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    require_https(url)
    try:
        response = await client.send(method, url, headers=headers, body=body, limits=_LIMITS)
    except HttpRequestFailed as error:
        raise Unavailable(f"{url!r} does not answer: {error}") from error
    if not response.is_complete and response.status < 300:
        is_long = len(response.body) >= _LIMITS.max_body_bytes
        problem = f"more than {_LIMITS.max_body_bytes} bytes" if is_long else "a body that breaks off"
        raise Unavailable(f"{url!r} answered with {problem}")
    return response.status, response.body


def require_https(url: str) -> None:
    """Raise Rejected unless the URL is https, or http on loopback: keys over plain http could be forged."""
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_safe = is_valid = False
    if not (is_safe and is_valid):
        raise Rejected(f"issuer address {url!r} is neither https nor on loopback: give one that begins with https://")


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


_BASIC, _POST = "client_secret_basic", "client_secret_post"


class OidcConfiguration(msgspec.Struct, frozen=True):
    """The parts of an issuer's openid-configuration that we need, as the issuer wrote them, not checked."""

    issuer: str  # its URL
    jwks_uri: str  # where its public keys are
    authorization_endpoint: str = ""  # where browsers sign in; "": it names none, also in the next field
    token_endpoint: str = ""  # where codes are exchanged for tokens
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)  # how a client may send its secret, by OIDC name

    @property
    def takes_secret_in_form(self) -> bool:
        """Whether a client must send its secret as a form field, because Basic authentication is not listed."""
        known = self.token_endpoint_auth_methods_supported
        return _BASIC not in known and _POST in known


async def fetch_oidc_configuration(client: HttpClient, issuer_url: str) -> OidcConfiguration:
    """Fetch the openid-configuration of an issuer, below its URL at `.well-known/`."""
    try:
        content = await fetch_document(client, f"{issuer_url.rstrip('/')}/.well-known/openid-configuration")
        configuration = msgspec.json.decode(content, type=OidcConfiguration)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"its openid-configuration cannot be read ({error})") from None
    if configuration.issuer.rstrip("/") != issuer_url.rstrip("/"):
        raise Unavailable(f"its openid-configuration belongs to {quote_excerpt(configuration.issuer)}")
    return configuration


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
