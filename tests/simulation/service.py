"""The service as a simulated process: store, control plane, reconciler and metadata server, killed and started again.

The store's content, the hypervisor's ledger and the real time survive a death; everything else is built anew.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.commit import Commit
from forewarn.core.decision import Policy
from forewarn.core.event import Act
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.errors import Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metadata import MetadataServer
from forewarn.metadata.identity import Caller
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig
from forewarn.service.maintenance_jobs import (
    record_fault_effects_forever,
    save_clock_forever,
    write_observation_batches,
)
from forewarn.store import sqlite_file
from forewarn.store.interface import Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from forewarn.store.writer_thread import WriterThread
from tests.simulation.network import PipeTransport
from tests.simulation.process import SimulatedProcess
from tests.simulation.virtual_loop import START_TIME
from tests.support.world import NOON

T = TypeVar("T")
JOB_INTERVAL_S = 10.0
_WRITE_DELAYS_S = (0.0, 0.0, 0.001, 0.003, 0.02)
_ACT_DELAYS_S = (0.0, 0.001, 0.05)


class InlineWriter(WriterThread):
    """The writer of a SQLite store without a thread: each write is a transaction of its own, done at once."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name, self._is_open, self.failures, self._mark = db, name, True, 0, None

    async def write(
        self, write: Callable[[sqlite3.Connection], T], on_commit: Callable[[T], None] | None = None, *, rows: int = 1
    ) -> T:
        if not self._is_open:
            raise Unavailable(f"the store {self._name!r} is closed")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = write(self._db)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        if on_commit is not None:
            on_commit(result)
        return result

    async def finish(self) -> None:
        self._is_open = False


class CrashingStore:
    """A store of one process: its writes come one after the other, take time, and may be the last of the process.

    Reads go to the inner store.
    """

    def __init__(self, inner: Store, process: SimulatedProcess, chance: Random) -> None:
        self._inner, self._process, self._chance = inner, process, chance
        self._order = asyncio.Lock()
        self.fails_in: int | None = None  # writes before the one that fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, commit: Commit) -> int:
        return await self._write(lambda: self._inner.commit(commit))

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        await self._write(lambda: self._inner.record_observations(polls, deliveries))

    async def save(self, name: str, value: bytes) -> None:
        await self._write(lambda: self._inner.save(name, value))

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        async with self._order:
            await asyncio.sleep(self._chance.choice(_WRITE_DELAYS_S))
            self._process.pass_point()
            self._maybe_fail()
            answer = await write()
            self._process.pass_point()
        return answer

    def _maybe_fail(self) -> None:
        if self.fails_in is None:
            return
        self.fails_in -= 1
        if self.fails_in < 0:
            self.fails_in = None
            raise Unavailable("the disk is full for a moment: try again later")


class CrashingHypervisor(SimulatedHypervisor):
    """The connection of one process to the simulated hypervisor: acts take time, and may be its last."""

    def __init__(
        self,
        ledger: EffectLedger,
        behaviour: SimulatedBehaviour,
        *,
        process: SimulatedProcess,
        chance: Random,
        on_perform: Callable[[Act, float], None],
    ) -> None:
        super().__init__(ledger, behaviour)
        self._process, self._chance, self._on_perform = process, chance, on_perform

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        if not self.has_begun(act.id):
            self._on_perform(act, now)
        self._process.pass_point()
        answer = await super().perform(act, now)
        self._process.pass_point()
        await asyncio.sleep(self._chance.choice(_ACT_DELAYS_S))
        return answer


class SimulatedService:
    """The service. `start` begins a new process; `control` and `store` are those of the current one."""

    def __init__(
        self,
        *,
        policy: Policy,
        chance: Random,
        new_id: Callable[[], str],
        on_perform: Callable[[Act, float], None],
        on_open: Callable[[Store, float], None],
        database: Path | None,
    ) -> None:
        """`on_open` is called with store and lab time of each new process; `database` None: the store is in memory."""
        self.ledger = EffectLedger(None)
        self.behaviour = SimulatedBehaviour()
        self.died = asyncio.Event()
        self._policy, self._chance, self._new_id, self._database = policy, chance, new_id, database
        self._on_perform, self._on_open = on_perform, on_open
        self._memory = MemoryStore()
        self._file_store: SqliteStore | None = None
        self._connections: list[PipeTransport] = []
        self.process = SimulatedProcess("service")
        self.process.is_dead = True
        self.is_serving = False
        self.store: Store
        self.control: ControlPlane
        self.crashing_store: CrashingStore
        self._hypervisor: CrashingHypervisor
        self._publisher: MetadataPublisher

    async def start(self, dies_after: int | None = None) -> None:
        """Start a new process on what the last one has left; it dies after this many crash points, if any.

        Raises ProcessDied if it dies while it starts.
        """
        self.died.clear()
        self.process = SimulatedProcess("service", self._on_death)
        if dies_after is not None:
            self.process.die_after(dies_after)
        await self.process.call(self._open())
        self.is_serving = True

    def set_behaviour(self, behaviour: SimulatedBehaviour) -> None:
        """Let the hypervisor behave so, also for later processes."""
        self.behaviour = behaviour
        self._hypervisor.set_behaviour(behaviour)

    async def connect(self, protocol: asyncio.Protocol, host: str) -> asyncio.Transport:
        """Connect a VM, known by its address `host`, to the metadata server."""
        if not self.is_serving:
            raise ConnectionRefusedError("the service is down")
        frontend = self._publisher.frontend
        server, callers = frontend.server, frontend.callers
        assert isinstance(server, MetadataServer)
        caller = Caller(attachment=host, vm=callers.vm_at(host), is_loopback=False)
        client_end = PipeTransport(protocol, copy_context())
        server_end = PipeTransport(self.process.context.run(server.add_connection, caller), self.process.context)
        client_end.connect_to(server_end)
        self._connections = [each for each in self._connections if not each.is_closing()] + [server_end]
        await asyncio.sleep(0)
        return client_end

    async def close(self) -> None:
        """End the process and close the ledger and the store's files."""
        self.process.die()
        await asyncio.sleep(0.1)
        await self._close_files()
        self.ledger.close()

    async def _open(self) -> None:
        loop, process = asyncio.get_running_loop(), self.process
        inner = await self._open_store()
        self.crashing_store = CrashingStore(inner, process, self._chance)
        self.store = cast(Store, self.crashing_store)
        start = ClockSetting(lab_at=NOON, real_at=RealTime(START_TIME), speed=1.0)
        clock = LabClock(load_clock_setting(self.store) or start, real=lambda: RealTime(loop.time()))
        self._hypervisor = CrashingHypervisor(
            self.ledger, self.behaviour, process=process, chance=self._chance, on_perform=self._on_perform
        )
        self.control = ControlPlane(
            store=self.store,
            clock=clock,
            hypervisor=self._hypervisor,
            inputs=ControlInputs(
                new_id=self._new_id, polls=self.store.last_polls, real_time=lambda: RealTime(loop.time())
            ),
            policy=self._policy,
        )
        self._on_open(self.store, clock.now())
        self._publisher = MetadataPublisher.open(PublisherConfig(), self.control)
        process.spawn(self.control.reconciler.run())
        await self._publisher.start(GuestBackend(self.control))
        process.spawn(self._write_observations())
        table = self._publisher.frontend.faults
        process.spawn(record_fault_effects_forever(table, self.control.faults, every_s=JOB_INTERVAL_S))
        process.spawn(save_clock_forever(self.control.lab_clock))

    async def _open_store(self) -> Store:
        if self._database is None:
            self._memory = self._memory.copy()
            return self._memory
        await self._close_files()
        path = self._database
        writer = InlineWriter(sqlite_file.connect_writer(path), str(path))
        self._file_store = SqliteStore(path, reader=sqlite_file.connect_reader(path), writer=writer)
        return self._file_store

    async def _close_files(self) -> None:
        if self._file_store is not None:
            await self._file_store.close()
            self._file_store = None

    async def _write_observations(self) -> None:
        while True:
            await asyncio.sleep(JOB_INTERVAL_S)
            await write_observation_batches(self._publisher.frontend.observations, self.store)

    def _on_death(self) -> None:
        self.is_serving = False
        for connection in self._connections:
            connection.abort()
        self._connections.clear()
        self.died.set()
