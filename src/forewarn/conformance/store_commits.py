"""Conformance of a store: versions and conflicts, subscribers, and closing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forewarn.conformance.store_rows import (
    SAMPLE_SCOPE_ID,
    replace_fields,
    sample_event,
    sample_history_entry,
    sample_planned_event,
    sample_request,
    sample_vm,
)
from forewarn.conformance.store_suite import StoreSuite
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Gate
from forewarn.core.fleet import Host
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from forewarn.store.interface import AppliedCommit, Store


def _versioned_row(kind: str) -> Any:
    rows = {"scopes": Scope(id="x"), "gates": Gate(id="x", request_id="r", host="h"), "requests": sample_request("x")}
    return rows[kind]


class StoreCommitTests(StoreSuite):
    """Tests of versions and conflicts, of subscribers, and of closing; part of `StoreConformance`."""

    @pytest.mark.parametrize("kind", ["scopes", "gates", "requests"])
    def test_a_commit_on_an_outdated_version_is_a_conflict_that_names_the_row(self, kind: str) -> None:
        """A commit of a row of this kind must carry its current version, 0 for a new row; else Conflict."""

        async def scenario(store: Store) -> None:
            row = _versioned_row(kind)
            await store.commit(Commit(**{kind: (row,)}))
            await store.commit(Commit(**{kind: (replace_fields(row, version=1),)}))
            with pytest.raises(Conflict, match=r"'x' is at version 2, but .* version 1: read it again"):
                await store.commit(Commit(**{kind: (replace_fields(row, version=1),)}))
            with pytest.raises(Conflict, match=r"'x' is at version 2, but .* it not existing"):
                await store.commit(Commit(**{kind: (row,)}))
            with pytest.raises(Conflict, match=r"'y' does not exist, but .* version 4"):
                await store.commit(Commit(**{kind: (replace_fields(row, id="y", version=4),)}))
            await store.commit(Commit(**{kind: (replace_fields(row, version=2),)}))

        self.run_scenarios(scenario)

    @pytest.mark.parametrize("kind", ["scopes", "gates", "requests"])
    def test_a_conflict_leaves_nothing_of_its_commit(self, kind: str) -> None:
        """If one row of this kind conflicts, no row and no entry of its commit is stored, no number used."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(**{kind: (_versioned_row(kind),)}, entries=(sample_history_entry("kept"),)))
            rest = Commit(vms=(sample_vm("a"),), events=(sample_event("E"),), hosts=(Host(name="h", location="l"),))
            rest = replace_fields(rest, planned=(sample_planned_event("P"),), entries=(sample_history_entry("lost"),))
            first: dict[str, Any] = {
                name: (replace_fields(_versioned_row(name), id="first"),) for name in ("scopes", "gates", "requests")
            }
            first[kind] = (*first[kind], _versioned_row(kind))
            with pytest.raises(Conflict):
                await store.commit(replace_fields(rest, **first))
            assert not any((store.vms(), store.events(), store.hosts(), store.planned()))
            assert store.scope("first") is None
            assert store.gate("first") is None
            assert store.request("first") is None
            assert [entry.text for entry in store.history()] == ["kept"]
            assert await store.commit(Commit(entries=(sample_history_entry("next"),))) == 2

        self.run_scenarios(scenario)

    def test_one_row_cannot_change_twice_from_the_same_version(self) -> None:
        """A commit with a scope twice at the same version raises Conflict; at successive versions, both apply."""

        async def scenario(store: Store) -> None:
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID), Scope(id=SAMPLE_SCOPE_ID))))
            assert store.scope(SAMPLE_SCOPE_ID) is None
            await store.commit(
                Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID), Scope(id=SAMPLE_SCOPE_ID, version=1, epoch=5)))
            )
            assert store.scope(SAMPLE_SCOPE_ID) == Scope(id=SAMPLE_SCOPE_ID, version=2, epoch=5)

        self.run_scenarios(scenario)

    def test_subscribers_get_every_commit_in_order_before_the_caller_continues(self) -> None:
        """A subscriber gets each applied commit, with numbered entries, before its `commit` returns."""

        async def scenario(store: Store) -> None:
            applied: list[AppliedCommit] = []
            stop = store.subscribe(applied.append)

            async def commit_and_check(text: str) -> None:
                seq = await store.commit(Commit(entries=(sample_history_entry(text),)))
                assert next(one for one in applied if one.seq == seq).commit.entries == (
                    sample_history_entry(text, seq=seq),
                )
                assert store.history(after=seq - 1)[0].text == text

            await asyncio.gather(*(commit_and_check(f"{number}") for number in range(20)))
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id="x", version=1),)))
            assert [one.seq for one in applied] == list(range(1, 21))
            stop()
            stop()
            await store.commit(Commit(entries=(sample_history_entry("after unsubscribing"),)))
            assert len(applied) == 20

        self.run_scenarios(scenario)

    def test_a_commit_saves_values_with_its_entries_or_nothing(self) -> None:
        """Values in `saved` replace those of `save`, and `load` returns them; a Conflict writes none."""

        async def write(store: Store) -> None:
            await store.save("clock", b"1")
            entry = sample_history_entry("a")
            await store.commit(Commit(saved=(SavedValue("clock", b"2"), SavedValue("new", b"\x00")), entries=(entry,)))
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id="x", version=7),), saved=(SavedValue("clock", b"3"),)))

        async def read(store: Store) -> None:
            assert (store.load("clock"), store.load("new"), store.last_seq()) == (b"2", b"\x00", 1)

        self.run_scenarios(write, read)

    def test_a_failing_subscriber_does_not_block_the_others(self) -> None:
        """If a subscriber raises, the commit succeeds and other subscribers get it."""

        async def scenario(store: Store) -> None:
            reported: list[dict[str, Any]] = []
            applied: list[AppliedCommit] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

            def fail(_: AppliedCommit) -> None:
                raise ValueError("a failing subscriber")

            store.subscribe(fail)
            store.subscribe(applied.append)
            assert await store.commit(Commit(entries=(sample_history_entry("a"),))) == 1
            assert len(applied) == 1
            assert isinstance(reported[0]["exception"], ValueError)

        self.run_scenarios(scenario)

    def test_a_closed_store_rejects_writes_and_has_lost_none(self) -> None:
        """`close` completes the commits that wait; later writes raise Unavailable."""

        async def write(store: Store) -> None:
            commits = [store.commit(Commit(entries=(sample_history_entry(f"{number}"),))) for number in range(10)]
            waiting = asyncio.gather(*commits)
            await asyncio.sleep(0)
            await store.close()
            await store.close()
            assert await waiting == list(range(1, 11))
            with pytest.raises(Unavailable, match="closed"):
                await store.commit(Commit(entries=(sample_history_entry("late"),)))
            with pytest.raises(Unavailable, match="closed"):
                await store.save("late", b"")

        async def read(store: Store) -> None:
            assert store.last_seq() == 10
            assert store.load("late") is None

        self.run_scenarios(write, read)
