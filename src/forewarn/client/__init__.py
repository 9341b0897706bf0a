"""GUEST SDK. What a program inside a VM needs to hear of maintenance and to approve it: `Client`, and the values
that it returns. It talks to a real Azure endpoint and to forewarn alike.

The exchange is pure, so that several drivers can share it; a driver only moves bytes and sleeps. Standard library
only. Never here: reactions to events, proxies from the environment, anything of the host's side.
"""

from forewarn.client.change import Change, Gone, Outcome, Scheduled, Started
from forewarn.client.driver import Client, Unreachable
from forewarn.client.event import Event, lists
from forewarn.protocol.codec import Received, ReceivedEvent
from forewarn.protocol.document import Kind

__all__ = [
    "Change",
    "Client",
    "Event",
    "Gone",
    "Kind",
    "Outcome",
    "Received",
    "ReceivedEvent",
    "Scheduled",
    "Started",
    "Unreachable",
    "lists",
]
