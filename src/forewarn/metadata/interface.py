"""What the metadata server is given (`PublishedScope`) and what it asks for (`MetadataBackend`)."""

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
    """What cannot be answered from memory. What is asked is durable on return; else Unavailable is raised."""

    async def enable(self, vm: str) -> None:
        """The first request of the VM's scope (spec §8.1); the enabled scope is on the board on return."""

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        """Approve all, or none: the first id that was never an event of the VM's scope, or None (spec §5.2)."""

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        """A token by which others know this VM (spec §2.8); the store is not asked for it."""

    def now(self) -> float:
        """Lab time, for what VMs and the history are shown (spec §12)."""


@dataclass(frozen=True, slots=True)
class ResetConnection:
    """Instead of an answer the connection is reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScope:
    """All that the VMs of one scope may be told, as of one commit."""

    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    vms: Mapping[str, InstanceFacts]  # by VM key
    poll_override: HttpResponse | ResetConnection | None = None  # what polls get while the document is out of reach


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestView:
    """All that one VM may be told."""

    vm: str  # its key
    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    facts: InstanceFacts
    poll_override: HttpResponse | ResetConnection | None = None
    delayed_until: float = 0.0  # loop time until which the scope's answers are delayed (spec §8.1)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def etag(self) -> str:
        return etag(self.scope_id, self.epoch, self.document.incarnation)

    @property
    def location(self) -> str:
        return self.facts.location
