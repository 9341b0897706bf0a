"""Conformance of a store: pruning, history, deliveries, polls and saved values."""

from __future__ import annotations

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
    sample_measurement,
    sample_planned_event,
    sample_poll,
    sample_request,
    sample_rollout,
    sample_vm,
)
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope
from forewarn.errors import Conflict
from forewarn.store.interface import REPLAY_SCRIPT_PREFIX, Store


def _gate(request_id: str) -> Gate:
    return Gate(id=f"gate of {request_id}", request_id=request_id, host="h1", released_at=3.0, wakes_at=None)


class StorePruningTests(StoreSuite):
    """Tests of `prune`: what is deleted, and what is kept because something kept refers to it."""

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

    def test_pruning_removes_deliveries_of_events_that_are_not_stored_by_their_age(self) -> None:
        """A replay shows events that exist in no other row: the time of an event's first delivery counts."""

        async def scenario(store: Store) -> None:
            await store.record_observations([], [sample_delivery("old", at=9.0), sample_delivery("new", at=10.0)])
            await store.record_observations([], [sample_delivery("old", "web-1", at=11.0)])
            await store.prune(10.0)
            assert [delivery.event_id for delivery in store.deliveries()] == ["new"]

        self.run_scenarios(scenario)

    def test_pruning_removes_a_request_with_its_gate_and_its_script(self) -> None:
        """`prune` deletes requests made before the given time, their gates, and their saved replay scripts."""

        async def scenario(store: Store) -> None:
            requests = (sample_request("old", requested_at=9.0), sample_request("new", requested_at=10.0))
            gates = tuple(_gate(request.id) for request in requests)
            await store.commit(Commit(requests=requests, gates=gates))
            for request in requests:
                await store.save(f"{REPLAY_SCRIPT_PREFIX}{request.id}", b"script")
            await store.save("old", b"another value")
            await store.prune(10.0)
            assert [request.id for request in store.requests()] == ["new"]
            assert store.request("old") is None
            assert [gate.id for gate in map(store.gate, ("gate of old", "gate of new")) if gate] == ["gate of new"]
            assert store.load(f"{REPLAY_SCRIPT_PREFIX}old") is None
            assert store.load(f"{REPLAY_SCRIPT_PREFIX}new") == b"script"
            assert store.load("old") == b"another value"

        self.run_scenarios(scenario)

    def test_pruning_removes_the_measurements_of_a_rollout_with_it(self) -> None:
        """`prune` deletes the measurements of the rollouts that it deletes."""

        async def scenario(store: Store) -> None:
            measurements = tuple(sample_measurement(0.0, request_id=request_id) for request_id in ("r1", "r2"))
            requests = (sample_rollout("r1", requested_at=1.0), sample_rollout("r2", requested_at=1.0, closed=True))
            await store.commit(Commit(requests=requests, measurements=measurements))
            await store.prune(99.0)
            assert store.measurements("r1") == [measurements[0]]
            assert store.measurements("r2") == []

        self.run_scenarios(scenario)

    @pytest.mark.parametrize(
        "reference",
        [
            Commit(events=(sample_event("E", request_id="r"),)),
            Commit(events=(finished_event(sample_event("E", request_id="r"), 10.0),)),
            Commit(planned=(sample_planned_event("E", request_id="r"),)),
            Commit(entries=(sample_history_entry("aborted", request_id="r", at=10.0),)),
            Commit(requests=(sample_rollout("r", requested_at=1.0, version=1),)),
        ],
        ids=["live event", "kept event", "planned event", "history entry", "open rollout"],
    )
    def test_pruning_keeps_a_request_that_something_kept_refers_to(self, reference: Commit) -> None:
        """An old request and its gate stay while what `reference` commits refers to the request."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(requests=(sample_request("r", requested_at=1.0),), gates=(_gate("r"),)))
            await store.commit(reference)
            await store.prune(10.0)
            assert store.request("r") is not None
            assert store.gate("gate of r") is not None

        self.run_scenarios(scenario)

    def test_pruning_keeps_a_gate_with_events_of_another_request(self) -> None:
        """`prune` deletes an old request, but not its gate while a live event of another request is behind it."""

        async def scenario(store: Store) -> None:
            event = sample_event("E", request_id="other", gate_id="gate of r")
            await store.commit(
                Commit(requests=(sample_request("r", requested_at=1.0),), gates=(_gate("r"),), events=(event,))
            )
            await store.prune(10.0)
            assert store.request("r") is None
            assert store.gate("gate of r") is not None

        self.run_scenarios(scenario)

    def test_pruning_removes_vms_that_were_removed_with_their_polls(self) -> None:
        """`prune` deletes VMs that were removed before the given time, and their last polls."""

        async def scenario(store: Store) -> None:
            vms = (sample_vm("old", removed_at=9.0), sample_vm("new", removed_at=10.0), sample_vm("present"))
            await store.commit(Commit(vms=vms))
            await store.record_observations([sample_poll(vm.key, 1.0) for vm in vms], [])
            await store.prune(10.0)
            assert [vm.name for vm in store.vms(removed=True)] == ["new", "present"]
            assert store.vm(vms[0].key) is None
            assert sorted(poll.vm for poll in store.last_polls()) == sorted(vm.key for vm in vms[1:])
            await store.commit(Commit(vms=(sample_vm("old"),)))
            assert [vm.name for vm in store.vms()] == ["present", "old"]

        self.run_scenarios(scenario)

    @pytest.mark.parametrize(
        "listing",
        [
            sample_event("E", vms=("web-1", "gone")),
            finished_event(sample_event("E", vms=("gone",)), 10.0),
            sample_planned_event("E", vms=("gone",)),
        ],
        ids=["live event", "kept event", "planned event"],
    )
    def test_pruning_keeps_a_removed_vm_that_an_event_lists(self, listing: Event | PlannedEvent) -> None:
        """A VM that was removed long ago stays while `listing`, a kept or planned event, names it; others go."""

        async def scenario(store: Store) -> None:
            gone, other = sample_vm("gone", removed_at=1.0), sample_vm("web-0", removed_at=1.0)
            is_event = isinstance(listing, Event)
            commit = Commit(events=(listing,)) if is_event else Commit(planned=(listing,))  # type: ignore[arg-type]
            await store.commit(commit)
            await store.commit(Commit(vms=(gone, other)))
            await store.prune(10.0)
            assert store.vms(removed=True) == [gone]

        self.run_scenarios(scenario)

    def test_pruning_keeps_a_removed_vm_that_a_kept_event_was_delivered_to(self) -> None:
        """A VM that was removed long ago stays until the events that were delivered to it are pruned too."""

        async def scenario(store: Store) -> None:
            gone, event = sample_vm("gone", removed_at=1.0), sample_event("E")
            await store.commit(Commit(vms=(gone,), events=(event,)))
            await store.record_observations([], [sample_delivery("E", gone.key)])
            await store.prune(10.0)
            assert store.vms(removed=True) == [gone]
            await store.commit(Commit(events=(finished_event(event, 11.0),)))
            await store.prune(12.0)
            assert store.vms(removed=True) == []
            assert store.deliveries() == []

        self.run_scenarios(scenario)


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
