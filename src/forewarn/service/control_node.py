"""The life of a control node of a cluster, from standby to active and back, and why no VM is ever misled by it.

A standby follows the record and takes a lease that has expired. Then the service runs on this node until it resigns,
or until the lease is lost. A node that is deposed ends its process at once, because what it has in memory may be wrong;
its process supervisor starts it again, as a standby.

**The invariant.** Within an epoch, what any VM has been shown is a prefix of the record. So a DocumentIncarnation never
goes back, and never names two documents. The record alone cannot keep this: PostgreSQL loses commits if a standby is
promoted that lacks them (replication was asynchronous, perhaps only for a minute, or only on the server that was the
standby before), or if a backup is restored. The record then looks sound, with an older lease and fewer groups, and
counts on from there. Three things together keep the invariant.

1. *No commit is acknowledged that one server alone has*, if the cluster was ever active with a synchronous standby
   (`demands_standby` in the lease row). Every group and every renewal is refused while the server does not demand one.
   The check is part of the fenced statement: a check at the start, or once a second, would miss what is written between
   a change of the setting and the next check. What remains is the moment in which PostgreSQL itself has read the new
   setting and the session has not.
2. *Everyone who has acknowledged or shown a group remembers which one it was*: its number, and a hash chained over all
   groups up to it. The number alone is not enough, because a record that has lost groups gets others under the same
   numbers; nor is the term, because the old primary and the promoted server may both give the next one away. The copies
   of control nodes hold it in the transaction of the rows. Host nodes get it with every message that has facts.
3. *Who takes part proves that it is a prefix of the record, before it shows anything.* A copy compares its last group
   with the log each time it follows, hence right before it becomes the store of the active node (`follow_to`). An
   active node compares its last group at each renewal: after a silent change of servers the old term still holds, so
   the fence lets the renewal through. A host node sends its last group when it joins an active node. Until it has
   joined, it notes no groups and gets no facts of that node, neither by its stream nor with a reply or an order: they
   would hide what it has shown, or contradict it.

**If a proof fails**, the loss is written to the record first (`report_loss`), then the copy that showed it is built
again. The holder of the lease reads the mark with its next renewal, a node that takes over with the lease, and begins
a new epoch of every scope (`renew_epochs`) before the service runs. All scopes, because nobody knows which groups were
lost, and a new epoch costs a VM one poll. One transaction changes the epochs, the id of the record, the term, and
deletes the mark. So:

- A crash before the mark leaves the copy, or the host node, that will find the loss again.
- A crash between mark and renewal leaves the mark: the next node that takes the lease begins the epoch.
- A crash after the renewal leaves a record with another id. Every copy is built again, and what was known of the old
  id is not compared any more. The history entry is written by the service from what the renewal saved.
- The new term is a time, above all terms of a lost history: hosts that obeyed a lost holder obey the new one.

A copy or host node that is older than the log (an hour, and 1000 groups) cannot be compared; it counts as a prefix.
A host node keeps its last group in memory: one that is killed together with every control node that knew a lost group
has forgotten it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from forewarn import __version__
from forewarn.base.clock import FlooredClock, real_now
from forewarn.base.times import RealTime
from forewarn.cluster.following import CopyPosition
from forewarn.cluster.lease import HeldLease, LeaseState
from forewarn.cluster.metrics import ControlNodeFigures
from forewarn.cluster.node_roles import (
    NodeRole,
    StandbyView,
    can_take_over,
    clock_problem,
    forwarding_target,
    name_conflict,
    reason_not_to_take,
    space_problem,
    takeover_text,
    was_interrupted,
)
from forewarn.cluster.record import LACKS_STANDBY, MustStop, SharedRecord, describe_loss
from forewarn.cluster.replicated_store import ReplicatedStore
from forewarn.cluster.standby import Standby, TakenLease
from forewarn.control.control_plane import ControlPlane
from forewarn.core.control_node import NodeRow
from forewarn.errors import Conflict, ForewarnError, Refused, Unavailable
from forewarn.service.wiring import ServiceStorage, write_service_entry

log = logging.getLogger(__name__)
MUST_START_AGAIN_EXIT = 4  # status of a process that was deposed: its supervisor starts it again
_PROGRESS_LIMIT_S = 10.0  # of real time: the lease is not renewed while the event loop is stuck for longer
_BEAT_S = 0.5
_ABANDON_AFTER_S = 2.0  # when it stops: how long to wait for a record that does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTiming:
    """How often a control node looks at the record (PostgreSQL), in seconds of real time."""

    follow_s: float = 0.25  # between two looks of a standby at the record's new writes and the lease
    describe_s: float = 1.0  # after which every node writes what it is, and reads what the others are


def end_process(reason: str) -> None:
    """End this process at once, with status MUST_START_AGAIN_EXIT (4), without cleaning up; never returns."""
    log.critical("this control node ends, and must be started again: %s", reason)
    logging.shutdown()
    os._exit(MUST_START_AGAIN_EXIT)


# Runs the service on an open store for the time of the block, and yields its control plane once it serves.
RunService = Callable[[ServiceStorage], AbstractAsyncContextManager[ControlPlane]]


class ControlNode:
    """A control node of a cluster: follows the record (PostgreSQL), and is active while it has the lease.

    Call `join`, `run`, which lasts until `stop`, and `close`. `end` is called, on any thread, when the process must end
    at once, because another node may be active. All other calls are for the event loop.
    """

    def __init__(
        self,
        name: str,
        url: str,
        record: SharedRecord,
        standby: Standby,
        run_service: RunService,
        *,
        end: Callable[[str], None] = end_process,
        timing: NodeTiming = NodeTiming(),
        real_time: Callable[[], RealTime] = real_now,
    ) -> None:
        self.name, self.url = name, url
        self.role = NodeRole.STANDBY
        self.held: HeldLease | None = None  # while this node has the lease
        self.takeovers = 0  # of this process
        self._record, self._standby = record, standby
        self._run_service = run_service
        self._end = end
        self._timing, self._real_time = timing, real_time
        self._describing, self._proving = record.connect(), record.connect()
        self._proof = asyncio.Lock()  # `_proving` is for one thread at a time
        self._lost = ""  # commits that the record has lost, to be followed by a new epoch
        self._nodes: list[NodeRow] = []  # as they were read last
        self._nodes_read_at = 0.0  # monotonic time
        self._store: ReplicatedStore | None = None  # while this node is active
        self._opened: ReplicatedStore | None = None  # that, also while this node starts and stops
        self._closed_at: CopyPosition  # of the store that was open last
        self._failure = ""  # of the last takeover
        self._resigned_at: float | None = None  # monotonic time
        self._resigned_term = 0
        self._beat_at = time.monotonic()
        self._leaving = asyncio.Event()  # the active time is to end
        self._stopping = asyncio.Event()
        self._looked = asyncio.Event()
        self._is_becoming_active: asyncio.Task[None] | None = None
        self._wake_reconciler: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[Sequence[NodeRow]], None]] = []

    @property
    def nodes(self) -> list[NodeRow]:
        later_s = time.monotonic() - self._nodes_read_at
        return [
            self.describe() if row.name == self.name else replace(row, last_seen_ago_s=row.last_seen_ago_s + later_s)
            for row in self._nodes
        ]

    @property
    def target(self) -> str:
        """The URL of another node that is active, to which calls are forwarded; "" if none is, or this one is."""
        return "" if self.held is not None else forwarding_target(self._standby.lease, self.url)

    @property
    def term(self) -> int:
        """The term (number) of the lease that this node holds; 0 if it holds none."""
        return 0 if self.held is None else self.held.term

    @property
    def active_name(self) -> str:
        if self.held is not None:
            return self.name
        return self._standby.lease.holder if self._standby.lease is not None and self.target else ""

    @property
    def active_term(self) -> int:
        if self.held is not None:
            return self.held.term
        return self._standby.lease.term if self._standby.lease is not None and self.target else 0

    @property
    def problem(self) -> str:
        standby = self._standby
        space, lost = space_problem(standby.free_bytes), standby.lost
        if self.held is not None:
            return self.held.explanation or space or lost
        lacks_standby = LACKS_STANDBY if standby.lease is not None and standby.lease.lacks_standby else ""
        clock = clock_problem(standby.clock_difference_s)
        return standby.problem or lacks_standby or clock or space or self._failure or lost

    @property
    def clock_difference_s(self) -> float:
        return self._standby.clock_difference_s

    def figures(self) -> ControlNodeFigures:
        """Return what the metrics of this control node show now: its lease, its copy of the record, its clock."""
        return ControlNodeFigures(
            is_held=self.may_act(),
            term=self.term,
            margin_s=0.0 if self.held is None else self.held.margin_s,
            takeovers=self.takeovers,
            knows_active=self.held is not None or bool(self.target),
            record_is_reachable=self.may_act() if self.held is not None else self._standby.reaches_record,
            has_lost_commits=bool(self._standby.lost),
            copy_follows=self.held is not None or not self._standby.problem,
            copy_number=self.number,
            clock_difference_s=self._standby.clock_difference_s,
        )

    def watch_nodes(self, listener: Callable[[Sequence[NodeRow]], None]) -> Callable[[], None]:
        """Call the listener with `nodes` now and after each reading of them; return a function that ends this."""
        self._listeners.append(listener)
        listener(self.nodes)
        return lambda: self._listeners.remove(listener)

    def may_act(self) -> bool:
        """Return whether acts may begin: this node holds the lease, and is certain that it does."""
        return self.held is not None and self.held.state is LeaseState.HELD

    @property
    def record_position(self) -> CopyPosition:
        """The last group of writes in the record, as far as this node knows, which must be or have been active."""
        return self._opened.position if self._opened is not None else self._closed_at

    @property
    def number(self) -> int:
        """The number of the last group of writes in this node's copy of the record; 0 before the first look."""
        return self._opened.number if self._opened is not None else self._standby.number

    def describe(self) -> NodeRow:
        """Return how this node describes itself to the others, with `problem` as its status. Stores nothing."""
        return NodeRow(
            name=self.name,
            url=self.url,
            role=self.role,
            version=__version__,
            number=self.number,
            status=self.problem,
        )

    async def join(self) -> None:
        """Describe this node in the record, and follow the record for the first time; call it before `run`.

        A record that does not answer, or a copy that cannot be written, is no error: `problem` says it, and `run` tries
        again.
        """
        await self._describe()
        await self._standby.look()

    async def run(self) -> None:
        """Follow the record, and be active whenever possible, until `stop`. Call it once, after `join`.

        A takeover that fails for now is logged, and the lease given up. Refused or Rejected if this node can never work
        as it is configured.
        """
        background = [asyncio.create_task(self._describe_forever()), asyncio.create_task(self._beat_forever())]
        try:
            while not self._stopping.is_set():
                if await self._standby.look():
                    await self._take_if_possible()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._timing.follow_s)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def resign(self) -> None:
        if self.role not in (NodeRole.ACTIVE, NodeRole.SUSPENDED):
            raise Refused(f"control node {self.name} is not active, but {self.role}: there is nothing to resign")
        fresh_s = 3 * self._timing.describe_s + 2.0
        others = [n for n in self.nodes if n.name != self.name and can_take_over(n.role, n.status)]
        if not any(node.last_seen_ago_s <= fresh_s for node in others):
            raise Refused(
                f"no other control node can take over from {self.name}: start one first, or stop this one to end the "
                "service"
            )
        self._leaving.set()

    def stop(self) -> None:
        """Make `run` end, after it gives up the lease if this node has it. Returns at once."""
        self._stopping.set()
        self._leaving.set()
        if self._is_becoming_active is not None:
            self._is_becoming_active.cancel()

    async def close(self) -> None:
        """Close this node's copy of the record and its own connections; call it after `run` has ended."""
        await self._standby.close()
        for record in (self._describing, self._proving):
            record.abort()
            record.close()

    async def _take_if_possible(self) -> None:
        assert self._standby.lease is not None
        view = StandbyView(
            lease=self._standby.lease,
            clock_difference_s=self._standby.clock_difference_s,
            since_resigned_s=None if self._resigned_at is None else time.monotonic() - self._resigned_at,
            resigned_term=self._resigned_term,
            free_bytes=self._standby.free_bytes,
        )
        if reason_not_to_take(view):
            return
        taken = await self._standby.take(self.name, self.url)
        if taken is not None:
            await self._be_active(taken)

    async def _be_active(self, taken: TakenLease) -> None:
        """Run the service until this node leaves, or the start fails; then give the lease up."""
        # After a loss of commits, each time one is found, every scope gets a new epoch first, under the same lease.
        self._lost = taken.lease.lost
        try:
            while True:
                if self._lost:
                    taken = await self._standby.renew_epochs(taken, self._lost)
                    self._lost = ""
                await self._hold(taken)
                if not self._lost or self._stopping.is_set():
                    break
                taken = taken._replace(lease=replace(taken.lease, number=self._standby.number))
        except Unavailable as error:
            self._note_failure(error)
        finally:
            self._standby.forget_lease()

    def _note_failure(self, error: ForewarnError) -> None:
        log.error("this control node could not become active: %s", error)
        self._failure = f"it could not become active: {error}"

    async def _hold(self, taken: TakenLease) -> None:
        """Run the service while the lease is held, and give it up, unless a loss of commits was found meanwhile."""
        self._leaving.clear()
        if self._stopping.is_set():
            self._leaving.set()
        loop = asyncio.get_running_loop()

        def lease_changed(state: LeaseState) -> None:  # on a thread
            if state is LeaseState.DEPOSED:
                self._end(held.explanation)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._follow_lease)

        def lost_commits(text: str) -> None:  # on a thread
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._leave_epoch, held, text)

        def known() -> int:  # on a thread
            store = self._opened
            return 0 if store is None else store.number

        held = self.held = HeldLease(
            self._record,
            taken.lease,
            sent_at=taken.sent_at,
            on_change=lease_changed,
            has_progress=lambda: time.monotonic() - self._beat_at < _PROGRESS_LIMIT_S,
            known=known,
            on_lost=lost_commits,
        )
        self.role = NodeRole.STARTING
        held.start()
        try:
            await self._serve(taken, held)
            self._failure = ""
        except (Unavailable, Conflict) as error:
            self._lost = ""  # the record remembers it
            self._note_failure(error)
        finally:
            self.role, self.held = NodeRole.STANDBY, None
            self._resigned_at, self._resigned_term = time.monotonic(), held.term
            self._standby.forget_lease()
            await asyncio.to_thread(held.stop if self._lost else held.release)

    def _leave_epoch(self, held: HeldLease, text: str) -> None:
        if held is self.held:
            self._lost = text
            self._leaving.set()

    async def _serve(self, taken: TakenLease, held: HeldLease) -> None:
        clock = FlooredClock(taken.lease.clock, real=self._real_time)
        async with AsyncExitStack() as stack:
            store = await self._standby.open_store(taken, guard=held, clock=clock.now, on_stop=self._must_stop)
            self._opened = store
            stack.callback(self._forget_store, store)
            stack.push_async_callback(store.close)
            # Runs before `close`, even if the start fails: a record that does not answer must not keep the lease here.
            stack.callback(asyncio.get_running_loop().call_later, _ABANDON_AFTER_S, store.abandon)
            if self._stopping.is_set():
                return
            storage = ServiceStorage(
                store=store, clock=clock, was_interrupted=was_interrupted(taken.before), may_act=self.may_act
            )
            self._is_becoming_active = asyncio.current_task()
            try:
                control = await stack.enter_async_context(self._run_service(storage))
            finally:
                self._is_becoming_active = None
            alive_at = taken.alive_at if taken.alive_at is not None else taken.sent_at
            text = takeover_text(
                before=taken.before, node=self.name, term=held.term, after_s=time.monotonic() - alive_at
            )
            await write_service_entry(control, text)
            log.warning("%s", text)
            self.takeovers += 1
            self._wake_reconciler = control.reconciler.wake
            self._store = store
            self.role = NodeRole.ACTIVE
            self._follow_lease()
            await self._leaving.wait()
            self.role = NodeRole.STOPPING
            self._store = None
            self._wake_reconciler = lambda: None
            asyncio.get_running_loop().call_later(_ABANDON_AFTER_S, store.abandon)
            does = "begins a new epoch" if self._lost else "resigns"
            await write_service_entry(control, f"control node {self.name} {does}")

    def _forget_store(self, store: ReplicatedStore) -> None:
        """Let `number` be that of the standby again, which has what this store wrote."""
        self._standby.number, self._opened, self._closed_at = store.number, None, store.position

    def _follow_lease(self) -> None:
        # Called at each change and, because a change may be too short to be reported, at each beat.
        if self.held is None or self.role not in (NodeRole.ACTIVE, NodeRole.SUSPENDED):
            return
        role = NodeRole.ACTIVE if self.held.state is LeaseState.HELD else NodeRole.SUSPENDED
        if role is self.role:
            return
        self.role = role
        if role is NodeRole.SUSPENDED:
            log.error("this control node is suspended: %s", self.held.explanation)
        else:
            self._wake_reconciler()

    def _must_stop(self, error: MustStop) -> None:  # on the writer's thread
        self._end(str(error))

    async def _describe_forever(self) -> None:
        while True:
            await asyncio.sleep(self._timing.describe_s)
            if self.held is not None:
                await self._standby.read_free_space()
            try:
                await self._describe()
                self._leave_full_disk()
            except Refused as error:
                log.error("%s", error)

    def _leave_full_disk(self) -> None:
        """Resign before writes fail: if the copy's disk is almost full, and another node can take over."""
        problem = space_problem(self._standby.free_bytes)
        if not problem or self.role is not NodeRole.ACTIVE or self._leaving.is_set():
            return
        with suppress(Refused):  # nobody else can take over: `problem` says what to do
            self.resign()
            log.error("this control node resigns: %s", problem)

    async def has_group(self, by: str, number: int, mark: str) -> bool:
        """Return whether the record has the group that `by` has shown to VMs; while this node is active.

        If it certainly has not, that is reported to the record, and the next renewal of the lease begins a new epoch.
        `mark` is the group's hash; "" if a release without it wrote the group. False even if it cannot be found out.
        """
        store = self._opened
        if store is None:
            return False
        position = store.position
        if (not mark and number <= position.number) or (number, mark) == (position.number, position.hash):
            return True
        async with self._proof:
            try:
                if number <= position.number:
                    found = await asyncio.to_thread(self._proving.group_mark, number)
                    if found is None or found.hash in ("", mark):
                        return True  # too old for the log, or without a hash: nothing contradicts it
                lost = describe_loss(by, known=number, found=position.number)
                await asyncio.to_thread(self._proving.report_loss, position.record_id, lost)
            except ForewarnError as error:
                log.warning("it is not known whether group %d of %s is in the record: %s", number, by, error)
        return False

    async def _describe(self) -> None:
        row = self.describe()

        def exchange() -> list[NodeRow]:
            same_name = (node for node in self._describing.nodes() if node.name == self.name)
            for problem in filter(None, (name_conflict(self.url, node) for node in same_name)):
                raise Refused(problem)
            self._describing.put_node(row)
            return self._describing.nodes()

        try:
            self._nodes = await asyncio.to_thread(exchange)
            self._nodes_read_at = time.monotonic()
        except Refused:
            raise
        except ForewarnError as error:
            log.info("the control nodes could not be read: %s", error)
            return
        for listener in self._listeners:
            listener(self.nodes)

    async def _beat_forever(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            self._follow_lease()
            await asyncio.sleep(_BEAT_S)
