"""Connects a service to the bus of its cluster, where host nodes answer the VMs and perform the acts."""

from __future__ import annotations

import logging
import secrets
import socket
from contextlib import AsyncExitStack

from forewarn.cluster.bus import Bus, Subjects
from forewarn.cluster.control_side import ClusterControl
from forewarn.cluster.host_streams import ActiveTerm
from forewarn.cluster.nats_bus import NatsBus
from forewarn.service.settings import Settings

log = logging.getLogger(__name__)
_SESSION_BYTES = 8


async def connect_bus(stack: AsyncExitStack, settings: Settings, name: str) -> NatsBus:
    """Connect this control node to the bus (NATS) and return the connection, which the stack closes."""
    bus = await NatsBus.connect(
        settings.nats,
        name=f"control node {name}",
        inbox=Subjects(settings.bus_prefix).inbox(f"control {name}"),
        on_waiting=lambda text: log.warning("%s", text),
    )
    stack.push_async_callback(bus.close)
    return bus


def new_cluster_control(bus: Bus, settings: Settings, name: str, term: ActiveTerm | None = None) -> ClusterControl:
    """Make the active control node's side of the bus, with a random session id. Sends nothing yet."""
    session = secrets.token_hex(_SESSION_BYTES)
    return ClusterControl(bus, Subjects(settings.bus_prefix), session=session, name=name, term=term)


async def open_cluster_control(stack: AsyncExitStack, settings: Settings) -> ClusterControl:
    """Connect the only service of a bus to it, under this machine's name; return its side of the bus."""
    name = socket.gethostname()
    return new_cluster_control(await connect_bus(stack, settings, name), settings, name)
