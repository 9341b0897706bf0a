"""Tokens with which a control node vouches for a call that it forwards to the active one.

They are signed with the token key, which all control nodes share, but for their own audience: none of them is
accepted as an access token or a session, nor the reverse.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forewarn.auth import jws
from forewarn.auth.claims import InvalidToken, RegisteredClaims, TokenErrorReason, check_claims
from forewarn.auth.tokens import SIGNING_ALGORITHM, IssuedToken, SigningKey

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
