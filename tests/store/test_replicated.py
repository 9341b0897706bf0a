"""The replicated store through faults of its record: an answer is never wrong, and the copy never differs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from forewarn.cluster.following import CopyPosition, read_position
from forewarn.cluster.record import (
    Deposed,
    MustStop,
    NotReplicated,
    RecordGroup,
    RecordMismatch,
    RecordUnavailable,
)
from forewarn.cluster.replicated_store import RecordReplication, ReplicatedStore
from forewarn.conformance.store_suite import sample_history_entry, sample_poll, sample_vm
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Rejected, Unavailable
from forewarn.store.sqlite_file import connect
from tests.support.memory_record import MemoryRecordServer
from tests.support.replicated_store import AlwaysHeld, RecordedStops, open_replicated, take
from tests.support.replication_checks import check_copy, check_record, check_saved

Scenario = Callable[[ReplicatedStore], Coroutine[Any, Any, None]]


class Site:
    """A record in memory and the copy of one node."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.server = MemoryRecordServer(lambda: self.now)
        self.path = directory / "copy.db"
        self.stops = RecordedStops()
        self.guard = AlwaysHeld()

    def run(self, scenario: Scenario, *, check: bool = True) -> None:
        """Run a scenario on a new store of a node that has just taken the lease, then check record and copy."""

        async def run() -> None:
            self.now += 10.0
            store = open_replicated(self.path, self.server.connect(), guard=self.guard, on_stop=self.stops)
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(run())
        if check:
            self.check()

    def check(self) -> None:
        check_record(self.server.connect())
        check_copy(self.path, self.server.connect())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_writes_of_one_moment_are_one_group(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        await asyncio.gather(*(store.save(f"n{number}", b"") for number in range(50)))

    site.run(scenario)
    assert site.server.number == 1
    assert site.guard.renewals == 1


def test_a_conflict_fails_alone_and_is_not_in_the_record(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        commits = [store.commit(Commit(scopes=(Scope(id="s", epoch=number),))) for number in range(3)]
        answers = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(answer) for answer in answers] == [int, Conflict, Conflict]

    site.run(scenario)
    assert [row[2] for row in site.server.tables["scopes"].values()] == [0]


def test_polls_stay_in_the_copy(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        await store.commit(Commit(scopes=(Scope(id="s", last_request_at=10.0),), vms=(sample_vm("a"),)))
        await store.record_observations([sample_poll("a", scope_id="s", at=20.0)], [])
        assert len(store.last_polls()) == 1

    site.run(scenario)
    assert site.server.number == 1


def test_an_outage_fails_writes_and_leaves_the_copy_as_it_was(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        await store.save("before", b"")
        site.server.stop()
        with pytest.raises(RecordUnavailable):
            await store.save("during", b"")
        assert store.load("during") is None
        site.server.start()
        await store.save("after", b"")
        assert store.failed_writes() == 1

    site.run(scenario)
    assert [key for (key,) in site.server.tables["saved"]] == ["before", "after"]
    assert site.stops.errors == []


def test_a_lost_answer_of_a_commit_that_took_effect_is_a_success(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        site.server.lose_answer(committed=True)
        await store.save("name", b"1")
        assert store.load("name") == b"1"

    site.run(scenario)
    check_saved(["name"], site.server.connect())


def test_a_lost_answer_of_a_commit_without_effect_is_a_failure(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        site.server.lose_answer(committed=False)
        with pytest.raises(Unavailable, match="nothing was saved"):
            await store.save("name", b"1")
        assert store.load("name") is None
        await store.save("next", b"2")

    site.run(scenario)
    assert list(site.server.tables["saved"]) == [("next",)]


def test_an_unknown_outcome_is_found_out_when_the_record_is_back(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        site.server.remove_standby()
        saving = asyncio.create_task(store.save("name", b"1"))
        while site.server.waiting == 0:
            await asyncio.sleep(0)
        site.server.stop()  # the COMMIT has taken effect, and its answer is lost
        site.server.add_standby()
        assert store.load("name") is None
        site.server.start()
        await saving
        assert store.load("name") == b"1"

    site.run(scenario)


def test_a_deposed_node_writes_nothing_and_must_stop(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        await store.save("before", b"")
        site.now += 10.0
        take(site.server.connect(), "c2")
        for _ in range(2):
            with pytest.raises(Deposed, match="c2"):
                await store.save("after", b"")
        assert store.load("after") is None

    site.run(scenario)
    assert [type(error) for error in site.stops.errors] == [Deposed]
    assert site.guard.deposed_because is not None
    assert list(site.server.tables["saved"]) == [("before",)]


def test_a_node_that_finds_groups_missing_must_stop(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        await store.save("kept", b"")
        await store.save("lost", b"")
        site.server.promote(lost=1)
        with pytest.raises(RecordMismatch):
            await store.save("next", b"")

    site.run(scenario, check=False)
    assert [type(error) for error in site.stops.errors] == [RecordMismatch]


def test_a_commit_that_is_not_on_the_standby_is_no_success(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        site.server.cancel_wait()
        with pytest.raises(NotReplicated):
            await store.save("name", b"")
        with pytest.raises(MustStop):
            await store.save("next", b"")

    site.run(scenario)
    assert [type(error) for error in site.stops.errors] == [NotReplicated]


def test_a_value_that_the_record_rejects_fails_alone(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        names = ("a", "b\0b", "c")
        answers = await asyncio.gather(*(store.save(name, b"") for name in names), return_exceptions=True)
        assert [type(answer).__mro__[1] for answer in answers] == [object, Rejected, object]
        assert store.load("b\0b") is None

    site.run(scenario)
    assert sorted(site.server.tables["saved"]) == [("a",), ("c",)]


def test_nothing_is_written_while_the_lease_is_suspended(site: Site) -> None:
    class Suspended(AlwaysHeld):
        def check(self) -> None:
            raise RecordUnavailable("the lease was not renewed for 4 s")

    async def scenario(store: ReplicatedStore) -> None:
        with pytest.raises(Unavailable, match="was not renewed"):
            await store.save("name", b"")
        assert store.load("name") is None

    site.guard = Suspended()
    site.run(scenario)
    assert site.server.number == 0


class CopyFails(AlwaysHeld):
    """Breaks between the COMMIT of the record and that of the copy, as a full disk or a crash would."""

    def renewed(self, sent_at: float) -> None:
        raise OSError("disk full")


def test_a_crash_between_the_two_commits_leaves_the_copy_behind_until_it_follows(site: Site) -> None:
    async def scenario(store: ReplicatedStore) -> None:
        with pytest.raises(MustStop, match="disk full"):
            await store.commit(Commit(entries=(sample_history_entry("a"),)))
        with pytest.raises(MustStop):
            await store.save("next", b"")

    site.guard = CopyFails()
    site.run(scenario, check=False)
    assert len(site.stops.errors) == 1
    assert site.server.number == 1
    assert position_of(site.path).number == 0
    site.check()
    assert position_of(site.path).number == 1

    async def after(store: ReplicatedStore) -> None:
        assert [entry.text for entry in store.history()] == ["a"]
        assert await store.commit(Commit(entries=(sample_history_entry("b"),))) == 2

    site.guard = AlwaysHeld()
    site.run(after)


def position_of(path: Path) -> CopyPosition:
    db = connect(path, mode="ro")
    position = read_position(db)
    db.close()
    assert position is not None
    return position


def test_history_numbers_are_not_used_again_after_pruning_and_takeover(site: Site, tmp_path: Path) -> None:
    async def first(store: ReplicatedStore) -> None:
        await store.commit(Commit(entries=(sample_history_entry("a", at=1.0), sample_history_entry("b", at=1.0))))
        assert await store.prune(100.0) == 2

    async def second(store: ReplicatedStore) -> None:
        assert store.last_seq() == 2
        assert await store.commit(Commit(entries=(sample_history_entry("c"),))) == 3

    site.run(first)
    site.path = tmp_path / "other.db"
    site.run(second)


def test_a_stop_does_not_wait_for_a_record_that_does_not_answer(site: Site) -> None:
    async def run() -> None:
        store = open_replicated(site.path, site.server.connect(), on_stop=site.stops)
        site.server.remove_standby()
        saving = asyncio.create_task(store.save("name", b"1"))
        while site.server.waiting == 0:
            await asyncio.sleep(0)
        site.server.is_down = True
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        store.abandon()
        await closing
        with pytest.raises(MustStop):
            await saving

    asyncio.run(run())
    site.server.add_standby()
    site.server.start()
    site.check()  # it had taken effect, and the copy follows


def test_a_caller_waits_for_a_slow_record_only_for_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.cluster.replicated_store.WRITE_LIMIT_S", 0.05)

    async def scenario(store: ReplicatedStore) -> None:
        applied = threading.Event()
        store.subscribe(lambda commit: applied.set())
        site.server.remove_standby()
        with pytest.raises(Unavailable, match="may still save it"):
            await store.commit(Commit(entries=(sample_history_entry("a"),)))
        site.server.add_standby()
        while not applied.is_set():
            await asyncio.sleep(0)
        assert [entry.text for entry in store.history()] == ["a"]

    site.run(scenario)


# Defects that the checks must find.


def test_the_checks_find_a_fence_that_is_left_out(site: Site, tmp_path: Path) -> None:
    site.server.fenced = False

    async def scenario(store: ReplicatedStore) -> None:
        await store.save("one", b"")
        site.now += 10.0
        other = open_replicated(tmp_path / "other.db", site.server.connect())
        await other.save("two", b"")
        await store.save("three", b"")
        await other.close()

    site.run(scenario, check=False)
    with pytest.raises(AssertionError):
        site.check()


def test_the_checks_find_an_unknown_outcome_that_is_taken_as_failed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordReplication, "_find_out", lambda self, group: False)

    async def scenario(store: ReplicatedStore) -> None:
        site.server.lose_answer(committed=True)
        with pytest.raises(Unavailable):
            await store.save("name", b"1")
        assert store.load("name") is None
        check_saved(["name"], site.server.connect())  # the caller was told that nothing was saved
        with pytest.raises(RecordMismatch):
            await store.save("next", b"")

    site.run(scenario, check=False)
    assert [type(error) for error in site.stops.errors] == [RecordMismatch]


def test_the_checks_find_a_copy_that_is_committed_before_the_record(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RecordReplication._commit_to_record

    def commit_copy_first(self: RecordReplication, group: RecordGroup) -> None:
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")
        original(self, group)

    monkeypatch.setattr(RecordReplication, "_commit_to_record", commit_copy_first)

    async def scenario(store: ReplicatedStore) -> None:
        site.server.stop()
        with pytest.raises(Unavailable):
            await store.save("name", b"1")
        site.server.start()

    site.run(scenario, check=False)
    with pytest.raises(AssertionError):
        site.check()
