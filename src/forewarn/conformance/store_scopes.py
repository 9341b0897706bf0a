"""Conformance of a store: versions, subscribers, scopes, counts, and that every field is read back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forewarn.conformance.store_suite import (
    SAMPLE_SCOPE_ID,
    StoreSuite,
    finished_event,
    replace_fields,
    sample_delivery,
    sample_event,
    sample_history_entry,
    sample_planned_event,
    sample_poll,
    sample_request,
    sample_rollout,
    sample_vm,
)
from forewarn.core.cause import Verb
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Act, ActOutcome, EventState, Gate
from forewarn.core.fleet import AutoApproval, Host, HostHealth
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from forewarn.store.interface import AppliedCommit, Store, StoreCounts


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


class StoreScopeTests(StoreSuite):
    """Tests of scopes, of counts, and that every field is read back; part of `StoreConformance`."""

    def test_a_new_store_is_empty(self) -> None:
        """The queries of a new store find nothing: None, an empty result, or the sequence number 0."""

        async def scenario(store: Store) -> None:
            assert store.scope(SAMPLE_SCOPE_ID) is None
            assert store.vm("no") is None
            assert store.event("no") is None
            assert store.gate("no") is None
            assert store.request("no") is None
            assert store.load("no") is None
            assert not any((store.scope_ids(), store.vms(), store.hosts(), store.events(), store.requests()))
            assert not any((store.planned(), store.history(), store.deliveries(), store.last_polls()))
            assert store.client("no") is None
            assert not any((store.clients(), store.grants(), store.webhooks()))
            assert not any((store.due_scopes(1e12), store.due_gates(1e12)))
            assert store.next_wake_at() is None
            assert store.last_seq() == 0

        self.run_scenarios(scenario)

    def test_every_field_of_every_value_is_read_back(self) -> None:
        """Writes values of many kinds with many fields set, and reads them equal after reopening the store."""
        vm = sample_vm("web-0", tags={"a": "ü"}, auto_approve=AutoApproval(restart=True), removed_at=7.25)
        act = Act(id="E1:web-0", vm=vm.key, name="web-0", verb=Verb.REBOOT, event_id="E1", duration_s=9)
        event = sample_event(
            "E1", acts=(act, replace_fields(act, outcome=ActOutcome(ok=False, at=3.0, note="no"))), gate_id="g"
        )
        gate = Gate(id="g", request_id="r1", host="h1", released_at=0.1 + 0.2, wakes_at=None)
        host = Host(name="h1", location="north", zone="1", health=HostHealth.DEGRADED)
        entry = sample_history_entry(
            "it was", scope_id=SAMPLE_SCOPE_ID, event_id="E1", request_id="r1", vm="web-0", host="h1", actor="ann"
        )

        async def write(store: Store) -> None:
            rows = Commit(vms=(vm,), events=(event,), hosts=(host,), gates=(gate,), entries=(entry,))
            await store.commit(
                replace_fields(
                    rows, requests=(sample_rollout("r1", notice_s=1.5),), planned=(sample_planned_event("E2"),)
                )
            )
            await store.record_observations([sample_poll("web-0", 5.5)], [sample_delivery("E1")])
            await store.save("name", b"\x00\xff")

        async def read(store: Store) -> None:
            assert store.vm(vm.key) == vm
            assert store.event("E1") == event
            assert store.hosts() == [replace_fields(host, version=1)]
            assert store.gate("g") == replace_fields(gate, version=1)
            assert store.request("r1") == sample_rollout("r1", notice_s=1.5, version=1)
            assert store.planned() == [sample_planned_event("E2")]
            assert store.history() == [replace_fields(entry, seq=1)]
            assert store.last_polls() == [sample_poll("web-0", 5.5)]
            assert store.deliveries() == [sample_delivery("E1")]
            assert store.load("name") == b"\x00\xff"

        self.run_scenarios(write, read)

    def test_a_scope_consists_of_its_row_its_present_vms_and_its_live_events(self) -> None:
        """`scope` combines the row with its present VMs, as added, and its live events in order of `seq`."""
        row = Scope(
            id=SAMPLE_SCOPE_ID, epoch=2, incarnation=3, enabled_at=1.0, last_request_at=4.0, next_seq=9, wakes_at=5.0
        )
        vms = (
            sample_vm("b"),
            sample_vm("gone", removed_at=3.0),
            sample_vm("a"),
            sample_vm("elsewhere", availability_set="db"),
        )
        events = (
            sample_event("E3", seq=3),
            sample_event("E2", seq=2, status=EventState.STARTED),
            finished_event(sample_event("E1"), 1.0),
        )

        async def write(store: Store) -> None:
            await store.commit(Commit(scopes=(row,), vms=vms, events=events))

        async def read(store: Store) -> None:
            whole = replace_fields(row, version=1, vms=(vms[0], vms[2]), events=(events[1], events[0]))
            assert store.scope(SAMPLE_SCOPE_ID) == whole
            assert store.scope_ids() == [SAMPLE_SCOPE_ID]

        self.run_scenarios(write, read)

    def test_reading_all_scopes_gives_the_same_as_reading_each(self) -> None:
        """`scopes` yields what `scope` returns for each id, in the order of `scope_ids`."""
        rows = (Scope(id="b", enabled_at=1.0), Scope(id=SAMPLE_SCOPE_ID, incarnation=3, wakes_at=5.0), Scope(id="a"))
        vms = (
            sample_vm("z"),
            sample_vm("gone", removed_at=3.0),
            sample_vm("y"),
            sample_vm("elsewhere", availability_set="db"),
        )
        events = (
            sample_event("E3", seq=3),
            sample_event("E2", seq=2, status=EventState.STARTED),
            finished_event(sample_event("E1"), 1.0),
        )

        async def write(store: Store) -> None:
            await store.commit(Commit(scopes=rows, vms=vms, events=(*events, sample_event("E4", scope_id="b", seq=1))))

        async def read(store: Store) -> None:
            assert list(store.scopes()) == [store.scope(scope_id) for scope_id in store.scope_ids()]
            assert store.scope_ids(enabled=True) == ["b"]
            assert store.scope_ids(enabled=False) == sorted(["a", SAMPLE_SCOPE_ID])

        self.run_scenarios(write, read)

    def test_reading_all_scopes_gives_a_snapshot(self) -> None:
        """A commit after the call of `scopes` does not change what its result yields."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id="a"), Scope(id="b"))))
            scopes = store.scopes()
            await store.commit(Commit(scopes=(Scope(id="b", version=1, incarnation=7),)))
            assert [(scope.id, scope.incarnation) for scope in scopes] == [("a", 0), ("b", 0)]

        self.run_scenarios(scenario)

    def test_counts_cover_present_vms_and_live_events_only(self) -> None:
        """`counts` gives the numbers of scopes, hosts, VMs that are not removed, and events that are not over."""
        vms = (sample_vm("a"), sample_vm("b"), sample_vm("gone", removed_at=3.0))
        events = (
            sample_event("E1"),
            sample_event("E2", seq=2, status=EventState.STARTED),
            finished_event(sample_event("E3"), 1.0),
        )

        async def scenario(store: Store) -> None:
            assert store.counts() == StoreCounts(vms=0, scopes=0, hosts=0, events=0)
            hosts = (Host(name="h1", location="north"),)
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),), vms=vms, events=events, hosts=hosts))
            assert store.counts() == StoreCounts(vms=2, scopes=1, hosts=1, events=2)
            await store.commit(Commit(vms=(sample_vm("a", removed_at=4.0),), removed_hosts=tuple(store.hosts())))
            assert store.counts() == StoreCounts(vms=1, scopes=1, hosts=0, events=2)

        self.run_scenarios(scenario)

    def test_enabled_scopes_are_counted(self) -> None:
        """`enabled_scope_count` counts the scopes that have an `enabled_at`."""

        async def scenario(store: Store) -> None:
            assert store.enabled_scope_count() == 0
            ids = (SAMPLE_SCOPE_ID, "other", "disabled")
            rows = tuple(Scope(id=id_, enabled_at=None if id_ == "disabled" else 1.0) for id_ in ids)
            await store.commit(Commit(scopes=rows))
            assert store.enabled_scope_count() == 2
            assert store.failed_writes() == 0

        self.run_scenarios(scenario)

    def test_committing_a_scope_writes_only_its_row(self) -> None:
        """VMs, events and new entries inside a committed `Scope` are not stored: only its own row is."""

        async def scenario(store: Store) -> None:
            carried: dict[str, Any] = {
                "vms": (sample_vm("a"),),
                "events": (sample_event("E1"),),
                "new_entries": (sample_history_entry("x"),),
            }
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID, **carried),)))
            assert store.scope(SAMPLE_SCOPE_ID) == Scope(id=SAMPLE_SCOPE_ID, version=1)
            assert store.last_seq() == 0

        self.run_scenarios(scenario)

    def test_the_last_request_time_of_a_scope_never_decreases(self) -> None:
        """Spec §8.2: the 24 hours count from the last request, which commits and observations both write."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),)))
            await store.record_observations([sample_poll("a", 50.0), sample_poll("b", 40.0, scope_id="unknown")], [])
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID, version=1, last_request_at=30.0),)))
            assert store.scope(SAMPLE_SCOPE_ID) == Scope(id=SAMPLE_SCOPE_ID, version=2, last_request_at=50.0)
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID, version=2),)))
            await store.record_observations([sample_poll("a", 45.0)], [])
            assert store.scope(SAMPLE_SCOPE_ID) == Scope(id=SAMPLE_SCOPE_ID, version=3, last_request_at=50.0)

        self.run_scenarios(scenario)
