"""The guest SDK: `Client`, `AsyncClient`, `Handler` and their values (docs/reference/sdk.md).

It works with Azure's endpoint and with forewarn alike. Decisions are generators (`effects.Flow`) that the blocking
and the asyncio client both run; a client only moves bytes and sleeps. The package uses the standard library,
`protocol` and `base`, and ignores proxies of the environment. Start reading at `session`, then `watch`.
"""

from forewarn.client.async_client import AsyncClient
from forewarn.client.blocking_client import Client
from forewarn.client.discovery import Discovery
from forewarn.client.effects import Unreachable
from forewarn.client.endpoint import Endpoint
from forewarn.client.events import Change, Event, Gone, Outcome, Scheduled, Started, lists
from forewarn.client.handler import Handler
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
