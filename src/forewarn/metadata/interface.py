"""The interface of the metadata server: scopes published to it, and the backend that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from forewarn.protocol.document import Document
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource


class MetadataBackend(Protocol):
    """What the metadata server calls for requests that published data cannot answer; VMs are named by key.

    Changes are durable on return. Implemented by the owner process and, as proxies of a service elsewhere, by workers
    and host nodes; a failed call of such a proxy may have taken effect.
    """

    async def enable(self, vm: str) -> None:
        """Enable scheduled events for the VM's scope at its first request (spec §8.1)."""

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        """Approve these events for the VM with this key (spec §5.2), durably; ids are in upper case.

        If an id is not an event that documents of the VM's scope list or listed, or that a replay showed the scope,
        approves none and returns the first such id.
        """

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        """Return an access token for a VM's identity (spec §2.8), perhaps one that was issued before."""

    def now(self) -> float:
        """Return lab time, as VMs and the history show it, in POSIX seconds (spec §12); real time if no lab."""


@dataclass(frozen=True, slots=True)
class ResetConnection:
    """Takes the place of a response: the server resets the connection (TCP RST) and sends no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScope:
    """Everything that the VMs of one scope may see, as of one commit."""

    scope_id: str  # the id of the scope in the store
    enabled: bool  # False: the first request calls `MetadataBackend.enable`
    epoch: int  # another one each time the scope is enabled or reset; part of the ETag
    document: Document  # the events that its VMs see; if `is_narrow`, each of them only those that affect it
    vms: Mapping[str, InstanceFacts]  # by VM key; only VMs that are not removed
    poll_override: HttpResponse | ResetConnection | None = None  # the response to polls; None: the document
    is_narrow: bool = False  # each VM sees only the events that affect it (spec §14.6)

    def document_of(self, vm: str) -> Document:
        """Return the document that the VM with this key sees: the same object for all, unless `is_narrow`."""
        return self.document.narrowed_to(self.vms[vm].name) if self.is_narrow else self.document


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestView:
    """Everything that one VM may see, as its `PublishedScope` has it; `PublishedDocuments.view` makes it."""

    vm: str  # key
    scope_id: str  # the id of the VM's scope
    enabled: bool  # False: the first request calls `MetadataBackend.enable`
    epoch: int  # the epoch of the scope; part of the ETag
    document: Document  # the events that it sees
    facts: InstanceFacts  # of this VM, for the instance endpoint
    poll_override: HttpResponse | ResetConnection | None = None  # the response to polls; None: the document
    delayed_until: float = 0.0  # loop time until which responses are delayed (spec §8.1); 0.0: they are not

    @property
    def name(self) -> str:
        """The name of the VM, without its resource group."""
        return self.facts.name

    @property
    def location(self) -> str:
        """The location (region) of the VM, which selects its endpoint rules."""
        return self.facts.location
