"""Conformance of a store: history, deliveries, polls, saved values, and pruning."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.conformance.store_rows import (
    SAMPLE_SCOPE_ID,
    finished_event,
    replace_fields,
    sample_delivery,
    sample_event,
    sample_history_entry,
    sample_poll,
    sample_rollout,
    sample_vm,
)
from forewarn.conformance.store_suite import StoreSuite
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict
from forewarn.store.interface import Store


class StoreHistoryTests(StoreSuite):
    """Tests of the history, of deliveries and polls, of saved values, and of pruning."""

    def test_history_is_numbered_without_gaps(self) -> None:
        async def scenario(store: Store) -> None:
            assert await store.commit(Commit(entries=(sample_history_entry("a"), sample_history_entry("b")))) == 2
            assert await store.commit(Commit()) == 2
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id="x", version=1),), entries=(sample_history_entry("never"),)))
            assert await store.commit(Commit(entries=(sample_history_entry("c", seq=77),))) == 3
            assert [(entry.seq, entry.text) for entry in store.history()] == [(1, "a"), (2, "b"), (3, "c")]
            assert store.last_seq() == 3

        self.run_scenarios(scenario)

    def test_history_is_filtered_by_scope_event_request_and_vm(self) -> None:
        async def scenario(store: Store) -> None:
            a = sample_history_entry("a", scope_id="s", event_id="e", request_id="r", vm="v")
            b, c = (
                sample_history_entry("b", scope_id="s", vm="v"),
                sample_history_entry("c", scope_id="s", event_id="e"),
            )
            await store.commit(Commit(entries=(a, b, c)))

            def texts(**wanted: Any) -> str:
                return "".join(entry.text for entry in store.history(**wanted))

            assert texts(scope_id="s") == "abc"
            assert texts(event_id="e") == "ac"
            assert texts(request_id="r") == "a"
            assert texts(vm="v") == "ab"
            assert texts(vm="v", event_id="e") == "a"
            assert texts(scope_id="t") == ""
            assert texts(after=1) == "bc"
            assert texts(limit=2) == "bc"
            assert texts(scope_id="s", after=1, limit=1) == "c"
            assert texts(before=3) == "ab"
            assert texts(scope_id="s", before=3, limit=1) == "b"
            assert texts(after=1, before=3) == "b"
            assert texts(scope_id="s", limit=2, newest=False) == "ab"
            assert texts(scope_id="s", newest=False) == "abc"

        self.run_scenarios(scenario)

    def test_entries_after_a_sequence_number_are_oldest_first_and_limited(self) -> None:
        async def scenario(store: Store) -> None:
            entries = tuple(sample_history_entry(text, at=at) for at, text in enumerate("abcde"))
            await store.commit(Commit(entries=entries))

            def texts(seq: int, limit: int) -> str:
                return "".join(entry.text for entry in store.entries_after(seq, limit))

            assert texts(0, 2) == "ab"
            assert texts(2, 2) == "cd"
            assert texts(4, 2) == "e"
            assert texts(5, 2) == ""
            await store.prune(2.0)
            assert texts(0, 2) == "cd"
            assert [entry.seq for entry in store.entries_after(0, 9)] == [3, 4, 5]

        self.run_scenarios(scenario)

    def test_only_the_first_delivery_of_a_status_is_kept(self) -> None:
        async def scenario(store: Store) -> None:
            first, started = sample_delivery("E"), sample_delivery("E", status="Started")
            await store.record_observations([], [first, replace_fields(first, at=99.0), sample_delivery("F", "web-1")])
            await store.record_observations([], [started, replace_fields(first, at=98.0)])
            assert store.deliveries() == [first, sample_delivery("F", "web-1"), started]
            assert store.deliveries(event_id="E") == [first, started]
            assert store.deliveries(vm="web-1") == [sample_delivery("F", "web-1")]

        self.run_scenarios(scenario)

    def test_the_latest_poll_of_each_vm_is_kept(self) -> None:
        async def scenario(store: Store) -> None:
            await store.record_observations([sample_poll("b", 10.0), sample_poll("a", 11.0, scope_id="other")], [])
            again = sample_poll("b", 20.0, count=7, agent="curl/8.1", wait_s=30)
            await store.record_observations([again, sample_poll("a", 9.0)], [])
            latest_a, latest_b = sample_poll("a", 11.0, scope_id="other"), again
            assert store.last_polls() == [latest_a, latest_b]
            assert store.last_polls(scope_id=SAMPLE_SCOPE_ID) == [latest_b]

        self.run_scenarios(scenario)

    def test_a_vm_that_is_removed_and_added_again_has_not_polled(self) -> None:
        """A removed VM keeps its last poll; the VM that is added under its key is another one."""

        async def scenario(store: Store) -> None:
            web, other = sample_vm("web-0"), sample_vm("web-1")
            await store.commit(Commit(vms=(web, other)))
            polls = [sample_poll(web.key, 10.0), sample_poll(other.key, 10.0)]
            await store.record_observations(polls, [])
            await store.commit(Commit(vms=(replace_fields(web, removed_at=11.0), replace_fields(other, host="h2"))))
            assert store.last_polls() == polls
            await store.commit(Commit(vms=(replace_fields(web, vm_id="another id"), other)))
            assert store.last_polls() == polls[1:]
            await store.record_observations([sample_poll(web.key, 9.0)], [])
            assert store.last_polls() == [sample_poll(web.key, 9.0), polls[1]]

        self.run_scenarios(scenario)

    def test_a_saved_value_is_replaced(self) -> None:
        async def scenario(store: Store) -> None:
            await store.save("clock", b"1")
            await store.save("clock", b"2")
            assert store.load("clock") == b"2"
            assert store.load("other") is None

        self.run_scenarios(scenario)

    def test_pruning_removes_old_entries_and_ended_events_but_no_live_event(self) -> None:
        """Spec §5.2: an event that is over stays known for a while; a live event always stays."""

        async def scenario(store: Store) -> None:
            past, recent, live = (
                finished_event(sample_event("E1"), 9.0),
                finished_event(sample_event("E2"), 10.0),
                sample_event("E3"),
            )
            entries = tuple(sample_history_entry(str(at), at=at) for at in (8.0, 10.0, 9.0))
            await store.commit(Commit(events=(past, recent, live), entries=entries))
            await store.record_observations([], [sample_delivery(event.id) for event in (past, recent, live)])
            assert await store.prune(10.0) == 2
            assert store.events() == [recent, live]
            assert store.event("E1") is None
            assert [delivery.event_id for delivery in store.deliveries()] == ["E2", "E3"]
            assert [entry.seq for entry in store.history()] == [2]
            assert await store.prune(99.0) == 1
            assert store.events() == [live]
            assert store.history() == []
            assert store.last_seq() == 3
            assert await store.commit(Commit(entries=(sample_history_entry("next"),))) == 4

        self.run_scenarios(scenario)

    def test_pruning_keeps_the_events_of_an_open_rollout(self) -> None:
        """A rollout learns from its events which VMs are done; without them it would repeat those VMs (§6.2)."""

        async def scenario(store: Store) -> None:
            reached = finished_event(sample_event("E1", request_id="r1"), 9.0)
            await store.commit(Commit(requests=(sample_rollout("r1"),), events=(reached,)))
            await store.record_observations([], [sample_delivery("E1")])
            await store.prune(99.0)
            assert store.events(request_id="r1") == [reached]
            assert [delivery.event_id for delivery in store.deliveries()] == ["E1"]
            await store.commit(Commit(requests=(sample_rollout("r1", closed=True, version=1),)))
            await store.prune(99.0)
            assert store.events() == []
            assert store.deliveries() == []

        self.run_scenarios(scenario)
