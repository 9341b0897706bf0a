"""Durable approvals of 64 clients: their rate beside single commits on the same disk, and their CPU beside the store's.

Each host has two VMs and only one approves, so no event starts and only the approval is measured. The second figure
approves restarts, which start at once; the lab's hypervisor makes each act durable in a ledger of its own. The third
compares the CPU of the whole service per approval with that of its store alone, which commits the same changes.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.clients import Client, ClientPool, approval_request, run_clients
from bench.figure import Figure
from bench.process import CLIENT_CORE, SERVER_CORE, cpu_ns, on_core
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio, spread
from bench.service import BenchService, running_service, single_vms
from forewarn.core import lifecycle
from forewarn.core.commit import Commit, scope_commit
from forewarn.service.data_directory import DATABASE_FILE
from forewarn.store.sqlite import SqliteStore
from tests.support.service_process import eventually

_CLIENTS = 64
_PER_RUN = 800
_ROW_BYTES = 300


@dataclass(frozen=True, slots=True)
class PendingApprovals:
    """The events to approve."""

    path: str  # where the API lists the events
    events: dict[str, str]  # VM → event id
    starts: int  # how many of them start when all are approved


Prepare = Callable[[BenchService, int], PendingApprovals]
EventList = Sequence[dict[str, Any]]  # as the API returns them


@dataclass(frozen=True, slots=True)
class ApprovalSamples:
    """The samples of all runs."""

    rates: list[float] = field(default_factory=list)  # approvals a second
    singles: list[float] = field(default_factory=list)  # single commits a second
    cpu_us: list[float] = field(default_factory=list)  # of the service, per approval
    store_cpu_us: list[float] = field(default_factory=list)  # of the store alone, per commit of an approval

    def figure(self, name: str, description: str) -> Figure:
        """Return the ratio of approvals to single commits."""
        rates = f"{median(self.rates):,.0f} and {median(self.singles):,.0f} a second"
        note = f"{description}; {rates}, single commits differ by {spread(self.singles):.0%}"
        samples = {"approvals_per_s": tuple(self.rates), "single_commits_per_s": tuple(self.singles)}
        return Figure(name=name, value=ratio(self.rates, self.singles), note=note, samples=samples)

    def cpu_figure(self, name: str) -> Figure:
        """Return the ratio of the CPU of an approval over HTTP to that of the store's own commit."""
        note = f"{median(self.cpu_us):,.0f} us over HTTP, {median(self.store_cpu_us):,.0f} us of the store alone"
        samples = {"cpu_us": tuple(self.cpu_us), "store_cpu_us": tuple(self.store_cpu_us)}
        return Figure(name=name, value=ratio(self.cpu_us, self.store_cpu_us), note=note, samples=samples)


def measure(context: RunContext) -> tuple[Figure, ...]:
    waiting = _measure(context, "approvals that wait for another", 2, _updates)
    starting = _measure(context, "approvals that start an event", 1, _restarts)
    return (
        waiting.figure("approval-rate", f"{_CLIENTS} clients at a time; nothing starts"),
        starting.figure("approval-start-rate", "each starts an act, which is durable too"),
        waiting.cpu_figure("approval-cpu"),
    )


def _measure(context: RunContext, description: str, vms_per_host: int, prepare: Prepare) -> ApprovalSamples:
    count = context.runs * _PER_RUN
    fleet = single_vms(count * vms_per_host, count)
    with running_service(context.directory / f"approval-{vms_per_host}", fleet) as service:
        pending = prepare(service, count)
        assert len(pending.events) == count, f"{len(pending.events)} events, not {count}"
        samples = run_clients(_measure_clients(context, description, service, pending.events))
        service.kill()
        service.start()
        check_approved(pending.events.values(), _list_events(service, pending))
        eventually(lambda: count_started(_list_events(service, pending)) == pending.starts)
    return samples


def check_approved(event_ids: Collection[str], events: EventList) -> None:
    """AssertionError if the service has lost an approval in its restart."""
    known = {event["id"] for event in events if event["approved_at"] is not None}
    lost = len(set(event_ids) - known)
    assert not lost, f"{lost} of {len(event_ids)} approvals were lost"


def count_started(events: EventList) -> int:
    """Return how many of the events have started."""
    return sum(event["started_at"] is not None for event in events)


def _list_events(service: BenchService, pending: PendingApprovals) -> EventList:
    events: EventList = service.ask("GET", pending.path)["events"]
    return events


def _updates(service: BenchService, hosts: int) -> PendingApprovals:
    """Roll out an update of every host; returns the event of one of its two VMs."""
    body = {"impact": "update", "hosts": [f"host-{n}" for n in range(hosts)]}
    rollout_id = service.ask("POST", "/rollouts", body)["id"]
    one_of_each: dict[str, tuple[str, str]] = {}
    for event in service.ask("GET", f"/rollouts/{rollout_id}")["events"]:
        one_of_each.setdefault(event["host"], (event["vms"][0], event["id"]))
    return PendingApprovals(f"/rollouts/{rollout_id}", dict(one_of_each.values()), starts=0)


def _restarts(service: BenchService, vms: int) -> PendingApprovals:
    created = service.ask("POST", "/requests", {"operation": "restart", "vms": [f"web-{n}" for n in range(vms)]})
    events = {event["vms"][0]: event["id"] for event in created["events"]}
    return PendingApprovals(f"/requests/{created['request']['id']}", events, starts=vms)


async def _measure_clients(
    context: RunContext, description: str, service: BenchService, events: dict[str, str]
) -> ApprovalSamples:
    pool, samples, ids = ClientPool(), ApprovalSamples(), list(events.values())
    await pool.connect(service.endpoints(list(events)), len(events))
    store = _copy_store(service, context.directory / f"{description}.db")
    for run in context.track(f"{description}, and single commits in turn", range(context.runs)):
        some = slice(run * _PER_RUN, (run + 1) * _PER_RUN)
        before = cpu_ns(service.pid)
        samples.rates.append(await _approve(pool, pool.clients[some], ids[some]))
        samples.cpu_us.append((cpu_ns(service.pid) - before) / 1000 / _PER_RUN)
        samples.store_cpu_us.append(await store_cpu_us(store, ids[some]))
        samples.singles.append(single_commits(context.directory / f"{description}-{run}.db", context.run_s / 2))
    pool.close()
    await store.close()
    return samples


async def _approve(pool: ClientPool, clients: Sequence[Client], events: Sequence[str]) -> float:
    begin = time.perf_counter()
    done = await pool.send_limited(
        ((client, approval_request(event)) for client, event in zip(clients, events, strict=True)), _CLIENTS
    )
    return done / (time.perf_counter() - begin)


def single_commits(path: Path, seconds: float) -> float:
    """Return how many one-row transactions a second SQLite makes durable, one after the other."""
    with on_core(CLIENT_CORE):
        db = sqlite3.connect(path, isolation_level=None)
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, b)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", ((number, _row(0)) for number in range(1000)))
        db.execute("COMMIT")
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            db.execute("UPDATE t SET b = ? WHERE id = ?", (_row(count + 1), count % 1000))
            count += 1
        rate = count / (time.perf_counter() - begin)
        db.close()
    return rate


async def store_cpu_us(store: SqliteStore, event_ids: Sequence[str]) -> float:
    """Return the CPU per commit of a store that nobody else uses: approvals of these events, 64 at a time."""
    commits = [approval_commit(store, event_id) for event_id in event_ids]
    slots = asyncio.Semaphore(_CLIENTS)

    async def commit_in_slot(commit: Commit) -> None:
        async with slots:
            await store.commit(commit)

    with on_core(SERVER_CORE):
        begin = time.process_time()
        await asyncio.gather(*map(commit_in_slot, commits))
        return (time.process_time() - begin) * 1e6 / len(commits)


def approval_commit(store: SqliteStore, event_id: str) -> Commit:
    """Return what the service commits when the VM of an event approves it; AssertionError without the event."""
    event = store.event(event_id)
    assert event is not None
    scope = store.scope(event.scope_id)
    assert scope is not None
    return scope_commit(scope, lifecycle.approve(scope, event, by=event.vms[0], now=event.published_at))


def _copy_store(service: BenchService, path: Path) -> SqliteStore:
    """Open a copy of the service's store, for measurements of the same commits without the service."""
    with closing(sqlite3.connect(service.data / DATABASE_FILE)) as db, closing(sqlite3.connect(path)) as copy:
        db.backup(copy)
    return SqliteStore.open(path)


def _row(number: int) -> bytes:
    """A different row every time: SQLite does not write unchanged pages."""
    return b"%0*d" % (_ROW_BYTES, number)
