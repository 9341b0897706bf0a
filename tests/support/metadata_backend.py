"""A metadata backend in memory: a test sets the documents, and can make the store slow or unavailable.

The clock stands still. Tokens are plain text and valid for an hour of real time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from forewarn.base.clock import read_real_time
from forewarn.errors import Unavailable
from forewarn.metadata import PublishedDocuments, PublishedScope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document, EventNotice
from forewarn.protocol.exchange import body_digest, etag
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource
from forewarn.protocol.versions import NEWEST_VERSION

AUDIENCE = "https://management.azure.com/"


def tag_of(*notices: EventNotice, incarnation: int = 1, scope_id: str = "pair", epoch: int = 1) -> str:
    """The ETag of a document with these events, in the newest api-version."""
    body = encode_document(Document(incarnation=incarnation, notices=notices), NEWEST_VERSION)
    return etag(scope_id, epoch, incarnation, body_digest(body))


class FakeMetadataBackend:
    """Implements `MetadataBackend` and publishes documents. A VM's key is its name."""

    def __init__(self, documents: PublishedDocuments, *, at: float = 1_700_000_000.0) -> None:
        self.documents = documents
        self.at = at
        self.is_unavailable = False  # the store fails every call
        self.is_open = asyncio.Event()  # cleared: calls to the store wait
        self.is_open.set()
        self.enabled_by: list[str] = []
        self.approved: list[tuple[str, tuple[str, ...]]] = []
        self.tokens: list[tuple[ManagedIdentity, str]] = []  # tokens issued: identity and resource
        self.waiting = 0  # calls that wait for the store now
        self._scopes: dict[str, PublishedScope] = {}
        self._known_event_ids: dict[str, set[str]] = {}

    def add_scope(self, scope_id: str, *vms: str, enabled: bool = True, location: str = "westeurope") -> None:
        """Publish a scope with these VMs and no events, at incarnation 1."""
        facts = {vm: InstanceFacts(name=vm, vm_id=f"{scope_id}-{vm}", location=location) for vm in vms}
        self._known_event_ids.setdefault(scope_id, set())
        self._publish(
            PublishedScope(
                scope_id=scope_id,
                enabled=enabled,
                epoch=1 if enabled else 0,
                document=Document(incarnation=1),
                vms=facts,
            )
        )

    def drop_scope(self, scope_id: str) -> None:
        del self._scopes[scope_id]
        self.documents.remove(scope_id)

    def show(self, scope_id: str, *notices: EventNotice) -> int:
        """Publish a document with exactly these events; returns its incarnation."""
        scope = self._scopes[scope_id]
        self._known_event_ids[scope_id] |= {notice.id for notice in notices}
        document = replace(scope.document, incarnation=scope.document.incarnation + 1, notices=notices)
        self._publish(replace(scope, document=document))
        return document.incarnation

    def republish(self, scope_id: str) -> None:
        """Publish the scope again without changes."""
        self._publish(replace(self._scopes[scope_id]))

    def now(self) -> float:
        return self.at

    async def enable(self, vm: str) -> None:
        await self._wait_for_store()
        self.enabled_by.append(vm)
        scope = self._scope_of(vm)
        self._publish(
            replace(scope, enabled=True, epoch=scope.epoch + 1, document=replace(scope.document, incarnation=1))
        )

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        await self._wait_for_store()
        known = self._known_event_ids[self._scope_of(vm).scope_id]
        unknown = next((event_id for event_id in event_ids if event_id not in known), None)
        if unknown is None:
            self.approved.append((vm, event_ids))
        return unknown

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        """Issue a token; as slow and as unavailable as the store."""
        await self._wait_for_store()
        if resource != AUDIENCE:
            return WrongResource(accepted=(AUDIENCE,))
        self.tokens.append((identity, resource))
        now = read_real_time()
        return ManagedIdentityToken(
            text=f"token-{len(self.tokens)}-of-{identity.vm}", not_before=now, expires_at=now + 3600
        )

    async def _wait_for_store(self) -> None:
        self.waiting += 1
        try:
            await self.is_open.wait()
        finally:
            self.waiting -= 1
        if self.is_unavailable:
            raise Unavailable("the store is unavailable: try again later")

    def _scope_of(self, vm: str) -> PublishedScope:
        return next(scope for scope in self._scopes.values() if vm in scope.vms)

    def _publish(self, scope: PublishedScope) -> None:
        self._scopes[scope.scope_id] = scope
        self.documents.publish(scope)
