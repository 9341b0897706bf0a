"""The owner's line to a worker, and what a worker makes of it, with both ends in this process; and the owner's crew of

real ones, which are stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from forewarn.clock import SystemClock
from forewarn.core.faults import Fault, FaultKind
from forewarn.errors import NotFound, Unavailable
from forewarn.metadata import CalledAddress, CallerDirectory, PublishedDocuments, PublishedScope
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.protocol.document import Document
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.instance import InstanceFacts
from forewarn.workers.channel import PEER_GONE, WorkerChannel
from forewarn.workers.handle import WorkerHandle
from forewarn.workers.messages import (
    ApproveRequest,
    BeginServing,
    DrainWorker,
    EchoReply,
    EchoRequest,
    EnableRequest,
    FaultsUpdate,
    ObservationReport,
    OwnerSilent,
    ReportRequest,
    RequestDone,
    RequestFailed,
    ResumeAccepting,
    StateComplete,
    ToWorker,
    VmPlacement,
    WorkerReady,
    encode_frame,
    encode_message,
    failure_message,
    open_message,
    scope_message,
)
from forewarn.workers.pool import WorkerPool
from forewarn.workers.worker import Worker
from tests.support.metadata_backend import FakeMetadataBackend

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
POLL = f"GET {TARGET} HTTP/1.1\r\nHost: m\r\nMetadata: true\r\n\r\n".encode()
APPROVAL = b'{"StartRequests": [{"EventId": "E"}]}'
APPROVE = (
    f"POST {TARGET} HTTP/1.1\r\nHost: m\r\nMetadata: true\r\nContent-Length: {len(APPROVAL)}\r\n\r\n".encode()
    + APPROVAL
)
PLACE = "127.0.0.1"
SILENCE_S = 0.3


class Owner:
    """The test, as a worker knows it."""

    def __init__(self, sock: socket.socket) -> None:
        self.pipe = WorkerChannel(sock, for_worker=False, hear=self._hear, lost=self.lost_to)
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.lost = ""
        self.is_stuck = False  # and does not tell a worker to go on
        self._echoes: dict[int, asyncio.Future[None]] = {}
        self.listening = socket.create_server((PLACE, 0))

    def lost_to(self, why: str) -> None:
        self.lost = why

    def _hear(self, message: Any) -> None:
        if isinstance(message, EchoReply):
            self._echoes.pop(message.id).set_result(None)
        elif isinstance(message, OwnerSilent) and not self.is_stuck:
            self.tell(ResumeAccepting())
        else:
            self.heard.put_nowait(message)

    def tell(self, *messages: ToWorker) -> None:
        for message in messages:
            self.pipe.send(encode_message(message))

    def show(self, incarnation: int, scope_id: str = "s", vm: str = "web", *, enabled: bool = True) -> None:
        shown = replace(view(incarnation, scope_id, vm), enabled=enabled)
        self.pipe.send_latest(("scope", scope_id), encode_message(scope_message(shown)))

    def open(self) -> None:
        told = open_message(1, CalledAddress(), is_loopback=True)
        self.pipe.send_latest(("stand", 1), encode_message(told), self.listening)

    async def done(self) -> None:
        """All that was told until now is done."""
        number = len(self._echoes) + random.getrandbits(40)
        future = self._echoes[number] = asyncio.get_running_loop().create_future()
        self.tell(EchoRequest(number))
        await asyncio.wait_for(future, 10)

    async def next(self, kind: type) -> Any:
        async with asyncio.timeout(10):
            while not isinstance(message := await self.heard.get(), kind):
                pass
            return message

    def close(self) -> None:
        self.pipe.close()
        self.listening.close()


def view(incarnation: int, scope_id: str = "s", vm: str = "web") -> PublishedScope:
    return PublishedScope(
        scope_id=scope_id,
        enabled=True,
        epoch=1,
        document=Document(incarnation=incarnation),
        vms={vm: InstanceFacts(name=vm)},
    )


BEGIN = BeginServing(EndpointRules(), {}, 0.0, None)
Story = Callable[[Owner, Worker], Awaitable[None]]


def play(story: Story, allowance: SharedFaultQuota | None = None) -> None:
    async def whole() -> None:
        ours, theirs = socket.socketpair()
        owner, worker = Owner(ours), Worker(theirs, allowance or SharedFaultQuota(-1), silence_s=SILENCE_S)
        running = asyncio.create_task(worker.run())
        try:
            await asyncio.wait_for(story(owner, worker), 60)
        finally:
            owner.close()
            await asyncio.wait_for(running, 10)

    asyncio.run(whole())


async def begun(owner: Owner) -> None:
    owner.tell(BEGIN, VmPlacement(PLACE, "web"))
    owner.show(1)
    owner.tell(StateComplete())
    await owner.next(WorkerReady)
    owner.open()
    await owner.done()


class Visitor:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, owner: Owner) -> Visitor:
        return cls(*await asyncio.open_connection(*owner.listening.getsockname()))

    def ask(self, raw: bytes = POLL) -> None:
        self._writer.write(raw)

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().split("content-length: ")[1].split()[0])
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def poll(self) -> int:
        """The incarnation that it is shown."""
        self.ask()
        return incarnation_of(await self.answer())

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def incarnation_of(answer: tuple[int, bytes]) -> int:
    status, body = answer
    assert status == 200
    incarnation: int = json.loads(body)["DocumentIncarnation"]
    return incarnation


def stand_still(for_s: float) -> None:
    """As a process that is stopped."""
    time.sleep(for_s)


def test_a_worker_accepts_nobody_before_it_was_told_everything() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        owner.tell(BEGIN, VmPlacement(PLACE, "web"))
        visitor = await Visitor.connect(owner)
        visitor.ask()
        await owner.done()
        owner.show(4)
        owner.tell(StateComplete())
        await owner.next(WorkerReady)
        owner.open()
        assert incarnation_of(await visitor.answer()) == 4
        await visitor.close()

    play(story)


def test_what_is_newer_takes_the_place_of_what_was_not_sent_and_a_slow_worker_costs_no_more() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        visitor = await Visitor.connect(owner)
        assert await visitor.poll() == 1
        for incarnation in range(2, 10_000):
            owner.show(incarnation)
        assert len(owner.pipe._queue) == 1
        await owner.done()
        assert await visitor.poll() == 9_999
        await visitor.close()

    play(story)


def test_on_one_connection_an_incarnation_never_goes_back_and_is_at_least_what_was_told_before() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        chance = random.Random(7)
        visitors = [await Visitor.connect(owner) for _ in range(8)]
        shown = [1] * len(visitors)
        told = done = 1
        for _ in range(400):
            for _ in range(chance.randrange(4)):
                told += 1
                owner.show(told)
            if chance.random() < 0.3:
                await owner.done()
                done = told
            number = chance.randrange(len(visitors))
            incarnation = await visitors[number].poll()
            assert max(shown[number], done) <= incarnation <= told
            shown[number] = incarnation
        for visitor in visitors:
            await visitor.close()

    play(story)


def test_a_fleet_is_told_in_pieces_and_changes_do_not_wait_behind_what_they_replace() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        owner.tell(BEGIN, VmPlacement(PLACE, "web"))
        for number in range(5_000):
            owner.show(1, f"s{number}", f"vm{number}")
        owner.show(1)
        owner.tell(StateComplete())
        await asyncio.sleep(0)
        owner.show(2)  # while most of the rest has not been sent
        await owner.next(WorkerReady)
        owner.open()
        visitor = await Visitor.connect(owner)
        assert await visitor.poll() == 2
        await visitor.close()

    play(story)


def test_an_approval_waits_for_the_owner_and_is_answered_after_what_follows_from_it() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        visitor = await Visitor.connect(owner)
        visitor.ask(APPROVE)
        owner.tell(RequestFailed((await owner.next(ApproveRequest)).id, "the disk is full"))
        assert (await visitor.answer())[0] == 503
        visitor.ask(APPROVE)
        owner.tell(RequestDone((await owner.next(ApproveRequest)).id, "E"))
        assert await visitor.answer() == (400, b'{ "error": "Bad request. Unknown EventId: E" }')

        visitor.ask(APPROVE)
        asked = await owner.next(ApproveRequest)
        assert (asked.vm, asked.event_ids) == ("web", ("E",))
        owner.show(2)
        owner.tell(RequestDone(asked.id))
        assert (await visitor.answer())[0] == 200
        assert await visitor.poll() == 2
        visitor.ask(APPROVE)  # approved is approved: nobody is asked again
        assert (await visitor.answer())[0] == 200
        await visitor.close()

    play(story)


def test_a_vm_that_was_removed_in_the_moment_of_its_request_is_nobody() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        gone = NotFound("VM 'web' does not exist")
        visitor = await Visitor.connect(owner)
        visitor.ask(APPROVE)
        owner.tell(failure_message((await owner.next(ApproveRequest)).id, gone))
        assert (await visitor.answer())[0] == 404

        owner.show(2, enabled=False)
        await owner.done()
        visitor.ask()
        owner.tell(failure_message((await owner.next(EnableRequest)).id, gone))
        assert (await visitor.answer())[0] == 404
        await visitor.close()

    play(story)


def test_a_worker_that_hears_nothing_accepts_nobody_and_refuses_what_it_cannot_ask_for() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        inside = await Visitor.connect(owner)
        assert await inside.poll() == 1
        owner.is_stuck = True
        await owner.next(OwnerSilent)
        outside = await Visitor.connect(owner)
        outside.ask()
        inside.ask(APPROVE)
        assert (await inside.answer())[0] == 503
        assert await inside.poll() == 1, "what was heard last"
        assert not outside._reader._buffer
        owner.show(2)
        await owner.done()
        assert not outside._reader._buffer, "there may be more to hear"
        owner.show(3)
        owner.tell(ResumeAccepting())
        assert incarnation_of(await outside.answer()) == 3
        assert await inside.poll() == 3
        await inside.close()
        await outside.close()

    play(story)


def test_a_worker_that_was_stopped_itself_accepts_nobody_before_it_knows_what_was_said_meanwhile() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        before = await Visitor.connect(owner)
        assert await before.poll() == 1  # which is remembered, and the next caller could be answered at once
        with socket.create_connection(owner.listening.getsockname()) as late:
            late.sendall(POLL)
            owner.show(2)
            stand_still(2 * SILENCE_S)
            visitor = Visitor(*await asyncio.open_connection(sock=late.dup()))
            assert incarnation_of(await visitor.answer()) == 2
            await visitor.close()
        await before.close()

    play(story)


def test_what_was_seen_is_told_when_it_is_asked_for_and_before_a_worker_ends() -> None:
    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        visitor = await Visitor.connect(owner)
        for _ in range(5):
            await visitor.poll()
        owner.tell(ReportRequest(1))
        assert [poll.count for poll in (await owner.next(ObservationReport)).polls] == [5]
        for _ in range(3):
            await visitor.poll()
        owner.tell(DrainWorker(1.0))
        assert [poll.count for poll in (await owner.next(ObservationReport)).polls] == [3], "those since"
        async with asyncio.timeout(10):
            while not owner.lost:
                await asyncio.sleep(0.01)
        assert owner.lost == PEER_GONE
        await visitor.close()

    play(story)


def test_a_fault_touches_as_many_requests_as_all_workers_may_together() -> None:
    fault = Fault(id="f1", kind=FaultKind.EMPTY_BODY, who="ann", set_at=0.0, name="every VM", count=3)
    allowance, of_another = SharedFaultQuota.create(), SharedFaultQuota.create()
    of_another.file, of_another.offsets = allowance.file, dict(allowance.assign_offsets([fault]))

    async def story(owner: Owner, worker: Worker) -> None:
        await begun(owner)
        owner.tell(FaultsUpdate((fault,), dict(of_another.offsets)))
        await owner.done()
        visitor = await Visitor.connect(owner)
        visitor.ask()
        assert await visitor.answer() == (200, b"")
        assert [(touch.fault_id, touch.vm, touch.count) for touch in (await owner.next(ObservationReport)).touches] == [
            ("f1", "web", 1)
        ]
        assert of_another.consume(fault)
        visitor.ask()
        assert await visitor.answer() == (200, b"")
        assert not of_another.consume(fault)
        assert await visitor.poll() == 1
        await visitor.close()

    play(story, allowance)


@pytest.mark.parametrize(
    "raw",
    [encode_frame(99, encode_message(EchoRequest(1))), encode_frame(1, encode_message(FaultsUpdate(())))],
    ids=["a frame is missing", "it was not told how to begin"],
)
def test_a_worker_that_missed_something_ends_so_that_another_begins_anew(raw: bytes) -> None:
    async def whole() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(raw)
            why = await asyncio.wait_for(Worker(theirs, SharedFaultQuota(-1)).run(), 10)
            assert why.startswith("ChannelBroken: ")

    asyncio.run(whole())


def test_a_scope_that_is_shown_anew_with_nothing_new_wakes_nobody() -> None:
    shown = view(3)
    assert encode_message(scope_message(shown)) == encode_message(scope_message(replace(shown, vms=dict(shown.vms))))


@asynccontextmanager
async def crew_of_one(*, hung_s: float) -> AsyncIterator[WorkerPool]:
    """Its worker is begun and was told nothing else."""
    backend = FakeMetadataBackend(PublishedDocuments())
    crew = WorkerPool(
        1, begin=BEGIN, backend=backend, callers=CallerDirectory(), clock=SystemClock(), hung_s=hung_s, birth_s=hung_s
    )
    await crew.start_workers()
    try:
        yield crew
    finally:
        await crew.drain(0.0)


def stop(member: WorkerHandle) -> None:
    os.kill(member.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, member.pid, os.WSTOPPED | os.WNOWAIT)


def only(crew: WorkerPool) -> WorkerHandle:
    (member,) = crew._workers
    assert member is not None
    return member


def test_a_worker_that_hangs_before_it_is_ready_is_ended_and_a_start_does_not_wait_for_it() -> None:
    async def story() -> None:
        async with crew_of_one(hung_s=2.0) as crew:
            stop(only(crew))
            with pytest.raises(Unavailable, match="ended before it was ready"):
                await asyncio.wait_for(crew.complete_start(), 30)

    asyncio.run(story())


def test_a_successor_that_hangs_before_it_is_ready_is_ended_and_another_reload_is_possible() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), crew_of_one(hung_s=5.0) as crew:
            await crew.complete_start()
            first = only(crew)
            reloading = asyncio.create_task(crew.reload(1.0))
            while 0 not in crew._successors:
                await asyncio.sleep(0.01)
            stop(crew._successors[0])
            await reloading
            assert only(crew) is first
            await crew.reload(1.0)
            assert only(crew) is not first

    asyncio.run(story())


def test_a_worker_that_is_told_a_whole_fleet_is_seen_to_come_on() -> None:
    async def story() -> None:
        allowance, heard, ready, gone = SharedFaultQuota.create(), [], asyncio.Event(), asyncio.Event()

        def hear(member: WorkerHandle, message: Any) -> None:
            heard.append(type(message))
            if isinstance(message, WorkerReady):
                ready.set()

        member = WorkerHandle(0, shared=allowance.file, hear=hear, lost=lambda member: gone.set())
        async with asyncio.timeout(30):
            member.send_fact("begin", encode_message(BEGIN))
            for number in range(5_000):
                member.send_fact(
                    ("scope", f"s{number}"), encode_message(scope_message(view(1, f"s{number}", f"vm{number}")))
                )
            member.send_fact("complete", encode_message(StateComplete()))
            await ready.wait()
            member.kill()
            await gone.wait()
            await member.wait_for_exit()
        assert heard[: heard.index(WorkerReady)].count(EchoReply) == 20
        allowance.close()

    asyncio.run(story())


def test_an_owner_that_was_stopped_itself_does_not_hold_it_against_its_workers() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), crew_of_one(hung_s=3.0) as crew:
            await crew.complete_start()
            member = only(crew)
            stop(member)
            echoed, missed = member.request_echo(), member.missed_heartbeats
            stand_still(3.5)
            while member.missed_heartbeats == missed and not member.disconnected.is_set():
                await asyncio.sleep(0.01)
            os.kill(member.pid, signal.SIGCONT)
            await echoed
            assert only(crew) is member

    asyncio.run(story())
