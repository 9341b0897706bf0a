"""The signing key, and the issuer of our own access tokens for clients and VMs.

Tokens have the form of Azure's tokens (version 1.0), so that Azure's clients accept them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from forewarn.auth import jws, pem, secure_files
from forewarn.auth.claims import (
    Claims,
    InvalidToken,
    RegisteredClaims,
    TokenErrorReason,
    check_claims,
    normalize_audience,
    normalize_audiences,
)
from forewarn.core.access import client_principal, vm_principal
from forewarn.errors import Rejected

SIGNING_ALGORITHM = "RS256"  # of our own tokens and sessions
_RSA_BITS = 2048


class SigningKey:
    """The RSA key pair that signs our tokens and sessions; `kid` is its thumbprint (RFC 7638)."""

    def __init__(self, private: rsa.RSAPrivateKey) -> None:
        self.private = private
        self.public = private.public_key()
        self._public_members = _public_jwk(self.public)
        self.kid = _thumbprint(self._public_members)

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """Load the private key from a PEM file; if there is no file, create one with a new RSA key."""
        if not path.exists():
            secure_files.make_directory(path.parent)
            pem.write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS))
        key = pem.parse_private_key(secure_files.read_private(path), path)
        if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _RSA_BITS:
            raise Rejected(
                f"key {str(path)!r} is not an RSA key of {_RSA_BITS} bits or more: move it away to get a new one; "
                "everybody must then sign in again"
            )
        return cls(key)

    @property
    def jwk(self) -> dict[str, str]:
        """The public key as an entry of a JWKS document (RFC 7517): kty, n, e, kid, use and alg."""
        return {**self._public_members, "kid": self.kid, "use": "sig", "alg": SIGNING_ALGORITHM}


def _public_jwk(key: rsa.RSAPublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    return {"e": _base64(_integer_bytes(numbers.e)), "kty": "RSA", "n": _base64(_integer_bytes(numbers.n))}


def _thumbprint(jwk: dict[str, str]) -> str:
    return _base64(hashlib.sha256(json.dumps(jwk, sort_keys=True, separators=(",", ":")).encode()).digest())


def _integer_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


MANAGEMENT_AUDIENCES = (
    "https://management.azure.com",
    "https://management.core.windows.net",
)  # the audiences of Azure's clients

_MAX_CACHED_TOKENS = 1024  # signing a token takes about a millisecond


class TokenSubject(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a token that is issued: a client, or a VM's managed identity if `vm_id` is given."""

    client_id: str  # the claim `appid`
    object_id: str  # the claims `oid` and `sub`
    tenant: str  # the claim `tid`
    name: str = ""  # for people
    secret_fingerprint: str = ""  # of the client's present secret; a token with another one is invalid; "" for a VM
    vm_key: str = ""  # the VM's key in the fleet; this and the next two are "" for a client
    vm_id: str = ""  # the VM's GUID
    resource_id: str = ""  # the resource id of the VM in Azure Resource Manager


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A signed access token (a secret, which `repr` leaves out) and its validity in real time."""

    token: str  # a JWT
    issued_at: float  # POSIX seconds
    expires_at: float  # POSIX seconds

    def __repr__(self) -> str:
        return f"IssuedToken(expires_at={self.expires_at})"  # the token is a secret

    def is_fresh(self, now: float) -> bool:
        """Return whether more than half of the token's lifetime is left, so that it may be given out again."""
        return self.issued_at <= now < (self.issued_at + self.expires_at) / 2


class _TokenPayload(RegisteredClaims, frozen=True, kw_only=True, omit_defaults=True):
    sub: str
    oid: str
    appid: str
    tid: str
    iat: int
    uti: str
    jti: str
    idtyp: str
    ver: str
    app_displayname: str = ""
    xms_mirid: str = ""
    forewarn_secret: str = ""
    forewarn_vm_key: str = ""
    forewarn_vm_id: str = ""


class TokenIssuer:
    """Issues our own access tokens in the form of Azure's, and verifies them."""

    def __init__(self, url: str, key: SigningKey, lifetime_s: int = 3600, audiences: Iterable[str] = ()) -> None:
        self.url = url
        self.lifetime_s = lifetime_s
        self._key = key
        self._audiences = normalize_audiences((*MANAGEMENT_AUDIENCES, *audiences))
        self._cached_tokens: OrderedDict[tuple[TokenSubject, str], IssuedToken] = OrderedDict()

    def issue_token(self, subject: TokenSubject, audience: str, now: float) -> IssuedToken:
        """Return a token for this owner and audience, cached while more than half of its life is left."""
        key = (subject, audience)
        token = self._cached_tokens.get(key)
        if token is None or not token.is_fresh(now):
            token = self._cached_tokens[key] = self._sign(subject, audience, int(now))
        self._cached_tokens.move_to_end(key)
        if len(self._cached_tokens) > _MAX_CACHED_TOKENS:
            self._cached_tokens.popitem(last=False)
        return token

    def accept_audiences(self, audiences: Iterable[str]) -> None:
        """Make `verify` and `accepts` accept these audiences too, until the process ends."""
        self._audiences |= normalize_audiences(audiences)

    def accepts(self, audience: str) -> bool:
        """Return whether `verify` accepts tokens for this audience, compared by `normalize_audience`."""
        return normalize_audience(audience) in self._audiences

    def verify(self, token: str, now: float) -> Claims:
        """Return the claims of a valid token that this issuer has signed.

        UNKNOWN_KEY means that another key has signed it, perhaps that of another issuer. Whether the client or VM still
        exists is not checked.
        """
        header = jws.parse_header(token)
        if header.kid != self._key.kid:
            raise InvalidToken(
                TokenErrorReason.UNKNOWN_KEY, "the token was not signed with the key of this service: sign in again"
            )
        jws.require_algorithm((SIGNING_ALGORITHM,), header)
        payload = jws.verify_payload(token, self._key.public, SIGNING_ALGORITHM, _TokenPayload)
        check_claims(payload, issuer=self.url, audiences=self._audiences, now=now)
        return _claims_from_payload(payload)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """Return the JWKS document (RFC 7517) with our public key, `{"keys": [jwk]}`, to be published as JSON."""
        return {"keys": [self._key.jwk]}

    def _sign(self, subject: TokenSubject, audience: str, now: int) -> IssuedToken:
        identifier = secrets.token_urlsafe(16)
        payload = _TokenPayload(
            iss=self.url, aud=audience, iat=now, nbf=now, exp=now + self.lifetime_s,
            sub=subject.object_id, oid=subject.object_id, appid=subject.client_id, tid=subject.tenant,
            uti=identifier, jti=identifier, idtyp="app", ver="1.0", app_displayname=subject.name,
            xms_mirid=subject.resource_id, forewarn_secret=subject.secret_fingerprint,
            forewarn_vm_key=subject.vm_key, forewarn_vm_id=subject.vm_id,
        )  # fmt: skip
        token = jws.sign(
            msgspec.json.encode(payload), self._key.private, algorithm=SIGNING_ALGORITHM, kid=self._key.kid
        )
        return IssuedToken(token=token, issued_at=now, expires_at=now + self.lifetime_s)


def _claims_from_payload(payload: _TokenPayload) -> Claims:
    vm_id = payload.forewarn_vm_id
    return Claims(
        ids=(vm_principal(vm_id) if vm_id else client_principal(payload.appid),),
        name=payload.app_displayname or payload.appid,
        tenant=payload.tid,
        expires_at=payload.exp,
        secret_fingerprint=payload.forewarn_secret,
        vm_key=payload.forewarn_vm_key,
        vm_id=vm_id,
    )


# Tokens with which a control node vouches for a call that it forwards to the active one.
#
# They are signed with the token key, which all control nodes share, but for their own audience: none of them is
# accepted as an access token or a session, nor the reverse.

TOKEN_LIFETIME_S = 60  # real time
_ISSUER = "forewarn control node"
_AUDIENCE = "forewarn control nodes"


class ForwardedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a control node tells the active node about a call that it forwards: how and from whom it came."""

    node: str  # the name of the forwarding node
    scheme: str  # `https`, or `http` from a browser on the node's own machine
    owner: str = ""  # the name of the local owner who called on the unix socket; "": any caller, over the network


class _ForwardingPayload(RegisteredClaims, frozen=True, kw_only=True, omit_defaults=True):
    node: str
    scheme: str
    owner: str = ""


class ForwardingTokens:
    """Signs and verifies the tokens with which a control node vouches for a call; they are valid for a minute."""

    def __init__(self, key: SigningKey, real_time: Callable[[], float]) -> None:
        self._key = key
        self._real_time = real_time
        self._issued: dict[ForwardedCall, IssuedToken] = {}  # signing takes about a millisecond

    def issue(self, call: ForwardedCall) -> str:
        """Return a signed token that contains `call`; equal calls may get the same token."""
        now = self._real_time()
        issued = self._issued.get(call)
        if issued is None or not issued.is_fresh(now):
            issued = self._issued[call] = self._sign(call, int(now))
        return issued.token

    def verify(self, token: str) -> ForwardedCall:
        """Return the call in another node's token. The clocks of the nodes must agree within a minute."""
        header = jws.parse_header(token)
        if header.kid != self._key.kid:
            raise InvalidToken(
                TokenErrorReason.UNKNOWN_KEY,
                "the call was forwarded by a node with another token key: give all control nodes the same secrets",
            )
        jws.require_algorithm((SIGNING_ALGORITHM,), header)
        payload = jws.verify_payload(token, self._key.public, SIGNING_ALGORITHM, _ForwardingPayload)
        check_claims(payload, issuer=_ISSUER, audiences=frozenset({_AUDIENCE}), now=self._real_time())
        return ForwardedCall(node=payload.node, scheme=payload.scheme, owner=payload.owner)

    def _sign(self, call: ForwardedCall, now: int) -> IssuedToken:
        payload = _ForwardingPayload(
            iss=_ISSUER,
            aud=_AUDIENCE,
            nbf=now,
            exp=now + TOKEN_LIFETIME_S,
            node=call.node,
            scheme=call.scheme,
            owner=call.owner,
        )
        content = msgspec.json.encode(payload)
        token = jws.sign(content, self._key.private, algorithm=SIGNING_ALGORITHM, kid=self._key.kid)
        return IssuedToken(token=token, issued_at=now, expires_at=now + TOKEN_LIFETIME_S)
