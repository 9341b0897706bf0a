"""Nodes crash at every step, records fail, leases pass on: no answer is wrong, and every copy follows."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.cluster.record import LEASE_S, MustStop, RecordUnavailable
from forewarn.cluster.replicated_store import RecordReplication, ReplicatedStore
from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from tests.support.memory_record import MemoryRecordServer
from tests.support.replicated_store import AlwaysHeld, open_replicated
from tests.support.replication_checks import check_copy, check_record


class Step(StrEnum):
    """What happens while the active node commits."""

    NOTHING = "nothing"
    CONFLICT = "another version was decided on"
    CRASH_BEFORE = "the node crashes before the COMMIT of the record"
    CRASH_BETWEEN = "the node crashes between the two COMMITs"
    CRASH_AFTER = "the node crashes after both, before it answers"
    LOST_BEFORE = "the connection is lost before the COMMIT takes effect"
    LOST_AFTER = "the connection is lost after the COMMIT took effect"
    OUTAGE = "the record is out of reach"
    DEPOSED = "another node takes the lease"


class CrashingGuard(AlwaysHeld):
    """Breaks off at a chosen moment."""

    step = Step.NOTHING

    def check(self) -> None:
        if self.step is Step.CRASH_BEFORE:
            raise RecordUnavailable("crashed")

    def renewed(self, sent_at: float) -> None:
        if self.step is Step.CRASH_BETWEEN:
            raise OSError("crashed")


class Cluster:
    """A record and two nodes, of which one is active."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.server = MemoryRecordServer(lambda: self.now)
        self.paths = (directory / "c1.db", directory / "c2.db")
        self.active = 0
        self.answered: list[str] = []  # texts of entries
        self.denied: list[str] = []  # texts of entries that were surely not written
        self.guard = CrashingGuard()

    async def run(self, steps: list[tuple[Step, int]]) -> None:
        store = self._take_over(0)
        for number, (step, successor) in enumerate(steps):
            if not await self._commit(store, f"{number}", step):
                await store.close()
                store = self._take_over(successor)
        await store.close()

    def _take_over(self, node: int) -> ReplicatedStore:
        self.now += LEASE_S + 1
        self.active, self.guard = node, CrashingGuard()
        return open_replicated(self.paths[node], self.server.connect(), guard=self.guard)

    async def _commit(self, store: ReplicatedStore, text: str, step: Step) -> bool:
        """Commit while something happens; return whether the node is still active."""
        self._begin(step)
        scope = store.scope("s") or Scope(id="s")
        if step is Step.CONFLICT:
            scope = Scope(id="s", version=scope.version + 7)
        try:
            await store.commit(Commit(scopes=(scope,), entries=(sample_history_entry(text),)))
        except (MustStop, Conflict, Unavailable) as error:
            if not isinstance(error, MustStop) or step is Step.DEPOSED:
                self.denied.append(text)
        else:
            if step is not Step.CRASH_AFTER:
                self.answered.append(text)
        self.server.start()
        return step not in (Step.CRASH_BEFORE, Step.CRASH_BETWEEN, Step.CRASH_AFTER, Step.DEPOSED)

    def _begin(self, step: Step) -> None:
        self.guard.step = step
        if step in (Step.LOST_BEFORE, Step.LOST_AFTER):
            self.server.lose_answer(committed=step is Step.LOST_AFTER)
        elif step is Step.OUTAGE:
            self.server.stop()
        elif step is Step.DEPOSED:
            self.now += LEASE_S + 1
            self.server.connect().take_lease("another", "")

    def check(self) -> None:
        check_record(self.server.connect())
        for path in self.paths:
            if path.exists():
                check_copy(path, self.server.connect())
        kept = [row[7] for row in self.server.tables["history"].values()]
        texts = {body.decode().partition('"text":"')[2].partition('"')[0] for body in kept}
        assert len(kept) == len(texts), "a commit was applied twice"
        assert set(self.answered) <= texts, "an answered commit is lost"
        assert not set(self.denied) & texts, "a commit was written, and the caller was told that it was not"


STEPS = st.lists(st.tuples(st.sampled_from(Step), st.integers(0, 1)), min_size=1, max_size=8)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_no_crash_or_fault_makes_an_answer_wrong(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Step, int]]
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    asyncio.run(cluster.run(steps))
    cluster.check()


@pytest.mark.parametrize("step", list(Step))
def test_each_step_is_survived(tmp_path: Path, step: Step) -> None:
    cluster = Cluster(tmp_path)
    asyncio.run(cluster.run([(Step.NOTHING, 0), (step, 1), (Step.NOTHING, 0), (step, 0), (Step.NOTHING, 0)]))
    cluster.check()
    assert len(cluster.answered) >= 3


def test_an_unknown_outcome_that_is_taken_as_failed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordReplication, "_find_out", lambda self, group: False)
    cluster = Cluster(tmp_path)
    asyncio.run(cluster.run([(Step.LOST_AFTER, 0)]))
    with pytest.raises(AssertionError, match="the caller was told that it was not"):
        cluster.check()


def test_an_unknown_outcome_that_is_taken_as_done_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordReplication, "_find_out", lambda self, group: True)
    cluster = Cluster(tmp_path)
    asyncio.run(cluster.run([(Step.LOST_BEFORE, 0)]))
    with pytest.raises(AssertionError, match=r"built again|is lost"):
        cluster.check()
