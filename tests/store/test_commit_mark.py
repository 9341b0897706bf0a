"""A store that has lost confirmed writes says so at its next start, and every scope gets a new epoch."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.store import SqliteStore, restore_backup
from forewarn.store.commit_mark import (
    RENEWAL_NAME,
    CommitMark,
    EpochRenewal,
    find_lost_writes,
    mark_path,
    read_number,
    read_renewal,
)
from forewarn.store.sqlite_file import connect

NOW = 1_900_000_000.0
COMMITS = 12


async def commit_some(store: SqliteStore, count: int = COMMITS) -> None:
    for _ in range(count):
        scope = store.scope("s") or Scope(id="s", epoch=1, incarnation=1, enabled_at=1.0)
        await store.commit(Commit(scopes=(scope,), entries=(sample_history_entry("moved", scope_id="s"),)))


def crashed_store(path: Path) -> Path:
    """A store whose process was killed after these commits: the files as the kernel has them."""
    path.mkdir()
    store = path / "store.db"

    async def crash() -> None:
        running = SqliteStore.open(path / "running.db")
        await commit_some(running)
        for suffix in ("", "-wal", ".mark"):
            shutil.copy(f"{path / 'running.db'}{suffix}", f"{store}{suffix}")
        await running.close()

    asyncio.run(crash())
    return store


def after_start(store: Path, commits: int = 0) -> tuple[Scope | None, int, EpochRenewal | None]:
    """Start and stop a store; return its scope, the length of its history, and its last renewal."""

    async def start() -> tuple[Scope | None, int, EpochRenewal | None]:
        opened = SqliteStore.open(store, now=NOW)
        try:
            await commit_some(opened, commits)
            return opened.scope("s"), len(opened.history()), read_renewal(opened.load(RENEWAL_NAME))
        finally:
            await opened.close()

    return asyncio.run(start())


def log_of(store: Path) -> Path:
    return store.with_name("store.db-wal")


def flip_bit(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def cut_short(store: Path) -> None:
    log = log_of(store)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def keep_older_database(store: Path) -> None:
    log_of(store).unlink()
    with closing(connect(store, mode="rw")) as db:
        db.execute("UPDATE sqlite_sequence SET seq = 3 WHERE name = 'commits'")


def of_another_boot(store: Path) -> None:
    """Write the mark as a kernel that has crashed wrote it, before the first commit."""
    text = f"{0:020d} open   {'another-boot':36}"
    mark_path(store).write_text(f"{text} {crc32(text.encode()):08x}\n")


def lose_log_of_another_boot(store: Path) -> None:
    of_another_boot(store)
    log_of(store).unlink()


def damage_log_of_another_boot(store: Path) -> None:
    of_another_boot(store)
    flip_bit(log_of(store), log_of(store).stat().st_size // 2)


def damage_log_header_of_another_boot(store: Path) -> None:
    of_another_boot(store)
    flip_bit(log_of(store), 17)


LOSSES: dict[str, Callable[[Path], None]] = {
    "a flipped bit in the log": lambda store: flip_bit(log_of(store), log_of(store).stat().st_size // 2),
    "a damaged header of the log": lambda store: flip_bit(log_of(store), 17),
    "a damaged last commit": lambda store: flip_bit(log_of(store), log_of(store).stat().st_size - 1),
    "a log that ends early": cut_short,
    "no log": lambda store: log_of(store).unlink(),
    "an older database": keep_older_database,
    "a damaged mark": lambda store: flip_bit(mark_path(store), 5),
    "no log after a loss of power": lose_log_of_another_boot,
    "a flipped bit after a loss of power": damage_log_of_another_boot,
    "a damaged header after a loss of power": damage_log_header_of_another_boot,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_store_that_has_lost_confirmed_writes_begins_a_new_epoch_once(tmp_path: Path, loss: str) -> None:
    """Spec §4.2, §4.3: VMs have seen more than the store knows."""
    store = crashed_store(tmp_path / "data")
    LOSSES[loss](store)
    assert find_lost_writes(store)

    scope, entries, renewal = after_start(store)
    assert renewal is not None
    assert (renewal.is_loss, renewal.epoch, renewal.at) == (True, int(NOW) + 1, NOW)
    assert entries <= COMMITS
    assert scope is None or (scope.epoch == renewal.epoch and scope.incarnation > COMMITS)

    assert find_lost_writes(store) is None
    assert after_start(store, commits=2)[2] == renewal, "a loss is found once"


def only_last_commit_in_flight(store: Path) -> None:
    of_another_boot(store)
    flip_bit(log_of(store), log_of(store).stat().st_size - 1)


INTACT: dict[str, Callable[[Path], object]] = {
    "a killed process": lambda store: None,
    "a loss of power": of_another_boot,
    "a loss of power during a commit": only_last_commit_in_flight,
    "no mark": lambda store: mark_path(store).unlink(),
}


@pytest.mark.parametrize("end", INTACT)
def test_a_store_that_has_lost_nothing_keeps_its_epoch(tmp_path: Path, end: str) -> None:
    store = crashed_store(tmp_path / "data")
    INTACT[end](store)
    assert find_lost_writes(store) is None
    scope, entries, renewal = after_start(store)
    assert renewal is None
    assert scope is not None
    assert (scope.epoch, scope.incarnation) == (1, 1)
    assert entries == COMMITS - ("during" in end)
    assert after_start(store, commits=1)[2] is None


def test_the_mark_is_never_above_the_commits_nor_below_a_confirmed_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        for expected in range(1, 6):
            await store.save("a", b"%d" % expected)
            assert int(mark_path(tmp_path / "store.db").read_bytes()[:20]) == expected
        with closing(connect(tmp_path / "store.db", mode="ro")) as db:
            assert read_number(db) == 5
        assert find_lost_writes(tmp_path / "store.db") is None, "a running service has lost nothing"
        await store.close()
        assert b" closed " in mark_path(tmp_path / "store.db").read_bytes()

    asyncio.run(scenario())


def test_a_write_whose_commit_failed_is_no_loss(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    after_start(store, commits=2)
    with closing(connect(store, mode="rw")) as db:
        mark = CommitMark.begin(store, db, None, now=NOW)
        db.execute("BEGIN IMMEDIATE")
        mark.count(db)
        db.execute("ROLLBACK")
    mark.close()
    assert find_lost_writes(store) is None


def test_a_store_that_was_replaced_by_hand_with_an_older_copy_begins_a_new_epoch(tmp_path: Path) -> None:
    store, copy = tmp_path / "store.db", tmp_path / "copy.db"
    after_start(store, commits=2)
    shutil.copy(store, copy)
    after_start(store, commits=2)
    shutil.copy(copy, store)
    renewal = after_start(store)[2]
    assert renewal is not None
    assert renewal.is_loss


def test_a_restored_backup_is_no_loss_and_takes_the_old_mark_aside(tmp_path: Path) -> None:
    store, copy = tmp_path / "store.db", tmp_path / "copy.db"
    after_start(store, commits=2)
    shutil.copy(store, copy)
    after_start(store, commits=2)
    aside = restore_backup(copy, store, now=NOW)
    assert aside is not None
    assert mark_path(aside).exists()
    renewal = after_start(store, commits=1)[2]
    assert renewal is not None
    assert not renewal.is_loss


def test_a_new_store_beside_the_mark_of_an_earlier_one_has_lost_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    after_start(store, commits=5)
    store.unlink()
    assert after_start(store, commits=1)[2] is None
    assert after_start(store)[2] is None
