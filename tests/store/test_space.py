"""The space that a store takes: small deliveries, and pruning that gives space back to the file system."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.conformance.store_suite import finished_event, sample_event, sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.history import EventDelivery
from forewarn.store import SqliteStore
from forewarn.store.migrations import migrate_to_newest
from forewarn.store.pruning import release_pages
from forewarn.store.sqlite_file import prepare_store_file

MAX_BYTES_PER_DELIVERY = 60
GROUP = "6f0e7d3c-21a5-4c3e-9b0a-0d6c1f9d8a11/production"
MIB = 1024 * 1024


def has_dbstat() -> bool:
    with closing(sqlite3.connect(":memory:")) as db:
        return ("ENABLE_DBSTAT_VTAB",) in db.execute("PRAGMA compile_options").fetchall()


needs_dbstat = pytest.mark.skipif(not has_dbstat(), reason="this SQLite has no table dbstat")


def fleet_deliveries(seed: int = 7) -> Iterator[list[EventDelivery]]:
    """Yield what 2,000 VMs are given, second by second: a large set, sets of twenty, and VMs alone."""
    chance = random.Random(seed)
    scopes = [("set:large", 500, 20), *((f"set:tier-{n}", 20, 5) for n in range(50))]
    scopes += [(f"vm:alone-{n}", 1, 2) for n in range(500)]
    rounds = [scope for scope in scopes for _ in range(scope[2])]
    chance.shuffle(rounds)
    at = 1_700_000_000.0
    for start in range(0, len(rounds), 20):
        begun = [(str(uuid.UUID(int=chance.getrandbits(128))).upper(), scope) for scope in rounds[start : start + 20]]
        for status in (EventState.SCHEDULED, EventState.STARTED):
            polls = [(event, scope[0], n) for event, scope in begun for n in range(scope[1])]
            chance.shuffle(polls)  # VMs poll in any order
            for batch in range(0, len(polls), 1000):
                at += 1
                yield [
                    _delivery(event, scope, n, status, at + chance.random())
                    for event, scope, n in polls[batch : batch + 1000]
                ]


def _delivery(event_id: str, scope: str, number: int, status: EventState, at: float) -> EventDelivery:
    kind, _, name = scope.partition(":")
    return EventDelivery(
        event_id=event_id,
        scope_id=f"{kind}:{GROUP}/{name}",
        vm=f"{GROUP}/{name}-{number}",
        status=status,
        version="2020-07-01",
        incarnation=int(at) % 100_000,
        at=at,
    )


@needs_dbstat
def test_a_delivery_takes_at_most_sixty_bytes_with_all_indexes(tmp_path: Path) -> None:
    async def write() -> int:
        store = SqliteStore.open(tmp_path / "store.db")
        count = 0
        for batch in fleet_deliveries():
            await store.record_observations([], batch)
            count += len(batch)
        await store.close()
        return count

    count = asyncio.run(write())
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        sizes = dict(
            db.execute(
                "SELECT sqlite_master.name, sum(pgsize) FROM dbstat JOIN sqlite_master USING (name)"
                " WHERE tbl_name LIKE 'deliver%' GROUP BY 1"
            )
        )
    assert count == 32_000
    assert sum(sizes.values()) / count <= MAX_BYTES_PER_DELIVERY, sizes


def files_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


async def fill(store: SqliteStore) -> None:
    for at in range(40):
        entries = tuple(sample_history_entry("x" * 900, at=at, event_id=f"E{at}") for _ in range(250))
        await store.commit(Commit(events=(finished_event(sample_event(f"E{at}"), at),), entries=entries))


def test_pruning_returns_space_to_the_file_system_while_the_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        store = SqliteStore.open(path)
        empty = files_size(path)
        await fill(store)
        full = files_size(path)
        assert full > 10 * MIB
        assert await store.prune(36.0) == 36 * 250
        assert files_size(path) - empty < (full - empty) / 5
        await store.prune(99.0)
        assert files_size(path) < empty + MIB
        assert await store.commit(Commit(entries=(sample_history_entry("next"),))) == 10_001
        await store.close()

    asyncio.run(scenario())


def test_commits_continue_while_the_store_is_pruned(tmp_path: Path) -> None:
    """Pruning works in small transactions, between which other writes are done."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await fill(store)
        pruning = asyncio.create_task(store.prune(99.0))
        commits = 0
        while not pruning.done():
            await store.commit(Commit(entries=(sample_history_entry("meanwhile", at=100.0),)))
            commits += 1
        assert commits > 3
        assert await pruning == 10_000
        assert len(store.history()) == commits
        await store.close()

    asyncio.run(scenario())


def test_a_store_that_could_not_return_space_can_after_it_was_opened(tmp_path: Path) -> None:
    """Stores of the first version were made without incremental vacuum."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate_to_newest(db)
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (0,)

    async def scenario() -> None:
        store = SqliteStore.open(path)
        empty = files_size(path)
        await fill(store)
        await store.prune(99.0)
        assert files_size(path) < empty + MIB
        await store.close()

    asyncio.run(scenario())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_many_pages_are_released_in_one_transaction(tmp_path: Path) -> None:
    """Python ends a PRAGMA incremental_vacuum after its first page."""
    path = tmp_path / "store.db"
    prepare_store_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO saved VALUES ('large', zeroblob(2000000))")
        db.execute("DELETE FROM saved")
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        assert free > 400
        db.execute("BEGIN IMMEDIATE")
        assert release_pages(db) == free
        db.execute("COMMIT")
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert path.stat().st_size < MIB
