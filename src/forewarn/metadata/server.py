"""The server: listeners in, connections served, counts and observations out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forewarn.core.fault import Fault
from forewarn.metadata.allowance import Allowance
from forewarn.metadata.answer import Reception
from forewarn.metadata.board import Board
from forewarn.metadata.counted import Counted
from forewarn.metadata.doorstep import Doorstep
from forewarn.metadata.fault import FaultTable
from forewarn.metadata.hall import Hall, Tally
from forewarn.metadata.identity import Caller, Callers
from forewarn.metadata.limits import Limits
from forewarn.metadata.listener import Listener
from forewarn.metadata.memory import Memory
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
        remembers: bool = True,
        allowance: Allowance | None = None,
    ) -> None:
        """`remembers`: a poll that comes again is answered from memory, which nobody can tell but by a clock.

        `allowance`: of faults; where others serve too, one that is shared with them.
        """
        limits = limits or Limits()
        self.observations = Observations()
        self.faults = FaultTable(board.past, now=backend.now, allowance=allowance)
        self._callers = callers
        self._doorsteps: dict[Listener, list[Doorstep]] = {}
        self._tally, writer = Tally(), Writer(backend.now)
        self._memory = Memory(
            writer=writer,
            observations=self.observations,
            now=backend.now,
            count=self._tally.count,
            is_on=remembers,
        )
        board.follow(self._memory.forget)
        callers.follow(self._memory.forget)
        self.faults.follow(lambda vms: self._memory.forget_all() if vms is None else self._memory.forget(vms))
        reception = Reception(
            board=board,
            backend=backend,
            callers=callers,
            rules_for=rules_for,
            throttle=Throttle(limits.requests_per_s),
            observations=self.observations,
            faults=self.faults,
            memory=self._memory,
        )
        self._hall = Hall(
            reception=reception, memory=self._memory, board=board, writer=writer, limits=limits, tally=self._tally
        )

    @property
    def tally(self) -> Tally:
        self._memory.settle_some()
        return self._tally

    def counted(self) -> Counted:
        """All counts until now, for whoever adds them up or shows them."""
        tally = self.tally
        return Counted(
            answered=tuple((of, version, status, times) for ((of, version), status), times in tally.answered.items()),
            accepted=tally.accepted,
            refused=tally.refused,
            lost=self.observations.lost,
            held=tally.held,
            connections=self.connections,
        )

    @property
    def connections(self) -> int:
        return self._hall.size

    @property
    def buffered_bytes(self) -> int:
        """What waits to be parsed or to be read by callers, of all connections."""
        return self._hall.buffered_bytes

    def arm(self, faults: Sequence[Fault]) -> None:
        """From now on these faults, and no others, are on."""
        self.faults.arm(faults)

    async def start(self, listeners: Sequence[Listener]) -> None:
        """Serve these too; may be called again while the server runs."""
        for listener in listeners:
            self._serve(listener)

    async def stop(self, listener: Listener) -> None:
        """Accept nobody there any more; whoever is connected stays."""
        for doorstep in self._doorsteps.pop(listener, ()):
            await doorstep.close()

    def admit(self, caller: Caller) -> Connection:
        """For a caller who did not come by a listener: the connection is the protocol of whatever it came by."""
        connection = Connection(self._hall, caller)
        self._hall.admit(connection, caller)
        return connection

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody, answer whoever is held or in work, and close; hang up on who is left after the time."""
        for listener in tuple(self._doorsteps):
            await self.stop(listener)
        await self._hall.drain(timeout_s)

    def _serve(self, listener: Listener) -> None:
        for sock in listener.sockets:
            doorstep = Doorstep(self._hall, self._callers, listener, sock)
            doorstep.open()
            self._doorsteps.setdefault(listener, []).append(doorstep)
