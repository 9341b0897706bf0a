"""Conformance of a store: pruning deletes what is old, unless something that is kept refers to it."""

from __future__ import annotations

import pytest

from forewarn.conformance.store_rows import (
    finished_event,
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
from forewarn.conformance.store_suite import StoreSuite
from forewarn.core.commit import Commit
from forewarn.core.event import Event, Gate
from forewarn.core.request import PlannedEvent
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
