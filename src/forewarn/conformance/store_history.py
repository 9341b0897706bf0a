"""Conformance of a store: history, deliveries, polls and saved values."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.conformance.store_rows import (
    SAMPLE_SCOPE_ID,
    replace_fields,
    sample_delivery,
    sample_history_entry,
    sample_poll,
    sample_vm,
)
from forewarn.conformance.store_suite import StoreSuite
from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.scope import Scope
from forewarn.errors import Conflict
from forewarn.store.interface import Store


class StoreHistoryTests(StoreSuite):
    """Tests of the history, of deliveries and polls, and of saved values; part of `StoreConformance`."""

    def test_history_is_numbered_without_gaps(self) -> None:
        """`commit` numbers its entries from 1 on and returns the last number."""

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
        """`history` returns the entries that match all conditions, oldest first."""

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
        """`entries_after` returns the first `limit` entries above a number, oldest first, also after pruning."""

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
        """Of deliveries with the same event, VM and status, the one that was recorded first stays."""

        async def scenario(store: Store) -> None:
            first, started = sample_delivery("E"), sample_delivery("E", status=EventState.STARTED.value)
            other = sample_delivery("F", "web-1")
            await store.record_observations([], [first, replace_fields(first, at=99.0), other])
            await store.record_observations([], [started, replace_fields(first, at=98.0)])
            assert store.deliveries() == [first, started, other]
            assert store.deliveries(event_id="E") == [first, started]
            assert store.deliveries(vm="web-1") == [other]
            assert store.deliveries(event_id="F", vm="web-0") == []

        self.run_scenarios(scenario)

    def test_deliveries_are_sorted_by_time_event_vm_and_status(self) -> None:
        """`deliveries` sorts by time, then event id, VM and status, not by the order of recording."""

        async def scenario(store: Store) -> None:
            late, early = sample_delivery("E", at=1_700_000_000.1234567), sample_delivery("Z", at=19.25)
            statuses = (EventState.SCHEDULED.value, EventState.STARTED.value)
            same_time = [sample_delivery("F", vm, status=status) for vm in "ba" for status in reversed(statuses)]
            await store.record_observations([], [late, *same_time])
            await store.record_observations([], [early, sample_delivery("E", "b", version="2017-08-01", incarnation=9)])
            seen = [(delivery.event_id, delivery.vm, delivery.status) for delivery in store.deliveries()]
            assert seen == [
                ("Z", "web-0", EventState.SCHEDULED),
                ("E", "b", EventState.SCHEDULED),
                *(("F", vm, status) for vm in "ab" for status in statuses),
                ("E", "web-0", EventState.SCHEDULED),
            ]
            assert store.deliveries()[-1] == late

        self.run_scenarios(scenario)

    def test_the_latest_poll_of_each_vm_is_kept(self) -> None:
        """Of the polls of one VM, the one with the latest time stays, with its count and other fields."""

        async def scenario(store: Store) -> None:
            await store.record_observations([sample_poll("b", 10.0), sample_poll("a", 11.0, scope_id="other")], [])
            again = sample_poll("b", 20.0, count=7, agent="curl/8.1", wait_s=30)
            await store.record_observations([again, sample_poll("a", 9.0)], [])
            latest_a, latest_b = sample_poll("a", 11.0, scope_id="other"), again
            assert store.last_polls() == [latest_a, latest_b]
            assert store.last_polls(scope_id=SAMPLE_SCOPE_ID) == [latest_b]

        self.run_scenarios(scenario)

    def test_a_vm_that_is_removed_and_added_again_has_not_polled(self) -> None:
        """A removed VM keeps its last poll; a VM that is added under its key is another one, without a poll."""

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
        """`save` replaces the bytes under a name; `load` returns the latest, and None for an unknown name."""

        async def scenario(store: Store) -> None:
            await store.save("clock", b"1")
            await store.save("clock", b"2")
            assert store.load("clock") == b"2"
            assert store.load("other") is None

        self.run_scenarios(scenario)
