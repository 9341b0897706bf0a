"""Conformance of a store: queries for VMs, hosts, events, gates, requests, clients and webhooks."""

from __future__ import annotations

import pytest

from forewarn.conformance.store_suite import (
    LIVE_STATUSES,
    SAMPLE_SCOPE_ID,
    StoreSuite,
    finished_event,
    replace_fields,
    sample_event,
    sample_measurement,
    sample_planned_event,
    sample_request,
    sample_rollout,
    sample_vm,
)
from forewarn.core.access import Grant, RegisteredClient, Role
from forewarn.core.azure_windows import AzureWindow, MaintenanceScope, parse_azure_window
from forewarn.core.commit import Commit
from forewarn.core.event import EventState, Gate
from forewarn.core.fleet import Host, HostHealth
from forewarn.core.health import MAX_MEASUREMENTS
from forewarn.core.maintenance_configuration import (
    AssignmentFilter,
    ConfigurationAssignment,
    MaintenanceConfiguration,
)
from forewarn.core.scope import Scope
from forewarn.core.webhook import EventGridStatus, WebhookCursor, WebhookSchema, WebhookSubscription
from forewarn.errors import Conflict
from forewarn.store.interface import Store


def _loaded_scope(store: Store) -> Scope:
    scope = store.scope(SAMPLE_SCOPE_ID)
    assert scope is not None
    return scope


class StoreQueryTests(StoreSuite):
    """Tests of queries for VMs, hosts, events, gates, requests, clients, grants and webhooks."""

    def test_vms_keep_the_order_they_were_added_in(self) -> None:
        """`vms` and the VMs of a scope keep the order of addition when a VM changes."""

        async def scenario(store: Store) -> None:
            await store.commit(
                Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),), vms=(sample_vm("c"), sample_vm("a"), sample_vm("b")))
            )
            await store.commit(Commit(vms=(sample_vm("c", host="h2"), sample_vm("a", removed_at=1.0))))
            assert [vm.name for vm in store.vms()] == ["c", "b"]
            assert [vm.name for vm in store.vms(removed=True)] == ["c", "a", "b"]
            await store.commit(Commit(vms=(sample_vm("a"), sample_vm("c", availability_set="db"))))
            assert [vm.name for vm in store.vms()] == ["b", "a", "c"]
            assert [vm.name for vm in _loaded_scope(store).vms] == ["b", "a"]

        self.run_scenarios(scenario)

    def test_a_long_read_sees_what_is_committed_and_passes_its_errors_on(self) -> None:
        """`read_in_thread` gives a function a store with the committed rows; it passes result and error on."""

        def fail(reader: Store) -> None:
            raise Conflict(f"{len(reader.vms())} VM")

        async def scenario(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),), vms=(sample_vm("a"),)))
            assert await store.read_in_thread(lambda reader: [vm.name for vm in reader.vms()]) == ["a"]
            with pytest.raises(Conflict, match=r"^1 VM$"):
                await store.read_in_thread(fail)

        self.run_scenarios(scenario)

    def test_vms_with_a_program_are_found(self) -> None:
        """`vms_with_program` returns present VMs that have one, in the order they were added."""

        async def scenario(store: Store) -> None:
            vms = (
                sample_vm("c", program=("sleep", "9")),
                sample_vm("a", tags={"program": "none"}),
                sample_vm("b", program=("true",)),
                sample_vm("d", program=("true",), removed_at=1.0),
            )
            await store.commit(Commit(vms=vms))
            assert store.vms_with_program() == [vms[0], vms[2]]

        self.run_scenarios(scenario)

    def test_vms_are_found_by_scope_and_by_host(self) -> None:
        """`vms` returns those that match scope and host, removed ones only if asked; `vm` finds any by key."""

        async def scenario(store: Store) -> None:
            vms = (
                sample_vm("a"),
                sample_vm("b", host="h2"),
                sample_vm("c", availability_set="db"),
                sample_vm("d", removed_at=1.0),
            )
            await store.commit(Commit(vms=vms))
            assert [vm.name for vm in store.vms(scope_id=SAMPLE_SCOPE_ID)] == ["a", "b"]
            assert [vm.name for vm in store.vms(host="h1")] == ["a", "c"]
            assert [vm.name for vm in store.vms(scope_id=SAMPLE_SCOPE_ID, host="h1", removed=True)] == ["a", "d"]
            assert store.vm(vms[3].key) == vms[3]

        self.run_scenarios(scenario)

    def test_hosts_are_added_changed_and_removed(self) -> None:
        """`hosts` is sorted by name; a new host has version 1, a change raises it, a removed host is gone."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(hosts=(Host(name="h2", location="l"), Host(name="h1", location="l"))))
            h1, h2 = store.hosts()
            assert (h1.name, h1.version, h2.name, h2.version) == ("h1", 1, "h2", 1)
            failed = replace_fields(h2, health=HostHealth.FAILED)
            await store.commit(Commit(hosts=(failed,), removed_hosts=(h1,)))
            assert store.hosts() == [replace_fields(failed, version=2)]

        self.run_scenarios(scenario)

    def test_a_change_of_a_host_conflicts_with_one_decided_on_an_earlier_version(self) -> None:
        """A commit that adds an existing host, or uses an outdated or unknown one, raises Conflict."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(hosts=(Host(name="h", location="l"),)))
            (host,) = store.hosts()
            await store.commit(Commit(hosts=(replace_fields(host, health=HostHealth.FAILED),)))
            for late in (
                Commit(hosts=(Host(name="h", location="l"),)),  # it exists already
                Commit(hosts=(Host(name="H", location="l"),)),  # its name differs only in case
                Commit(hosts=(host,)),
                Commit(removed_hosts=(host,)),
                Commit(destinations=(host,)),
                Commit(destinations=(Host(name="unknown", location="l"),)),
                Commit(removed_hosts=(Host(name="unknown", location="l"),)),
            ):
                with pytest.raises(Conflict, match="host"):
                    await store.commit(late)
            assert [(h.version, h.health) for h in store.hosts()] == [(2, HostHealth.FAILED)]

        self.run_scenarios(scenario)

    def test_a_move_to_a_host_conflicts_with_its_change_but_not_with_other_moves(self) -> None:
        """Spec §6.4: a VM must not be sent to a host that fails or is removed in the meantime."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(hosts=(Host(name="h", location="l"),)))
            (decided_on,) = store.hosts()
            await store.commit(Commit(destinations=(decided_on,)))
            await store.commit(Commit(destinations=(decided_on, decided_on)))
            for late in (Commit(hosts=(decided_on,)), Commit(removed_hosts=(decided_on,))):
                with pytest.raises(Conflict, match="VMs have come to host 'h'"):
                    await store.commit(late)
            (host,) = store.hosts()
            assert (host.version, host.arrivals) == (1, 3)
            await store.commit(Commit(removed_hosts=(host,)))

        self.run_scenarios(scenario)

    def test_events_are_found_oldest_first(self) -> None:
        """`events` returns those that match scope, request, gate and statuses, in the order of addition."""

        async def scenario(store: Store) -> None:
            e1, e2 = sample_event("Z", request_id="r1", gate_id="g"), sample_event("Y", request_id="r2", gate_id="g")
            e3 = finished_event(sample_event("X", scope_id="other", request_id="r2"), 5.0)
            await store.commit(Commit(events=(e1, e2)))
            await store.commit(Commit(events=(e3,)))
            e1 = replace_fields(e1, approved_at=3.0)
            await store.commit(Commit(events=(e1,)))
            assert store.events() == [e1, e2, e3]
            assert store.events(limit=2) == [e2, e3]
            assert store.events(limit=0) == []
            assert store.events(scope_id=SAMPLE_SCOPE_ID) == [e1, e2]
            assert store.events(request_id="r2") == [e2, e3]
            assert store.events(gate_id="g", statuses=LIVE_STATUSES, limit=1) == [e2]
            assert store.events(statuses=[EventState.OVER]) == [e3]
            assert store.events(statuses=[]) == []

        self.run_scenarios(scenario)

    def test_waking_a_gate_makes_earlier_decisions_about_it_conflict(self) -> None:
        """Spec §6.2: a gate must not miss an event that became ready while the gate was being decided."""

        async def scenario(store: Store) -> None:
            await store.commit(Commit(gates=(Gate(id="g", request_id="r", host="h", wakes_at=None),)))
            decided_on = store.gate("g")
            assert decided_on is not None
            assert store.due_gates(1e12) == []
            await store.commit(Commit(wake_gates=("g", "unknown")))
            assert [gate.id for gate in store.due_gates(0.0)] == ["g"]
            assert store.gate("unknown") is None
            with pytest.raises(Conflict):
                await store.commit(Commit(gates=(decided_on,)))

        self.run_scenarios(scenario)

    def test_due_scopes_and_gates_come_in_time_order(self) -> None:
        """`due_scopes` and `due_gates` return up to `limit` that wake at or before a time, earliest first."""

        async def scenario(store: Store) -> None:
            scopes = [("a", 30.0), ("b", 10.0), ("c", None), ("d", 10.0)]
            gates = tuple(Gate(id=f"g{at}", request_id="r", host="h", wakes_at=at) for at in (9.0, 7.0))
            await store.commit(Commit(scopes=tuple(Scope(id=id_, wakes_at=at) for id_, at in scopes), gates=gates))
            assert store.due_scopes(9.9) == []
            assert store.due_scopes(10.0) == ["b", "d"]
            assert store.due_scopes(99.0) == ["b", "d", "a"]
            assert store.due_scopes(99.0, limit=1) == ["b"]
            assert [gate.id for gate in store.due_gates(9.0)] == ["g7.0", "g9.0"]
            assert [gate.version for gate in store.due_gates(8.0, limit=1)] == [1]
            assert store.next_wake_at() == 7.0
            done = tuple(replace_fields(gate, version=1, wakes_at=None) for gate in gates)
            await store.commit(Commit(gates=done))
            assert store.next_wake_at() == 10.0

        self.run_scenarios(scenario)

    def test_requests_are_found_oldest_first(self) -> None:
        """`requests` returns them in the order they were first stored; `limit` keeps the newest."""

        async def scenario(store: Store) -> None:
            closed, open_ = sample_request("z", requested_at=9.0), sample_rollout("y", requested_at=1.0)
            await store.commit(Commit(requests=(closed,)))
            await store.commit(Commit(requests=(open_, sample_rollout("x"))))
            assert [request.id for request in store.requests()] == ["z", "y", "x"]
            assert [request.id for request in store.requests(open_only=True)] == ["y", "x"]
            assert [request.id for request in store.requests(limit=1)] == ["x"]
            await store.commit(Commit(requests=(sample_rollout("y", closed=True, version=1),)))
            assert [(r.id, r.version) for r in store.requests(open_only=True)] == [("x", 1)]

        self.run_scenarios(scenario)

    def test_ended_events_are_found_by_the_time_they_ended(self) -> None:
        """`events_ended_between` includes both ends and sorts by the time of the end, the earliest first."""

        async def scenario(store: Store) -> None:
            late, soon, twin = (
                finished_event(sample_event(name), at) for name, at in (("A", 9.0), ("B", 5.0), ("C", 5.0))
            )
            await store.commit(Commit(events=(late, sample_event("live"), soon, twin)))
            assert store.events_ended_between(0.0, 10.0, limit=9) == [soon, twin, late]
            assert store.events_ended_between(5.0, 9.0, limit=2) == [twin, late]
            assert store.events_ended_between(5.0, 9.0, limit=2, newest=False) == [soon, twin]
            assert store.events_ended_between(5.5, 8.5, limit=9) == []
            assert store.events_ended_between(0.0, 10.0, limit=0) == []

        self.run_scenarios(scenario)

    def test_events_behind_several_gates_are_found_with_one_query(self) -> None:
        """`events_behind_gates` returns the scheduled events of these gates, oldest first."""

        async def scenario(store: Store) -> None:
            e1, e2, e3 = (
                sample_event("Z", gate_id="g1"),
                sample_event("Y", gate_id="g2"),
                sample_event("X", gate_id="g1"),
            )
            others = (
                sample_event("W", gate_id="g3"),
                sample_event("V"),
                finished_event(sample_event("U", gate_id="g1"), 5.0),
            )
            await store.commit(Commit(events=(e1, e2, e3, *others)))
            await store.commit(
                Commit(
                    planned=(
                        sample_planned_event("P1", gate_id="g2"),
                        sample_planned_event("P2", gate_id="g3"),
                        sample_planned_event("P3"),
                    )
                )
            )
            assert store.events_behind_gates(["g1", "g2", "unknown"]) == ([e1, e2, e3], {"g2"})
            assert store.events_behind_gates([]) == ([], set())

        self.run_scenarios(scenario)

    def test_planned_events_are_kept_until_they_are_unplanned(self) -> None:
        """`planned` returns planned events in the order they were added, and filters by request."""

        async def scenario(store: Store) -> None:
            p1, p2, p3 = (
                sample_planned_event("P2"),
                sample_planned_event("P1", gate_id="g"),
                sample_planned_event("P0", request_id="r2"),
            )
            await store.commit(Commit(planned=(p1, p2, p3)))
            assert store.planned() == [p1, p2, p3]
            assert store.planned(request_id="r1") == [p1, p2]
            assert store.events_behind_gates(["g"]).gates_with_planned == {"g"}
            p2 = replace_fields(p2, notice_s=5.0)
            await store.commit(
                Commit(planned=(p2, sample_planned_event("at once")), unplanned=("P2", "at once", "unknown"))
            )
            assert store.planned() == [p2, p3]

        self.run_scenarios(scenario)

    def test_clients_and_grants_are_stored_replaced_and_removed(self) -> None:
        """Clients and grants survive reopening and are removed by id; a client is replaced by id."""
        one = RegisteredClient(id="app", secret_hash=b"\x00\xff", name="An app", created_by="ann", created_at=1.5)
        two = RegisteredClient(id="bot", secret_hash=b"h")
        read = Grant(id="g1", role=Role.READER, principal="client:app", resource="/", granted_by="ann", granted_at=2.5)
        run = Grant(id="g2", role=Role.OPERATOR, principal="client:bot", resource="/subscriptions/s")

        async def first(store: Store) -> None:
            await store.commit(Commit(clients=(two, one), grants=(read, run)))

        async def second(store: Store) -> None:
            assert store.clients() == [one, two]
            assert store.client("app") == one
            assert store.grants() == [read, run]
            assert store.grants(principal="client:bot") == [run]
            await store.commit(Commit(clients=(replace_fields(one, name="New"),), removed_clients=("bot",)))
            await store.commit(Commit(removed_grants=("g2", "never there")))

        async def third(store: Store) -> None:
            assert store.clients() == [replace_fields(one, name="New")]
            assert store.grants() == [read]

        self.run_scenarios(first, second, third)

    def test_measurements_are_returned_in_order_and_only_the_newest_of_each_rollout_are_kept(self) -> None:
        """`measurements` returns those of one rollout, oldest first, also after reopening."""
        many = tuple(sample_measurement(float(n), request_id="r1") for n in range(MAX_MEASUREMENTS + 2))
        other = sample_measurement(0.5, request_id="r2")

        async def first(store: Store) -> None:
            assert store.measurements("r1") == []
            await store.commit(Commit(measurements=(*many[:2], other)))
            assert store.measurements("r1") == list(many[:2])
            await store.commit(Commit(measurements=many[2:]))

        async def second(store: Store) -> None:
            assert store.measurements("r1") == list(many[2:])
            assert store.measurements("r1", limit=2) == list(many[-2:])
            assert store.measurements("r2") == [other]

        self.run_scenarios(first, second)

    def test_a_webhook_cursor_only_moves_forward_and_restores_no_removed_webhook(self) -> None:
        """A cursor with a lower number changes nothing, and one of a removed webhook does not bring it back."""
        hook = WebhookSubscription(
            id="w1",
            url="https://x",
            secret="s",
            schema=WebhookSchema.CLOUD_EVENTS,
            statuses=(EventGridStatus.STARTED,),
        )
        other = WebhookSubscription(
            id="w0", url="https://y", secret="t", resource="/subscriptions/s", opted_in_only=True, cursor=7
        )

        async def first(store: Store) -> None:
            await store.commit(Commit(webhooks=(hook, other)))
            await store.commit(
                Commit(cursors=(WebhookCursor(webhook_id="w1", seq=5), WebhookCursor(webhook_id="w0", seq=3)))
            )

        async def second(store: Store) -> None:
            assert store.webhooks() == [replace_fields(hook, cursor=5), other]
            await store.commit(Commit(removed_webhooks=("w1",)))
            await store.commit(Commit(cursors=(WebhookCursor(webhook_id="w1", seq=9),)))
            assert store.webhooks() == [other]

        self.run_scenarios(first, second)

    def test_maintenance_configurations_and_assignments_are_kept_by_key(self) -> None:
        """A configuration replaces the one whose id differs only in letter case, even after reopening."""
        words = AzureWindow(start="2026-12-05 02:00", time_zone="UTC", duration="02:00", recur_every="Week Saturday")
        nightly = MaintenanceConfiguration(
            id="/subscriptions/S/b",
            location="westeurope",
            maintenance_scope=MaintenanceScope.HOST,
            azure_window=words,
            window=parse_azure_window(words, MaintenanceScope.HOST),
            tags={"team": "shop"},
            install_patches={"rebootSetting": "Always"},
        )
        other = replace_fields(nightly, id="/subscriptions/S/A")
        filtered = AssignmentFilter(locations=("westeurope",), tags={"team": ("shop", "web")}, needs_all_tags=True)
        first_one = ConfigurationAssignment(id="/x", target="/subscriptions/S", configuration_id=nightly.id)
        second_one = replace_fields(first_one, id="/a", filter=filtered)

        async def first(store: Store) -> None:
            await store.commit(Commit(configurations=(nightly, other), assignments=(first_one, second_one)))
            await store.commit(Commit(configurations=(replace_fields(nightly, id="/SUBSCRIPTIONS/s/B"),)))

        async def second(store: Store) -> None:
            assert store.configurations() == [other, replace_fields(nightly, id="/SUBSCRIPTIONS/s/B")]
            assert store.assignments() == [second_one, first_one]
            await store.commit(Commit(removed_configurations=(other.key, "none"), removed_assignments=("/x", "none")))

        async def third(store: Store) -> None:
            assert [configuration.key for configuration in store.configurations()] == [nightly.key]
            assert store.assignments() == [second_one]

        self.run_scenarios(first, second, third)
