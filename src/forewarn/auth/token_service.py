"""Issues tokens to clients and VMs, and verifies tokens of our own and of an external issuer.

With an external issuer, clients must get their tokens there; VMs still get ours.
"""

from __future__ import annotations

import uuid

from forewarn.auth.claims import Claims, InvalidToken, TokenErrorReason, normalize_audience
from forewarn.auth.client_secrets import secret_fingerprint
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.tokens import MANAGEMENT_AUDIENCES, IssuedToken, TokenIssuer, TokenSubject
from forewarn.base.clock import read_real_time
from forewarn.core.access import RegisteredClient
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource

_ID_NAMESPACE = uuid.UUID("5e3f0a51-7a0c-4c52-9d0b-61a2f0f7c3d4")  # for the object ids of clients


class TokenService:
    """Issues access tokens to clients and VMs, and verifies the tokens that callers send."""

    def __init__(self, *, issuer: TokenIssuer, tenant_id: str, external: ExternalIssuer | None = None) -> None:
        self.issuer = issuer
        self.tenant_id = tenant_id
        self.external = external

    def issue_for_client(self, client: RegisteredClient, audience: str, now: float) -> IssuedToken:
        """Return an access token for a client. The caller has checked its secret, and checks the audience."""
        return self.issuer.issue_token(self._client_subject(client), audience, now)

    def issue_for_vm(self, identity: ManagedIdentity, audience: str, now: float) -> IssuedToken:
        """Return an access token for a VM's managed identity. The audience is not checked."""
        return self.issuer.issue_token(self._identity_subject(identity), audience, now)

    async def verify(self, token: str, now: float) -> Claims:
        """Return the claims of an access token from us or from the external issuer.

        Whether the client or VM still exists, or the client has another secret, is not checked.
        """
        try:
            claims = self.issuer.verify(token, now)
        except InvalidToken as error:
            if self.external is None or error.reason is not TokenErrorReason.UNKNOWN_KEY:
                raise
            return await self.external.verify(token, now)
        if self.external is not None and not claims.vm_id:
            raise InvalidToken(
                TokenErrorReason.WRONG_ISSUER, f"clients sign in at {self.external.url!r} now: get a token there"
            )
        return claims

    def _identity_subject(self, identity: ManagedIdentity) -> TokenSubject:
        return TokenSubject(
            client_id=identity.client_id,
            object_id=identity.object_id,
            tenant=self.tenant_id,
            name=identity.name,
            vm_key=identity.vm,
            vm_id=identity.vm_id,
            resource_id=identity.resource_id,
        )

    def _client_subject(self, client: RegisteredClient) -> TokenSubject:
        object_id = _derive_id("object", client.principal_id)
        return TokenSubject(
            client_id=client.id,
            object_id=object_id,
            tenant=self.tenant_id,
            name=client.name or client.id,
            secret_fingerprint=secret_fingerprint(client.secret_hash),
        )


def claims_of_client(client: RegisteredClient) -> Claims:
    """Return the claims of a client that has proven its secret itself, without a token."""
    return Claims(
        ids=(client.principal_id,),
        name=client.name or client.id,
        tenant="",
        expires_at=0,
        secret_fingerprint=secret_fingerprint(client.secret_hash),
    )


def _derive_id(what: str, of: str) -> str:
    return str(uuid.uuid5(_ID_NAMESPACE, f"{what}:{of.casefold()}"))


class VmTokens:
    """Issues managed identity tokens to VMs at the metadata endpoint; none without a `token_service`."""

    def __init__(self, token_service: TokenService | None = None, url: str = "") -> None:
        self._token_service = token_service
        self._accepted_audiences = (*MANAGEMENT_AUDIENCES, url) if token_service else ()

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        if self._token_service is None or not self._token_service.issuer.accepts(resource):
            return WrongResource(accepted=self._accepted_audiences)
        # Normalized, because every other spelling would need another signature.
        issued = self._token_service.issue_for_vm(identity, normalize_audience(resource), read_real_time())
        return ManagedIdentityToken(text=issued.token, not_before=issued.issued_at, expires_at=issued.expires_at)
