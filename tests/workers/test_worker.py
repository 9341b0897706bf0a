"""A worker and its channel, with both ends in this process."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.faults import Fault, FaultKind
from forewarn.errors import NotFound
from forewarn.metadata import CalledAddressIdentity, PublishedScope
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.workers.channel import PEER_GONE, WorkerChannel
from forewarn.metadata.workers.messages import (
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
from forewarn.metadata.workers.worker import Worker
from forewarn.protocol.document import Document, EventNotice, Kind, NoticeStatus
from forewarn.protocol.instance import InstanceFacts

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
    """The owner process, played by the test."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = WorkerChannel(sock, for_worker=False, on_message=self._on_message, on_lost=self.on_lost)
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.lost_reason = ""
        self.is_stuck = False  # does not answer OwnerSilent
        self._echoes: dict[int, asyncio.Future[None]] = {}
        self.listening = socket.create_server((PLACE, 0))

    def on_lost(self, why: str) -> None:
        self.lost_reason = why

    def _on_message(self, message: Any) -> None:
        if isinstance(message, EchoReply):
            self._echoes.pop(message.id).set_result(None)
        elif isinstance(message, OwnerSilent) and not self.is_stuck:
            self.send(ResumeAccepting())
        else:
            self.received.put_nowait(message)

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self.channel.send(encode_message(message))

    def publish(self, incarnation: int, scope_id: str = "s", vm: str = "web", *, enabled: bool = True) -> None:
        shown = replace(view(incarnation, scope_id, vm), enabled=enabled)
        self.channel.send_latest(("scope", scope_id), encode_message(scope_message(shown)))

    def open(self) -> None:
        message = open_message(1, CalledAddressIdentity(), is_loopback=True)
        self.channel.send_latest(("listener", 1), encode_message(message), self.listening)

    async def applied(self) -> None:
        """Wait until the worker has applied everything sent so far."""
        number = len(self._echoes) + random.getrandbits(40)
        future = self._echoes[number] = asyncio.get_running_loop().create_future()
        self.send(EchoRequest(number))
        await asyncio.wait_for(future, 10)

    async def next(self, kind: type) -> Any:
        async with asyncio.timeout(10):
            while not isinstance(message := await self.received.get(), kind):
                pass
            return message

    def close(self) -> None:
        self.channel.close()
        self.listening.close()


def view(incarnation: int, scope_id: str = "s", vm: str = "web") -> PublishedScope:
    return PublishedScope(
        scope_id=scope_id,
        enabled=True,
        epoch=1,
        document=Document(incarnation=incarnation),
        vms={vm: InstanceFacts(name=vm)},
    )


BEGIN = BeginServing(ServingSettings())
Scenario = Callable[[Owner, Worker], Awaitable[None]]


def run_scenario(scenario: Scenario, quota: SharedFaultQuota | None = None) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        owner, worker = Owner(ours), Worker(theirs, quota or SharedFaultQuota(-1), silence_timeout_s=SILENCE_S)
        running = asyncio.create_task(worker.run())
        try:
            await asyncio.wait_for(scenario(owner, worker), 60)
        finally:
            owner.close()
            await asyncio.wait_for(running, 10)

    asyncio.run(main())


async def start_worker(owner: Owner) -> None:
    owner.send(BEGIN, VmPlacement(PLACE, "web"))
    owner.publish(1)
    owner.send(StateComplete())
    await owner.next(WorkerReady)
    owner.open()
    await owner.applied()


class VmConnection:
    """A connection of a VM to the worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, owner: Owner) -> VmConnection:
        return cls(*await asyncio.open_connection(*owner.listening.getsockname()))

    def ask(self, raw: bytes = POLL) -> None:
        self._writer.write(raw)

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().split("content-length: ")[1].split()[0])
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def poll(self) -> int:
        """Poll; the incarnation of the answer."""
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


def block_event_loop(for_s: float) -> None:
    """Block the event loop, as if the process were suspended."""
    time.sleep(for_s)


def test_a_worker_accepts_no_connection_before_its_state_is_complete() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        owner.send(BEGIN, VmPlacement(PLACE, "web"))
        connection = await VmConnection.connect(owner)
        connection.ask()
        await owner.applied()
        owner.publish(4)
        owner.send(StateComplete())
        await owner.next(WorkerReady)
        owner.open()
        assert incarnation_of(await connection.answer()) == 4
        await connection.close()

    run_scenario(scenario)


def test_a_newer_message_replaces_an_unsent_one_so_a_slow_worker_costs_no_memory() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        connection = await VmConnection.connect(owner)
        assert await connection.poll() == 1
        for incarnation in range(2, 10_000):
            owner.publish(incarnation)
        assert len(owner.channel._queue) == 1
        await owner.applied()
        assert await connection.poll() == 9_999
        await connection.close()

    run_scenario(scenario)


def test_on_one_connection_an_incarnation_never_goes_back_and_is_never_older_than_an_applied_one() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        rng = random.Random(7)
        connections = [await VmConnection.connect(owner) for _ in range(8)]
        shown = [1] * len(connections)
        published = applied = 1
        for _ in range(400):
            for _ in range(rng.randrange(4)):
                published += 1
                owner.publish(published)
            if rng.random() < 0.3:
                await owner.applied()
                applied = published
            number = rng.randrange(len(connections))
            incarnation = await connections[number].poll()
            assert max(shown[number], applied) <= incarnation <= published
            shown[number] = incarnation
        for connection in connections:
            await connection.close()

    run_scenario(scenario)


def test_a_fleet_is_sent_in_batches_and_a_change_replaces_the_older_state() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        owner.send(BEGIN, VmPlacement(PLACE, "web"))
        for number in range(5_000):
            owner.publish(1, f"s{number}", f"vm{number}")
        owner.publish(1)
        owner.send(StateComplete())
        await asyncio.sleep(0)
        owner.publish(2)  # while most scopes are still unsent
        await owner.next(WorkerReady)
        owner.open()
        connection = await VmConnection.connect(owner)
        assert await connection.poll() == 2
        await connection.close()

    run_scenario(scenario)


def test_a_worker_shows_a_vm_of_a_narrow_scope_only_its_own_events_and_passes_on_any_approval() -> None:
    """Spec §14.6: also with a cached response, and an approval of an event that the VM does not see."""

    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        notices = tuple(
            EventNotice(
                id=name,
                status=NoticeStatus.SCHEDULED,
                kind=Kind.REBOOT,
                resources=resources,
                not_before=1_800_000_000.0,
            )
            for name, resources in (("OWN", ("WEB",)), ("E", ("db",)))
        )
        shown = replace(view(3), document=Document(incarnation=3, notices=notices), is_narrow=True)
        owner.channel.send_latest(("scope", "s"), encode_message(scope_message(shown)))
        await owner.applied()
        connection = await VmConnection.connect(owner)
        for _ in range(3):
            connection.ask()
            answer = json.loads((await connection.answer())[1])
            assert answer["DocumentIncarnation"] == 3
            assert [event["EventId"] for event in answer["Events"]] == ["OWN"]
        connection.ask(APPROVE)
        request = await owner.next(ApproveRequest)
        assert (request.vm, request.event_ids) == ("web", ("E",))
        owner.send(RequestDone(request.id))
        assert (await connection.answer())[0] == 200
        await connection.close()

    run_scenario(scenario)


def test_an_approval_waits_for_the_owner_and_is_answered_after_the_new_document_is_published() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        connection = await VmConnection.connect(owner)
        connection.ask(APPROVE)
        owner.send(RequestFailed((await owner.next(ApproveRequest)).id, "the disk is full"))
        assert (await connection.answer())[0] == 503
        connection.ask(APPROVE)
        owner.send(RequestDone((await owner.next(ApproveRequest)).id, "E"))
        assert await connection.answer() == (400, b'{ "error": "Bad request. Unknown EventId: E" }')

        connection.ask(APPROVE)
        request = await owner.next(ApproveRequest)
        assert (request.vm, request.event_ids) == ("web", ("E",))
        owner.publish(2)
        owner.send(RequestDone(request.id))
        assert (await connection.answer())[0] == 200
        assert await connection.poll() == 2
        connection.ask(APPROVE)  # approved already: the owner is not asked again
        assert (await connection.answer())[0] == 200
        await connection.close()

    run_scenario(scenario)


def test_a_vm_that_is_removed_during_its_request_gets_not_found() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        gone = NotFound("VM 'web' does not exist")
        connection = await VmConnection.connect(owner)
        connection.ask(APPROVE)
        owner.send(failure_message((await owner.next(ApproveRequest)).id, gone))
        assert (await connection.answer())[0] == 404

        owner.publish(2, enabled=False)
        await owner.applied()
        connection.ask()
        owner.send(failure_message((await owner.next(EnableRequest)).id, gone))
        assert (await connection.answer())[0] == 404
        await connection.close()

    run_scenario(scenario)


def test_a_worker_with_a_silent_owner_accepts_no_connection_and_rejects_approvals() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        connected = await VmConnection.connect(owner)
        assert await connected.poll() == 1
        owner.is_stuck = True
        await owner.next(OwnerSilent)
        waiting = await VmConnection.connect(owner)
        waiting.ask()
        connected.ask(APPROVE)
        assert (await connected.answer())[0] == 503
        assert await connected.poll() == 1, "the last known document"
        assert not waiting._reader._buffer  # type: ignore[attr-defined]
        owner.publish(2)
        await owner.applied()
        assert not waiting._reader._buffer, "more messages may follow"  # type: ignore[attr-defined]
        owner.publish(3)
        owner.send(ResumeAccepting())
        assert incarnation_of(await waiting.answer()) == 3
        assert await connected.poll() == 3
        await connected.close()
        await waiting.close()

    run_scenario(scenario)


def test_a_suspended_worker_applies_what_it_missed_before_it_accepts_a_connection() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        before = await VmConnection.connect(owner)
        assert await before.poll() == 1  # now cached, so the next caller could be answered at once
        with socket.create_connection(owner.listening.getsockname()) as late:
            late.sendall(POLL)
            owner.publish(2)
            block_event_loop(2 * SILENCE_S)
            connection = VmConnection(*await asyncio.open_connection(sock=late.dup()))
            assert incarnation_of(await connection.answer()) == 2
            await connection.close()
        await before.close()

    run_scenario(scenario)


def test_a_worker_reports_observations_on_request_and_before_it_ends() -> None:
    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        connection = await VmConnection.connect(owner)
        for _ in range(5):
            await connection.poll()
        owner.send(ReportRequest(1))
        assert [poll.count for poll in (await owner.next(ObservationReport)).polls] == [5]
        for _ in range(3):
            await connection.poll()
        owner.send(DrainWorker(1.0))
        assert [poll.count for poll in (await owner.next(ObservationReport)).polls] == [3], (
            "the polls since the last report"
        )
        async with asyncio.timeout(10):
            while not owner.lost_reason:
                await asyncio.sleep(0.01)
        assert owner.lost_reason == PEER_GONE
        await connection.close()

    run_scenario(scenario)


def test_the_request_limit_of_a_fault_is_shared_by_all_workers() -> None:
    fault = Fault(id="f1", kind=FaultKind.EMPTY_BODY, set_by="ann", set_at=0.0, name="every VM", count=3)
    quota, other_quota = SharedFaultQuota.create(), SharedFaultQuota.create()
    other_quota.file, other_quota.offsets = quota.file, dict(quota.assign_offsets([fault]))

    async def scenario(owner: Owner, worker: Worker) -> None:
        await start_worker(owner)
        owner.send(FaultsUpdate((fault,), dict(other_quota.offsets)))
        await owner.applied()
        connection = await VmConnection.connect(owner)
        connection.ask()
        assert await connection.answer() == (200, b"")
        assert [(hit.fault_id, hit.vm, hit.count) for hit in (await owner.next(ObservationReport)).hits] == [
            ("f1", "web", 1)
        ]
        assert other_quota.consume(fault)
        connection.ask()
        assert await connection.answer() == (200, b"")
        assert not other_quota.consume(fault)
        assert await connection.poll() == 1
        await connection.close()

    run_scenario(scenario, quota)


@pytest.mark.parametrize(
    "raw",
    [encode_frame(99, encode_message(EchoRequest(1))), encode_frame(1, encode_message(FaultsUpdate(())))],
    ids=["a frame is missing", "BeginServing is missing"],
)
def test_a_worker_that_missed_a_message_ends(raw: bytes) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(raw)
            why = await asyncio.wait_for(Worker(theirs, SharedFaultQuota(-1)).run(), 10)
            assert why.startswith("ChannelBroken: ")

    asyncio.run(main())


def test_equal_scopes_encode_to_equal_messages() -> None:
    shown = view(3)
    assert encode_message(scope_message(shown)) == encode_message(scope_message(replace(shown, vms=dict(shown.vms))))
