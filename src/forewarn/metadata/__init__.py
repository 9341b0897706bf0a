"""The HTTP server that virtual machines poll for scheduled events and send approvals to.

Publish each scope on `PublishedDocuments`, assign network attachments to VMs in `CallerDirectory`, start a
`MetadataServer`. Polls are answered from memory; only a scope's first request, approvals and tokens go to the
`MetadataBackend`. `workers` are processes that answer beside the owner. May import control and below; makes no decision
about events. Holds, delays and timeouts are in real time (spec §12). Start reading at `server`, then `connection` and
`responder`.
"""

from forewarn.metadata.identity import (
    CalledAddressIdentity,
    CallerDirectory,
    DedicatedIdentity,
    DeviceIdentity,
    IdentityStrategy,
    MarkIdentity,
    PortIdentity,
    SourceAddressIdentity,
    dedicated_attachment,
)
from forewarn.metadata.interface import GuestView, MetadataBackend, PublishedScope, ResetConnection
from forewarn.metadata.limits import Limits
from forewarn.metadata.listener_manager import ListenerChange, ListenerManager
from forewarn.metadata.listeners import (
    IdentifyBy,
    LabListeners,
    LabListenMode,
    ListenerSpec,
    VmListener,
    listener_for_socket,
    open_lab_listeners,
    open_network_listener,
)
from forewarn.metadata.observations import GuestObservations
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import RequestCounters
from forewarn.metadata.server import MetadataServer

__all__ = [
    "CalledAddressIdentity",
    "CallerDirectory",
    "DedicatedIdentity",
    "DeviceIdentity",
    "GuestObservations",
    "GuestView",
    "IdentifyBy",
    "IdentityStrategy",
    "LabListenMode",
    "LabListeners",
    "Limits",
    "ListenerChange",
    "ListenerManager",
    "ListenerSpec",
    "MarkIdentity",
    "MetadataBackend",
    "MetadataServer",
    "PortIdentity",
    "PublishedDocuments",
    "PublishedScope",
    "RequestCounters",
    "ResetConnection",
    "SourceAddressIdentity",
    "VmListener",
    "dedicated_attachment",
    "listener_for_socket",
    "open_lab_listeners",
    "open_network_listener",
]
