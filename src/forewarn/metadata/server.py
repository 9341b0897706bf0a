"""The server: listeners in, connections served, counts and observations out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from forewarn.metadata.answer import Reception
from forewarn.metadata.board import Board
from forewarn.metadata.fault import FaultTable
from forewarn.metadata.hall import Hall, Tally
from forewarn.metadata.identity import Callers
from forewarn.metadata.limits import Limits
from forewarn.metadata.listener import BACKLOG, Listener
from forewarn.metadata.observation import Observations
from forewarn.metadata.protocol import Connection
from forewarn.metadata.reply import Writer
from forewarn.metadata.seam import Backend
from forewarn.metadata.throttle import Throttle
from forewarn.protocol.exchange import Rules


class MetadataServer:
    """Answers VMs from the board. Build and use it inside a running loop; it serves from `start` to `drain`."""

    def __init__(
        self,
        *,
        board: Board,
        backend: Backend,
        callers: Callers,
        rules_for: Callable[[str], Rules] = lambda location: Rules(),
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self.observations = Observations()
        self.faults = FaultTable(board.past, now=backend.now)
        self._callers = callers
        self._servers: dict[Listener, list[asyncio.Server]] = {}
        reception = Reception(
            board=board,
            backend=backend,
            callers=callers,
            rules_for=rules_for,
            throttle=Throttle(limits.requests_per_s),
            observations=self.observations,
            faults=self.faults,
        )
        self._hall = Hall(reception=reception, board=board, writer=Writer(backend.now), limits=limits)

    @property
    def tally(self) -> Tally:
        return self._hall.tally

    @property
    def connections(self) -> int:
        return self._hall.size

    @property
    def buffered_bytes(self) -> int:
        """What waits to be parsed or to be read by callers, of all connections."""
        return self._hall.buffered_bytes

    async def start(self, listeners: Sequence[Listener]) -> None:
        """Serve these too; may be called again while the server runs."""
        for listener in listeners:
            await self._serve(listener)

    async def stop(self, listener: Listener) -> None:
        """Accept nobody there any more; whoever is connected stays."""
        for server in self._servers.pop(listener, ()):
            server.close()

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody, answer whoever is held or in work, and close; hang up on who is left after the time."""
        servers = [server for of_one in self._servers.values() for server in of_one]
        for server in servers:
            server.close()
        await self._hall.drain(timeout_s)
        for server in servers:
            await server.wait_closed()

    async def _serve(self, listener: Listener) -> None:
        connect = partial(Connection, self._hall, self._callers, listener.strategy, is_loopback=listener.is_loopback)
        loop = asyncio.get_running_loop()
        for sock in listener.sockets:
            server = await loop.create_server(connect, sock=sock, backlog=BACKLOG)
            self._servers.setdefault(listener, []).append(server)
