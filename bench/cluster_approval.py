"""Approvals over HTTP at the active control node, beside the same commits to its store alone.

VMs approve events at the listener of the node, 64 at a time; each approval is durable in PostgreSQL, with a
synchronous standby, before it is answered. In turn with them, this process commits approvals to a record on other
servers with the same store, and nothing else. These are approvals of the same events, so each commit has the rows that
the node writes: scope, event, gate and history entry. All parts share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.approval import approval_commit
from bench.clients import Client, ClientPool, approval_request, run_clients
from bench.figure import Figure, absent
from bench.process import cpu_ns
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio
from forewarn.cluster.following import forget_position
from forewarn.cluster.postgres_record import open_record
from forewarn.cluster.replicated_store import ReplicatedStore
from forewarn.core.commit import Commit, merge_commits
from forewarn.service.data_directory import DATABASE_FILE
from forewarn.store.sqlite import SqliteStore
from tests.cluster.control_node_processes import ProcessCluster
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.replicated_store import open_replicated
from tests.support.service_process import ServiceProcess

FIGURES = ("cluster-approval-rate",)
_CLIENTS = 64
_PER_RUN = 600
_WARM_UP = 300  # approvals that do not count: PostgreSQL prepares its statements, and Python adapts its code
_LIST_S = 600.0


def measure(context: RunContext) -> tuple[Figure, ...]:
    if not is_installed():
        return tuple(absent(name, "PostgreSQL is not installed") for name in FIGURES)
    directory = context.directory / "cluster-approval"
    directory.mkdir()
    count = _WARM_UP + context.runs * _PER_RUN
    servers, store_servers = ServerPair(fsync=True), ServerPair(fsync=True)
    try:
        with ProcessCluster(directory, servers.both_url, fleet="\n".join(_fleet(count)), start_s=_LIST_S) as cluster:
            active = cluster.start("c1")
            path, events = _pending_events(active, count)
            samples = run_clients(_measure(context, active, events, directory, store_servers), core=None)
            _check_approved(active, path, events)
    finally:
        servers.remove()
        store_servers.remove()
    over_http, alone, cpu_us = samples
    return (
        Figure(
            name="cluster-approval-rate",
            value=ratio(over_http, alone),
            note=f"{median(over_http):,.0f} and {median(alone):,.0f} a second; CPU {median(cpu_us):,.0f} us",
            samples={"approvals_per_s": tuple(over_http), "store_per_s": tuple(alone), "cpu_us": tuple(cpu_us)},
        ),
    )


def _address(number: int) -> str:
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


def _fleet(count: int) -> Iterator[str]:
    """As many hosts as approvals, each with two VMs of which one approves, so that nothing starts."""
    yield f'[[hosts]]\nname = "h-{{n}}"\ncount = {count}\n'
    for number in range(2 * count):
        yield f'[[vms]]\nname = "vm-{number}"\nhost = "h-{number // 2}"\naddress = "{_address(number)}"\n'


def _pending_events(active: ServiceProcess, count: int) -> tuple[str, list[tuple[str, str]]]:
    """Roll out an update of every host; returns its path, and address and event id of the first VM of each."""
    body = {"impact": "update", "hosts": [f"h-{number}" for number in range(count)]}
    answer = active.api("POST", "/rollouts", body, timeout_s=_LIST_S)
    assert answer.status in (200, 201, 202), answer.body
    path = f"/rollouts/{answer.json['id']}"
    by_vm: dict[str, str] = {}
    deadline = time.monotonic() + _LIST_S
    while len(by_vm) < 2 * count:  # on a busy machine, not all are planned when the request is answered
        assert time.monotonic() < deadline, f"{len(by_vm)} events, not {2 * count}"
        listed: list[dict[str, Any]] = active.api("GET", path, timeout_s=_LIST_S).json["events"]
        by_vm = {event["vms"][0]: str(event["id"]) for event in listed}
    return path, [(_address(number), by_vm[f"vm-{number}"]) for number in range(0, 2 * count, 2)]


async def _measure(
    context: RunContext,
    active: ServiceProcess,
    events: Sequence[tuple[str, str]],
    directory: Path,
    store_servers: ServerPair,
) -> tuple[list[float], list[float], list[float]]:
    """Return the rates over HTTP and of the store alone, and the CPU of the node per approval, of each run."""
    over_http, alone, cpu_us = [], [], []
    rows = await asyncio.to_thread(_read_unapproved, active, [event_id for _, event_id in events], directory)
    pool, loop = ClientPool(), asyncio.get_running_loop()
    for address, _ in events:
        _, client = await loop.create_connection(Client, "127.0.0.1", active.port, local_addr=(address, 0))
        pool.clients.append(client)
    requests = [(pool.clients[n], approval_request(event_id)) for n, (_, event_id) in enumerate(events)]
    await pool.send_limited(requests[:_WARM_UP], _CLIENTS)
    for run in context.track("approvals over HTTP, and commits to the store, in turn", range(context.runs)):
        at = _WARM_UP + run * _PER_RUN
        before, begin = cpu_ns(active.pid), time.perf_counter()
        done = await pool.send_limited(requests[at : at + _PER_RUN], _CLIENTS)
        over_http.append(done / (time.perf_counter() - begin))
        cpu_us.append((cpu_ns(active.pid) - before) / 1e3 / done)
        alone.append(await asyncio.to_thread(_store_rate, rows, store_servers, directory / f"{run}.db"))
    pool.close()
    return over_http, alone, cpu_us


def _read_unapproved(active: ServiceProcess, event_ids: Sequence[str], directory: Path) -> list[Commit]:
    """Return, for each event, a commit that adds its scope, VM, event and gate as the node has them now."""
    path = directory / "unapproved.db"
    with closing(sqlite3.connect(active.data / DATABASE_FILE)) as db, closing(sqlite3.connect(path)) as copy:
        db.backup(copy)
    forget_position(path)

    async def read() -> list[Commit]:
        store = SqliteStore.open(path)
        try:
            return [_unapproved(store, event_id) for event_id in event_ids]
        finally:
            await store.close()

    return asyncio.run(read())


def _unapproved(store: SqliteStore, event_id: str) -> Commit:
    event = store.event(event_id)
    assert event is not None
    scope, gate = store.scope(event.scope_id), store.gate(event.gate_id)
    assert scope is not None
    assert gate is not None
    new_scope, new_gate = replace(scope, version=0), replace(gate, version=0)
    return Commit(scopes=(new_scope,), vms=scope.vms, events=scope.events, gates=(new_gate,))


def _store_rate(rows: Sequence[Commit], servers: ServerPair, path: Path) -> float:
    """Return how many approvals a second 64 callers commit to a new store with these rows."""
    servers.empty()
    with closing(open_record(servers.url)) as record:
        return asyncio.run(_commit_approvals(rows, open_replicated(path, record)))


async def _commit_approvals(rows: Sequence[Commit], store: ReplicatedStore) -> float:
    try:
        for at in range(0, len(rows), _PER_RUN):
            await store.commit(merge_commits(*rows[at : at + _PER_RUN]))
        approvals = [approval_commit(store, commit.events[0].id) for commit in rows]
        await _commit_all(store, approvals[:_WARM_UP])
        begin = time.perf_counter()
        await _commit_all(store, approvals[_WARM_UP:])
        return (len(approvals) - _WARM_UP) / (time.perf_counter() - begin)
    finally:
        await store.close()


async def _commit_all(store: ReplicatedStore, commits: Sequence[Commit]) -> None:
    """Commit these, 64 at a time."""
    waiting = iter(commits)

    async def commit_next() -> None:
        for commit in waiting:
            await store.commit(commit)

    await asyncio.gather(*(commit_next() for _ in range(_CLIENTS)))


def _check_approved(active: ServiceProcess, path: str, events: Sequence[tuple[str, str]]) -> None:
    listed = active.api("GET", path, timeout_s=_LIST_S).json["events"]
    approved = {event["id"] for event in listed if event["approved_at"] is not None}
    missing = sum(event_id not in approved for _, event_id in events)
    assert not missing, f"{missing} of {len(events)} approvals are not in the record"
