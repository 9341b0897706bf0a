"""GUEST SDK. What a program inside a VM needs to hear of maintenance and to approve it: `Client`, and the values
that it returns. It talks to a real Azure endpoint and to forewarn alike.

The exchange is pure, so that several drivers can share it; a driver only moves bytes and sleeps. Standard library
only. Never here: reactions to events, proxies from the environment, anything of the host's side.
"""

from forewarn.client.driver import Client, Unreachable
from forewarn.protocol.codec import Received, ReceivedEvent

__all__ = ["Client", "Received", "ReceivedEvent", "Unreachable"]
