"""Which heartbeats a host node subscribes to: those for all nodes, or only its own.

A heartbeat for all arrives at every host at the same time, and changes wait behind such a burst. So the active node
also sends heartbeats on the stream of each host whose node has joined, spread over the interval, and a node that gets
those unsubscribes from the others until it is in doubt. It needs those for all to find a new active node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from forewarn.cluster.bus import Bus, MessageHandler, Subjects
from forewarn.errors import Refused

log = logging.getLogger(__name__)


class HeartbeatSubscription:
    """A host node's subscription to the heartbeats that the active control node sends to all nodes.

    Call `begin` first, `leave` once the node gets heartbeats on the subject of its own host, `resume` when it doubts
    that the active node is still the same, and `close` at the end.
    """

    def __init__(self, bus: Bus, subjects: Subjects, handler: MessageHandler) -> None:
        self._bus, self._subject, self._handler = bus, subjects.heartbeat, handler
        self._unsubscribe: Callable[[], None] | None = None
        self._is_subscribing = False
        self._is_closed = False

    @property
    def is_subscribed(self) -> bool:
        """Whether the node gets the heartbeats for all nodes, or is about to subscribe to them."""
        return self._unsubscribe is not None or self._is_subscribing

    async def begin(self) -> None:
        """Subscribe to the heartbeats for all nodes; does nothing while subscribed, or after `close`."""
        if self.is_subscribed or self._is_closed:
            return
        self._is_subscribing = True
        try:
            self._unsubscribe = await self._bus.subscribe(self._subject, self._handler)
        finally:
            self._is_subscribing = False
        if self._is_closed:
            self.leave()

    async def resume(self) -> None:
        """Subscribe again to the heartbeats for all nodes; does nothing while subscribed, or after `close`."""
        try:
            await self.begin()
        except Refused as error:
            log.warning("%s", error)

    def leave(self) -> None:
        """Unsubscribe from the heartbeats for all nodes until `resume`; does nothing if not subscribed."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def close(self) -> None:
        """Unsubscribe for good: `begin` and `resume` then do nothing. May be called twice."""
        self._is_closed = True
        self.leave()
