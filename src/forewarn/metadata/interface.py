"""The seam: what the mouth is told by the house (`ScopeView`), and what it must ask the house for (`Backend`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from forewarn.protocol.condition import etag
from forewarn.protocol.document import Document
from forewarn.protocol.identity import ManagedIdentity, Token, WrongResource
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.message import Response


class Backend(Protocol):
    """What cannot be answered from memory. What is asked is durable on return; else Unavailable is raised."""

    async def enable(self, vm: str) -> None:
        """The first request of the VM's scope (spec §8.1); the enabled scope is on the board on return."""

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        """Approve all, or none: the first id that was never an event of the VM's scope, or None (spec §5.2)."""

    async def token(self, identity: ManagedIdentity, resource: str) -> Token | WrongResource:
        """A token by which others know this VM (spec §2.8); the store is not asked for it."""

    def now(self) -> float:
        """Lab time, for what VMs and the history are shown (spec §12)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Instead of an answer the connection is reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeView:
    """All that the VMs of one scope may be told, as of one commit."""

    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    vms: Mapping[str, InstanceFacts]  # by VM key
    instead: Response | Reset | None = None  # what polls get while the document is out of reach


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that one VM may be told."""

    vm: str  # its key
    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    facts: InstanceFacts
    instead: Response | Reset | None = None
    answers_from: float = 0.0  # loop time until which the scope's answers are delayed (spec §8.1)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def tag(self) -> str:
        return etag(self.scope_id, self.epoch, self.document.incarnation)

    @property
    def location(self) -> str:
        return self.facts.location
