"""The owner's pool of real worker processes, some of which hang or are suspended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forewarn.base.clock import SystemClock
from forewarn.errors import Unavailable
from forewarn.metadata import CallerDirectory, PublishedDocuments
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.workers.channel import WorkerHandle
from forewarn.metadata.workers.messages import EchoReply, StateComplete, WorkerReady, encode_message, scope_message
from forewarn.metadata.workers.pool import WorkerPool
from tests.support.metadata_backend import FakeMetadataBackend
from tests.workers.test_worker import BEGIN, block_event_loop, view


@asynccontextmanager
async def pool_of_one(*, hung_timeout_s: float) -> AsyncIterator[WorkerPool]:
    """A pool whose worker has received `BeginServing` only."""
    backend = FakeMetadataBackend(PublishedDocuments())
    pool = WorkerPool(
        1,
        begin=BEGIN,
        backend=backend,
        callers=CallerDirectory(),
        clock=SystemClock(),
        hung_timeout_s=hung_timeout_s,
        start_timeout_s=hung_timeout_s,
    )
    await pool.start_workers()
    try:
        yield pool
    finally:
        await pool.drain(0.0)


def stop(worker: WorkerHandle) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)


def only(pool: WorkerPool) -> WorkerHandle:
    (worker,) = pool._workers
    assert worker is not None
    return worker


def test_a_start_fails_if_a_worker_hangs_before_it_is_ready() -> None:
    async def scenario() -> None:
        async with pool_of_one(hung_timeout_s=2.0) as pool:
            stop(only(pool))
            with pytest.raises(Unavailable, match="ended before it was ready"):
                await asyncio.wait_for(pool.complete_start(), 30)

    asyncio.run(scenario())


def test_a_successor_that_hangs_is_killed_and_another_reload_is_possible() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60), pool_of_one(hung_timeout_s=5.0) as pool:
            await pool.complete_start()
            first = only(pool)
            reloading = asyncio.create_task(pool.reload(1.0))
            while 0 not in pool._successors:
                await asyncio.sleep(0.01)
            stop(pool._successors[0])
            await reloading
            assert only(pool) is first
            await pool.reload(1.0)
            assert only(pool) is not first

    asyncio.run(scenario())


def test_a_worker_that_receives_a_whole_fleet_shows_progress() -> None:
    async def scenario() -> None:
        quota, received, ready, gone = SharedFaultQuota.create(), [], asyncio.Event(), asyncio.Event()

        def on_message(worker: WorkerHandle, message: Any) -> None:
            received.append(type(message))
            if isinstance(message, WorkerReady):
                ready.set()

        worker = WorkerHandle(0, fault_quota_fd=quota.file, on_message=on_message, on_lost=lambda worker: gone.set())
        async with asyncio.timeout(30):
            worker.send_latest("begin", encode_message(BEGIN))
            for number in range(5_000):
                worker.send_latest(
                    ("scope", f"s{number}"), encode_message(scope_message(view(1, f"s{number}", f"vm{number}")))
                )
            worker.send_latest("complete", encode_message(StateComplete()))
            await ready.wait()
            worker.kill()
            await gone.wait()
            await worker.wait_for_exit()
        assert received[: received.index(WorkerReady)].count(EchoReply) == 20
        quota.close()

    asyncio.run(scenario())


def test_a_suspended_owner_does_not_kill_its_workers() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60), pool_of_one(hung_timeout_s=3.0) as pool:
            await pool.complete_start()
            worker = only(pool)
            stop(worker)
            echo, missed = worker.request_echo(), worker.missed_heartbeats
            block_event_loop(3.5)
            while worker.missed_heartbeats == missed and not worker.disconnected.is_set():
                await asyncio.sleep(0.01)
            os.kill(worker.pid, signal.SIGCONT)
            await echo
            assert only(pool) is worker

    asyncio.run(scenario())
