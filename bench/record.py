"""Durable commits of a control node to PostgreSQL with a synchronous standby, beside a SQLite store alone.

Both commit what an approval commits: a scope, an event and an entry of the history. Both servers of PostgreSQL, which
sync every commit to disk, and the callers share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from bench.figure import Figure, absent
from bench.run_context import RunContext
from bench.sample_statistics import median, ratio
from forewarn.cluster.postgres_record import open_record
from forewarn.conformance.store_suite import sample_event
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope
from forewarn.store import SqliteStore
from forewarn.store.interface import Store
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.replicated_store import open_replicated

_CALLERS = {"record-rate": 64, "record-alone": 1}  # figure → how many commit at a time


def measure(context: RunContext) -> tuple[Figure, ...]:
    if not is_installed():
        return tuple(absent(name, "PostgreSQL is not installed") for name in _CALLERS)
    servers = ServerPair(fsync=True)
    try:
        return tuple(_measure(context, servers, name, callers) for name, callers in _CALLERS.items())
    finally:
        servers.remove()


def _measure(context: RunContext, servers: ServerPair, name: str, callers: int) -> Figure:
    directory = context.directory / name
    directory.mkdir()
    replicated: list[float] = []
    alone: list[float] = []
    for run in context.track(f"commits of {callers} callers to PostgreSQL and to SQLite in turn", range(context.runs)):
        path = directory / f"{run}.db"
        servers.empty()
        with closing(open_record(servers.url)) as record:
            replicated.append(commits_per_s(context, partial(open_replicated, path, record), callers))
        alone.append(commits_per_s(context, partial(SqliteStore.open, path.with_suffix(".plain.db")), callers))
    note = f"{median(replicated):,.0f} and {median(alone):,.0f} a second"
    samples = {"replicated_per_s": tuple(replicated), "sqlite_per_s": tuple(alone)}
    return Figure(name=name, value=ratio(replicated, alone), note=note, samples=samples)


def commits_per_s(context: RunContext, open_store: Callable[[], Store], callers: int) -> float:
    """Return how many approvals a second this many callers commit to a store that nobody else uses."""

    async def run() -> float:
        store = open_store()
        try:
            await _commit_until(store, callers, time.perf_counter() + context.run_s / 10)  # the first ones are slower
            begin = time.perf_counter()
            count = await _commit_until(store, callers, begin + context.run_s)
            return count / (time.perf_counter() - begin)
        finally:
            await store.close()

    return asyncio.run(run())


async def _commit_until(store: Store, callers: int, end: float) -> int:
    return sum(await asyncio.gather(*(_commit_one_scope(store, f"s{number}", end) for number in range(callers))))


async def _commit_one_scope(store: Store, scope_id: str, end: float) -> int:
    count = 0
    event = sample_event(f"event of {scope_id}", scope_id=scope_id)
    entry = HistoryEntry(at=0.0, kind=EntryKind.APPROVED, text="approved", scope_id=scope_id, event_id=event.id)
    while time.perf_counter() < end:
        scope = store.scope(scope_id) or Scope(id=scope_id)
        await store.commit(Commit(scopes=(scope,), events=(event,), entries=(entry,)))
        count += 1
    return count
