"""The SQLite store and the memory store give equal answers after any writes, stale ones too."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forewarn.conformance.store_suite import (
    SAMPLE_SCOPE_ID,
    replace_fields,
    sample_delivery,
    sample_event,
    sample_history_entry,
    sample_measurement,
    sample_planned_event,
    sample_poll,
    sample_request,
    sample_rollout,
    sample_vm,
)
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Ending, EventState, Gate
from forewarn.core.fleet import Host
from forewarn.core.scope import Scope
from forewarn.errors import ForewarnError
from forewarn.store import AppliedCommit, MemoryStore, SqliteStore, Store, sqlite_file

IDS = st.sampled_from(["a", "B", "ü"])
SCOPES = st.sampled_from([SAMPLE_SCOPE_ID, sample_vm("x", availability_set="db").scope_id, "vm:elsewhere"])
TIMES = st.sampled_from([0.0, 0.1, 1.0, 2.5, 1e9])
OPTIONAL_TIMES = st.none() | TIMES
VERSIONS = st.integers(0, 3)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=2).map(tuple)


def _event(event_id: str, scope_number: int, seq: int, status: EventState, at: float) -> Any:
    # An event never changes its scope, so its id contains the number of the scope.
    scope_id = [SAMPLE_SCOPE_ID, "vm:elsewhere"][scope_number]
    event = sample_event(f"{event_id}{scope_number}", scope_id=scope_id, seq=seq, status=status, gate_id="a")
    return replace_fields(event, over_at=at, ending=Ending.FINISHED) if status is EventState.OVER else event


SCOPE_ROWS = st.builds(
    Scope,
    id=SCOPES,
    version=VERSIONS,
    epoch=st.integers(0, 3),
    last_request_at=OPTIONAL_TIMES,
    wakes_at=OPTIONAL_TIMES,
)
VMS = st.builds(
    sample_vm,
    IDS,
    availability_set=st.sampled_from(["web", "db"]),
    removed_at=OPTIONAL_TIMES,
    host=st.sampled_from(["", "h1"]),
)
# One sequence number per event and scope, as `Scope.with_event` assigns them.
EVENTS = st.integers(0, 5).flatmap(
    lambda n: st.builds(_event, st.just(f"E{n}"), st.integers(0, 1), st.just(n), st.sampled_from(EventState), TIMES)
)
GATES = st.builds(
    Gate, id=IDS, request_id=IDS, host=IDS, version=VERSIONS, released_at=OPTIONAL_TIMES, wakes_at=OPTIONAL_TIMES
)
REQUESTS = st.builds(sample_request, IDS, version=VERSIONS) | st.builds(
    sample_rollout, IDS, closed=st.booleans(), version=VERSIONS
)
HOSTS = st.builds(Host, name=IDS, location=IDS, version=VERSIONS, arrivals=st.integers(0, 1))
COMMITS = st.builds(
    Commit,
    scopes=some(SCOPE_ROWS),
    vms=some(VMS),
    events=some(EVENTS),
    hosts=some(HOSTS),
    removed_hosts=some(HOSTS),
    destinations=some(HOSTS),
    gates=some(GATES),
    wake_gates=some(IDS),
    requests=some(REQUESTS),
    planned=some(st.builds(sample_planned_event, IDS, gate_id=IDS, request_id=IDS)),
    unplanned=some(IDS),
    measurements=some(st.builds(sample_measurement, TIMES, request_id=IDS)),
    saved=some(st.builds(SavedValue, IDS, st.binary(max_size=3))),
    entries=some(st.builds(sample_history_entry, IDS, at=TIMES, scope_id=SCOPES, event_id=IDS, request_id=IDS, vm=IDS)),
)


@cache
def empty_file() -> bytes:
    """Return the bytes of a new store; created once, because copying is faster."""
    with tempfile.TemporaryDirectory(prefix="forewarn-") as folder:
        path = Path(folder) / "empty.db"
        sqlite_file.prepare_store_file(path)
        return path.read_bytes()


def everything(store: Store) -> dict[str, Any]:
    ids = ["a", "B", "ü"]
    return {
        "scopes": [store.scope(scope_id) for scope_id in store.scope_ids()],
        "vms": [store.vms(), store.vms(removed=True), store.vms(host="h1"), store.vms(scope_id=SAMPLE_SCOPE_ID)],
        "hosts": store.hosts(),
        "versions": store.scope_versions(),
        "events": [
            store.events(),
            store.events(scope_id=SAMPLE_SCOPE_ID, statuses=[EventState.OVER]),
            store.events(limit=2),
        ],
        "over": [
            store.events_ended_between(1.0, 2.0, limit=2),
            store.events_ended_between(0.0, 9.0, limit=2, newest=False),
        ],
        "gates": [store.gate(gate_id) for gate_id in ids],
        "requests": [store.requests(), store.requests(open_only=True), store.requests(limit=1)],
        "planned": [store.planned(), store.planned(request_id="a"), store.events_behind_gates(["B", "a"])],
        "due": [store.due_scopes(1.0), store.due_gates(2.5), store.due_scopes(1e9, limit=1), store.next_wake_at()],
        "history": [
            store.history(),
            store.history(scope_id=SAMPLE_SCOPE_ID, limit=2),
            store.history(after=3, vm="ü"),
            store.history(before=4, limit=2),
        ],
        "deliveries": [store.deliveries(), store.deliveries(event_id="E0"), store.deliveries(vm="a")],
        "given": [store.events_given_before_start(["E00", "E11"]), store.events_given_before_start(["E11", "E5"])],
        "polls": [store.last_polls(), store.last_polls(scope_id=SAMPLE_SCOPE_ID)],
        "measurements": [store.measurements("a"), store.measurements("B", limit=1)],
        "saved": [store.load(name) for name in ids],
        "next": [store.entries_after(0, 2), store.entries_after(2, 100)],
        "last": store.last_seq(),
    }


class BothStores(RuleBasedStateMachine):
    @initialize()
    def open_both(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="forewarn-")
        self.path = Path(self.folder.name) / "store.db"
        self.path.write_bytes(empty_file())
        self.applied: list[list[AppliedCommit]] = [[], []]
        self.in_memory = MemoryStore()
        self.in_file = SqliteStore.open(self.path)
        self._subscribe()

    def _subscribe(self) -> None:
        self.in_memory.subscribe(self.applied[0].append)
        self.in_file.subscribe(self.applied[1].append)

    def _assert_same(self, call: Callable[[Store], Awaitable[Any]]) -> None:
        async def answer(store: Store) -> Any:
            try:
                return await call(store)
            except ForewarnError as error:
                return type(error), str(error)

        assert self.runner.run(answer(self.in_file)) == self.runner.run(answer(self.in_memory))

    @rule(commit=COMMITS)
    def commit(self, commit: Commit) -> None:
        self._assert_same(lambda store: store.commit(commit))

    @rule(scope_id=SCOPES, epoch=st.integers(0, 9), at=OPTIONAL_TIMES)
    def commit_what_was_read(self, scope_id: str, epoch: int, at: float | None) -> None:
        scope = self.in_memory.scope(scope_id) or Scope(id=scope_id)
        self._assert_same(lambda store: store.commit(Commit(scopes=(replace_fields(scope, epoch=epoch, wakes_at=at),))))

    @rule(
        polls=some(st.builds(sample_poll, IDS, TIMES, scope_id=SCOPES)),
        deliveries=some(st.builds(sample_delivery, st.sampled_from(["E00", "E11"]), IDS, at=TIMES)),
    )
    def observe(self, polls: Any, deliveries: Any) -> None:
        self._assert_same(lambda store: store.record_observations(polls, deliveries))

    @rule(name=IDS, value=st.binary(max_size=3))
    def save(self, name: str, value: bytes) -> None:
        self._assert_same(lambda store: store.save(name, value))

    @rule(before=TIMES)
    def prune(self, before: float) -> None:
        self._assert_same(lambda store: store.prune(before))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.in_file.close())
        self.in_file, self.in_memory = SqliteStore.open(self.path), self.in_memory.copy()
        self._subscribe()

    @invariant()
    def both_stores_have_equal_content(self) -> None:
        if hasattr(self, "runner"):
            assert everything(self.in_file) == everything(self.in_memory)
            assert self.applied[0] == self.applied[1]

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.in_file.close())
            self.runner.close()
            self.folder.cleanup()


TestBothStores = BothStores.TestCase
TestBothStores.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
