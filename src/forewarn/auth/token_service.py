"""Whose tokens count here: our own clients' and VMs', or an external issuer's and our VMs'."""

from __future__ import annotations

import uuid

from forewarn.access.claims import BadToken, Claims, Reason
from forewarn.access.issuer import ExternalIssuer
from forewarn.access.secret import mark_of
from forewarn.access.token import Issued, Issuer, Subject
from forewarn.core.access import Client
from forewarn.core.fleet import Vm
from forewarn.core.resource import resource_of
from forewarn.protocol.identity import ManagedIdentity

_NAMES = uuid.UUID("5e3f0a51-7a0c-4c52-9d0b-61a2f0f7c3d4")  # under which the ids of identities are derived


class SignIn:
    """Gives tokens to those who have proven who they are, and tells from a token who shows it."""

    def __init__(self, *, issuer: Issuer, tenant_id: str, external: ExternalIssuer | None = None) -> None:
        self.issuer = issuer
        self.tenant_id = tenant_id
        self.external = external

    def for_client(self, client: Client, audience: str, now: float) -> Issued:
        return self.issuer.issued(self._client(client), audience, now)

    def for_vm(self, identity: ManagedIdentity, audience: str, now: float) -> Issued:
        return self.issuer.issued(self._vm(identity), audience, now)

    def identity_of(self, vm: Vm) -> Subject:
        return self._vm(ManagedIdentity(vm=vm.key, vm_id=vm.vm_id, name=vm.name, resource_id=resource_of(vm)))

    async def verify(self, token: str, now: float) -> Claims:
        """Raises BadToken, or Unavailable where an external issuer could never be reached."""
        try:
            claims = self.issuer.verify(token, now)
        except BadToken as error:
            if self.external is None or error.reason is not Reason.UNKNOWN_KEY:
                raise
            return await self.external.verify(token, now)
        if self.external is not None and not claims.vm_id:
            raise BadToken(Reason.WRONG_ISSUER, f"clients sign in at {self.external.url!r} now: get a token there")
        return claims

    def _vm(self, identity: ManagedIdentity) -> Subject:
        return Subject(
            client_id=identity.client_id,
            object_id=identity.object_id,
            tenant=self.tenant_id,
            name=identity.name,
            vm_key=identity.vm,
            vm_id=identity.vm_id,
            resource_id=identity.resource_id,
        )

    def _client(self, client: Client) -> Subject:
        object_id = _derived("object", client.principal_id)
        return Subject(
            client_id=client.id,
            object_id=object_id,
            tenant=self.tenant_id,
            name=client.name or client.id,
            secret_mark=mark_of(client.secret_hash),
        )


def claims_of(client: Client) -> Claims:
    """A client that has shown its secret, as its tokens will say it."""
    return Claims(
        ids=(client.principal_id,),
        name=client.name or client.id,
        tenant="",
        expires_at=0,
        secret_mark=mark_of(client.secret_hash),
    )


def _derived(what: str, of: str) -> str:
    return str(uuid.uuid5(_NAMES, f"{what}:{of.casefold()}"))
