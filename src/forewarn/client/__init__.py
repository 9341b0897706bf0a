"""GUEST SDK. What a program inside a VM needs to hear of maintenance and to approve it: `Client`, and the values
that it returns. It talks to a real Azure endpoint and to forewarn alike.

The exchange is pure, so that several drivers can share it; a driver only moves bytes and sleeps. Standard library
only. Never here: reactions to events, proxies from the environment, anything of the host's side.
"""

from forewarn.client.async_driver import AsyncClient
from forewarn.client.change import Change, Gone, Outcome, Scheduled, Started
from forewarn.client.discovery import Discovery
from forewarn.client.driver import Client
from forewarn.client.endpoint import Endpoint
from forewarn.client.event import Event, lists
from forewarn.client.handler import Handler
from forewarn.client.move import Unreachable
from forewarn.protocol.codec import Received, ReceivedEvent
from forewarn.protocol.document import Kind

__all__ = [
    "AsyncClient",
    "Change",
    "Client",
    "Discovery",
    "Endpoint",
    "Event",
    "Gone",
    "Handler",
    "Kind",
    "Outcome",
    "Received",
    "ReceivedEvent",
    "Scheduled",
    "Started",
    "Unreachable",
    "lists",
]
