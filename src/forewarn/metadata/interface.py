"""The interface of the metadata server: scopes published to it, and the backend that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from forewarn.protocol.document import Document
from forewarn.protocol.exchange import etag
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource


class MetadataBackend(Protocol):
    """The calls that need more than published data. Changes are durable on return.

    They raise Unavailable or Conflict if a retry may help, and NotFound if the VM was removed.
    """

    async def enable(self, vm: str) -> None:
        """Enable the VM's scope at its first request (spec §8.1); the scope is published on return."""

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        """Approve all events; if an id was never an event of the VM's scope, approve none and return that id.

        Spec §5.2. Returns None if all were approved.
        """

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        """Issue a token for a VM's identity; WrongResource if no token is valid for this resource (spec §2.8).

        Does not use the store.
        """

    def now(self) -> float:
        """Return lab time in POSIX seconds, which VMs and the history show (spec §12)."""


@dataclass(frozen=True, slots=True)
class ResetConnection:
    """Stands for a response: the server resets the connection instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScope:
    """Everything that the VMs of one scope may see, as of one commit."""

    scope_id: str
    enabled: bool  # False: the first request calls `MetadataBackend.enable`
    epoch: int  # another one each time the scope is enabled; part of the ETag
    document: Document
    vms: Mapping[str, InstanceFacts]  # by VM key
    poll_override: HttpResponse | ResetConnection | None = None  # the response to polls instead of the document


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestView:
    """Everything that one VM may see; the fields without a comment are those of its `PublishedScope`."""

    vm: str  # key
    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    facts: InstanceFacts
    poll_override: HttpResponse | ResetConnection | None = None
    delayed_until: float = 0.0  # loop time until which responses are delayed (spec §8.1)
    store_tag: str = ""  # distinguishes the ETags of this store from those of any other

    @property
    def name(self) -> str:
        """The name of the VM, without its resource group."""
        return self.facts.name

    @property
    def etag(self) -> str:
        """The quoted ETag of the document."""
        return etag(self.scope_id, self.epoch, self.document.incarnation, self.store_tag)

    @property
    def location(self) -> str:
        """The location (region) of the VM, which selects its endpoint rules."""
        return self.facts.location
