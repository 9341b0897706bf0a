"""Tokens for the managed identities of VMs: who asks was told by the network, and our own issuer says it on."""

from __future__ import annotations

from forewarn.access.claims import spelled
from forewarn.access.sign_in import SignIn
from forewarn.access.token import MANAGEMENT
from forewarn.clock import read_real_time
from forewarn.protocol.identity import ManagedIdentity, Token, WrongResource


class Tokens:
    """`sign_in` is None where there is no console: then nobody would take a token."""

    def __init__(self, sign_in: SignIn | None = None, url: str = "") -> None:
        self._sign_in = sign_in
        self._accepted = (*MANAGEMENT, url) if sign_in else ()

    async def token(self, identity: ManagedIdentity, resource: str) -> Token | WrongResource:
        if self._sign_in is None or not self._sign_in.issuer.accepts(resource):
            return WrongResource(accepted=self._accepted)
        # In one spelling: whoever varies it would else have us sign every time.
        issued = self._sign_in.for_vm(identity, spelled(resource), read_real_time())
        return Token(text=issued.token, not_before=issued.issued_at, expires_at=issued.expires_at)
