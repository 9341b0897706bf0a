"""Backups are consistent while the store is in use; a restore keeps the backup and the old store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from forewarn.conformance.store_suite import replace_fields, sample_event, sample_history_entry, sample_vm
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.store import MemoryStore, SqliteStore, Store, restore_backup
from forewarn.store.backup import write_backup

NOW = 1_700_000_000.5


async def commit_once(store: Store, scope_id: str = "s") -> None:
    scope = store.scope(scope_id) or Scope(id=scope_id, epoch=3, incarnation=7)
    await store.commit(Commit(scopes=(scope,), entries=(sample_history_entry("moved", scope_id=scope_id),)))


def content(path: Path) -> tuple[list[Scope | None], int]:
    async def read() -> tuple[list[Scope | None], int]:
        store = SqliteStore.open(path)
        try:
            return [store.scope(scope_id) for scope_id in store.scope_ids()], len(store.history())
        finally:
            await store.close()

    return asyncio.run(read())


def create_store(path: Path, commits: int) -> None:
    async def write() -> None:
        store = SqliteStore.open(path)
        for _ in range(commits):
            await commit_once(store)
        await store.close()

    asyncio.run(write())


def test_a_backup_taken_under_load_is_consistent(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        stop = asyncio.Event()

        async def work(scope_id: str) -> None:
            while not stop.is_set():
                await commit_once(store, scope_id)

        workers = [asyncio.create_task(work(f"s{n}")) for n in range(8)]
        for number in range(5):
            await commit_once(store)
            await store.back_up(tmp_path / f"backup-{number}.db")
        stop.set()
        await asyncio.gather(*workers)
        await store.close()

    asyncio.run(scenario())
    for number in range(5):
        scopes, entries = content(tmp_path / f"backup-{number}.db")
        assert sum(scope.version for scope in scopes if scope) == entries
        assert next(scope.version for scope in scopes if scope and scope.id == "s") >= number + 1


def test_a_backup_is_one_file_and_overwrites_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        backups = tmp_path / "backups"
        backups.mkdir()
        await store.back_up(backups / "one.db")
        assert [path.name for path in backups.iterdir()] == ["one.db"]
        before = (backups / "one.db").read_bytes()
        with pytest.raises(Refused, match=r"one\.db' exists already and is not overwritten: give another name"):
            await store.back_up(backups / "one.db")
        assert (backups / "one.db").read_bytes() == before
        with pytest.raises(Unavailable, match=r"two\.db' cannot be written now"):
            await store.back_up(tmp_path / "nowhere" / "two.db")
        await store.close()

    asyncio.run(scenario())


def test_a_memory_store_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="in memory only"):
        asyncio.run(MemoryStore().back_up(tmp_path / "backup.db"))


def test_a_restored_store_has_all_content_and_a_new_epoch(tmp_path: Path) -> None:
    """Spec §4.3: an ETag from the lost history matches nothing after the restore."""
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"

    async def use_store() -> Scope | None:
        store = SqliteStore.open(path)
        await commit_once(store)
        await store.commit(Commit(vms=(sample_vm("a"),), events=(sample_event("E", scope_id="s"),)))
        await store.back_up(backup)
        kept = store.scope("s")
        await commit_once(store)
        await store.close()
        return kept

    kept = asyncio.run(use_store())
    assert kept is not None

    aside = restore_backup(backup, path, now=NOW)

    assert aside == tmp_path / "store.db.before-restore-1"
    scopes, entries = content(path)
    assert scopes == [replace_fields(kept, epoch=int(NOW) + 1)]
    assert entries == 1
    assert content(aside)[1] == 2


def shown_numbers(path: Path) -> list[tuple[int, int]]:
    return [(scope.epoch, scope.incarnation) for scope in content(path)[0] if scope]


def test_a_restored_store_continues_above_every_incarnation_that_was_shown(tmp_path: Path) -> None:
    """Spec §4.2: the same number means the same content, even if the store that showed it is lost."""
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"

    async def write(incarnation: int) -> None:
        store = SqliteStore.open(path)
        scope = store.scope("s") or Scope(id="s", epoch=3)
        never = () if store.scope("never") else (Scope(id="never"),)
        scopes = (replace_fields(scope, incarnation=incarnation, enabled_at=1.0), *never)
        await store.commit(Commit(scopes=scopes))
        if not backup.exists():
            await store.back_up(backup)
        await store.close()

    asyncio.run(write(7))
    for shown, now in ((50, NOW), (2_000_000_000, NOW), (51, NOW)):
        asyncio.run(write(shown))
        restore_backup(backup, path, now=now)
        never, scope = content(path)[0]
        assert scope is not None
        assert never is not None
        assert scope.incarnation > shown
        assert never.incarnation == 0, "it begins at 1 when it is enabled"
    (tmp_path / "store.db").unlink()
    restore_backup(backup, path, now=NOW + 1)
    lost_with_its_disk = shown_numbers(path)
    restore_backup(backup, tmp_path / "elsewhere.db", now=NOW + 10)
    assert shown_numbers(tmp_path / "elsewhere.db") > lost_with_its_disk
    assert shown_numbers(tmp_path / "elsewhere.db")[1][1] < 2**31, "clients may read it into 32 bits"


def test_each_restore_of_a_backup_gets_a_new_epoch(tmp_path: Path) -> None:
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    create_store(backup, 1)
    epochs = []
    for now in (NOW, NOW, 0.0):
        restore_backup(backup, path, now=now)
        epochs += [scope.epoch for scope in content(path)[0] if scope]
    assert epochs == [int(NOW) + 1, int(NOW) + 2, int(NOW) + 3]
    assert sorted(p.name for p in tmp_path.glob("*before-restore*")) == [
        *("store.db.before-restore-1", "store.db.before-restore-1.mark"),
        *("store.db.before-restore-2", "store.db.before-restore-2.mark"),
    ]


def test_a_backup_can_be_restored_where_no_store_exists(tmp_path: Path) -> None:
    create_store(tmp_path / "backup.db", 2)
    assert restore_backup(tmp_path / "backup.db", tmp_path / "store.db", now=NOW) is None
    assert content(tmp_path / "store.db")[1] == 2


def test_a_restore_says_that_no_store_was_moved_if_only_its_log_was_left(tmp_path: Path) -> None:
    create_store(tmp_path / "backup.db", 2)
    for _ in range(2):
        (tmp_path / "store.db").unlink(missing_ok=True)
        (tmp_path / "store.db-wal").write_bytes(b"log of a deleted store")
        assert restore_backup(tmp_path / "backup.db", tmp_path / "store.db", now=NOW) is None
    kept = sorted(path.name for path in tmp_path.glob("*before-restore*"))
    assert kept == ["store.db.before-restore-1-wal", "store.db.before-restore-2-wal"]
    assert content(tmp_path / "store.db")[1] == 2


def test_a_restore_moves_a_damaged_store_aside_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    create_store(tmp_path / "backup.db", 2)
    path.write_bytes(b"damaged")
    aside = restore_backup(tmp_path / "backup.db", path, now=NOW)
    assert aside is not None
    assert aside.read_bytes() == b"damaged"
    assert content(path)[1] == 2


def test_a_restore_moves_the_log_of_a_crashed_store_aside_with_it(tmp_path: Path) -> None:
    path, crashed = tmp_path / "store.db", tmp_path / "crashed" / "store.db"
    crashed.parent.mkdir()
    create_store(tmp_path / "backup.db", 2)

    async def crash() -> None:
        store = SqliteStore.open(path)
        for _ in range(5):
            await commit_once(store)
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", f"{crashed}{suffix}")
        await store.close()

    asyncio.run(crash())

    aside = restore_backup(tmp_path / "backup.db", crashed, now=NOW)

    assert content(crashed)[1] == 2
    assert aside is not None
    assert content(aside)[1] == 5


@pytest.mark.parametrize("junk", [b"", b"no store"])
def test_a_restore_rejects_a_file_that_is_not_a_backup_and_keeps_the_store(tmp_path: Path, junk: bytes) -> None:
    path, source = tmp_path / "store.db", tmp_path / "junk.db"
    create_store(path, 3)
    source.write_bytes(junk)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(Rejected, match=r"junk\.db"):
        restore_backup(source, path, now=NOW)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_concurrent_backups_to_one_name_give_one_backup(tmp_path: Path) -> None:
    async def scenario() -> list[object]:
        store = SqliteStore.open(tmp_path / "store.db")
        await commit_once(store)
        made = await asyncio.gather(*(store.back_up(tmp_path / "copy.db") for _ in range(4)), return_exceptions=True)
        await store.close()
        return list(made)

    made = asyncio.run(scenario())
    assert made.count(None) == 1
    assert sum(isinstance(one, Refused) for one in made) == 3
    assert content(tmp_path / "copy.db") == content(tmp_path / "store.db")


def test_a_backup_overwrites_no_other_file(tmp_path: Path) -> None:
    create_store(tmp_path / "store.db", commits=1)
    (tmp_path / "copy.db.partial").write_text("another program's")
    write_backup(tmp_path / "store.db", tmp_path / "copy.db")
    assert (tmp_path / "copy.db.partial").read_text() == "another program's"
    assert sorted(path.name for path in tmp_path.iterdir() if "copy" in path.name) == ["copy.db", "copy.db.partial"]


@pytest.mark.parametrize("pattern", ["store.db", "store.db-wal", "store.db*"])
def test_a_store_whose_files_were_deleted_under_it_can_be_backed_up(tmp_path: Path, pattern: str) -> None:
    """The open files are then the only copy."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        for _ in range(3):
            await commit_once(store)
        for found in tmp_path.glob(pattern):
            found.unlink()
        with pytest.raises(Unavailable, match="take a backup before the service stops") as refusal:
            await commit_once(store)
        assert "restart" not in str(refusal.value)
        await store.back_up(tmp_path / "copy.db")
        assert store.last_seq() == 3
        await store.close()

    asyncio.run(scenario())
    assert content(tmp_path / "copy.db")[1] == 3


def test_a_backup_copies_the_open_store_and_not_a_file_that_replaced_it(tmp_path: Path) -> None:
    create_store(tmp_path / "other.db", 7)

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await commit_once(store)
        (tmp_path / "other.db").replace(tmp_path / "store.db")
        await store.back_up(tmp_path / "copy.db")
        await store.close()

    asyncio.run(scenario())
    assert content(tmp_path / "copy.db")[1] == 1


def test_a_store_that_was_deleted_before_its_first_write_can_be_backed_up(tmp_path: Path) -> None:
    create_store(tmp_path / "store.db", 2)

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        for found in tmp_path.glob("store.db*"):
            found.unlink()
        await store.back_up(tmp_path / "copy.db")
        await store.close()

    asyncio.run(scenario())
    assert content(tmp_path / "copy.db")[1] == 2


def test_a_backup_of_a_missing_store_names_the_store(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"store\.db' cannot be read now"):
        write_backup(tmp_path / "store.db", tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []
