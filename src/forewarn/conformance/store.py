"""The specification of a `Store`, as tests for whoever writes one.

Subclass it in a test module, say how yours is opened, and pytest does the rest:

    class TestMine(StoreConformance):
        def open(self) -> Store: ...
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forewarn.core.access import Client, Grant, Role
from forewarn.core.cause import Verb
from forewarn.core.change import Commit
from forewarn.core.event import Act, Outcome, Status
from forewarn.core.fleet import AutoApproval, Health, Host
from forewarn.core.gate import Gate
from forewarn.core.scope import Scope
from forewarn.core.webhook import Cursor, Happening, Schema, Webhook
from forewarn.errors import Conflict, Unavailable
from forewarn.store.seam import Committed, Counts, Store
from forewarn.testing.rows import (
    SCOPE,
    a_plan,
    a_poll,
    a_request,
    a_rollout,
    a_sighting,
    a_vm,
    an_entry,
    an_event,
    changed,
    over,
)

Story = Callable[[Store], Awaitable[None]]
LIVE = (Status.SCHEDULED, Status.STARTED)


class StoreConformance(ABC):
    @abstractmethod
    def open(self) -> Store:
        """Yours; opened again within one test, it finds what was committed before."""

    def play(self, *stories: Story) -> None:
        """Each story on the store opened anew."""
        for story in stories:
            asyncio.run(self._played(story))

    async def _played(self, story: Story) -> None:
        store = self.open()
        try:
            await story(store)
        finally:
            await store.close()

    def test_a_new_store_is_empty(self) -> None:
        async def story(store: Store) -> None:
            assert store.scope(SCOPE) is None
            assert store.vm("no") is None
            assert store.event("no") is None
            assert store.gate("no") is None
            assert store.request("no") is None
            assert store.saved("no") is None
            assert not any((store.scope_ids(), store.vms(), store.hosts(), store.events(), store.requests()))
            assert not any((store.planned(), store.history(), store.sightings(), store.polls()))
            assert store.client("no") is None
            assert not any((store.clients(), store.grants(), store.webhooks()))
            assert not any((store.due_scopes(1e12), store.due_gates(1e12)))
            assert store.next_wake() is None
            assert store.last_seq() == 0

        self.play(story)

    def test_every_fact_of_every_value_comes_back(self) -> None:
        vm = a_vm("web-0", tags={"a": "ü"}, auto_approve=AutoApproval(restart=True), removed_at=7.25)
        act = Act(id="E1:web-0", vm=vm.key, name="web-0", verb=Verb.REBOOT, event_id="E1", duration_s=9)
        event = an_event("E1", acts=(act, changed(act, outcome=Outcome(ok=False, at=3.0, note="no"))), gate_id="g")
        gate = Gate(id="g", request_id="r1", host="h1", released_at=0.1 + 0.2, wakes_at=None)
        host = Host(name="h1", location="north", zone="1", health=Health.DEGRADED)
        entry = an_entry("it was", scope_id=SCOPE, event_id="E1", request_id="r1", vm="web-0", host="h1", who="ann")

        async def write(store: Store) -> None:
            rows = Commit(vms=(vm,), events=(event,), hosts=(host,), gates=(gate,), entries=(entry,))
            await store.commit(changed(rows, requests=(a_rollout("r1", notice_s=1.5),), planned=(a_plan("E2"),)))
            await store.observe([a_poll("web-0", 5.5)], [a_sighting("E1")])
            await store.save("name", b"\x00\xff")

        async def read(store: Store) -> None:
            assert store.vm(vm.key) == vm
            assert store.event("E1") == event
            assert store.hosts() == [host]
            assert store.gate("g") == changed(gate, version=1)
            assert store.request("r1") == a_rollout("r1", notice_s=1.5, version=1)
            assert store.planned() == [a_plan("E2")]
            assert store.history() == [changed(entry, seq=1)]
            assert store.polls() == [a_poll("web-0", 5.5)]
            assert store.sightings() == [a_sighting("E1")]
            assert store.saved("name") == b"\x00\xff"

        self.play(write, read)

    def test_a_scope_is_its_row_its_present_vms_and_its_live_events(self) -> None:
        row = Scope(id=SCOPE, epoch=2, incarnation=3, enabled_at=1.0, last_request_at=4.0, next_seq=9, wakes_at=5.0)
        vms = (a_vm("b"), a_vm("gone", removed_at=3.0), a_vm("a"), a_vm("elsewhere", availability_set="db"))
        events = (an_event("E3", seq=3), an_event("E2", seq=2, status=Status.STARTED), over(an_event("E1"), 1.0))

        async def write(store: Store) -> None:
            await store.commit(Commit(scopes=(row,), vms=vms, events=events))

        async def read(store: Store) -> None:
            whole = changed(row, version=1, vms=(vms[0], vms[2]), events=(events[1], events[0]))
            assert store.scope(SCOPE) == whole
            assert store.scope_ids() == [SCOPE]

        self.play(write, read)

    def test_all_scopes_at_once_are_each_of_them(self) -> None:
        rows = (Scope(id="b", enabled_at=1.0), Scope(id=SCOPE, incarnation=3, wakes_at=5.0), Scope(id="a"))
        vms = (a_vm("z"), a_vm("gone", removed_at=3.0), a_vm("y"), a_vm("elsewhere", availability_set="db"))
        events = (an_event("E3", seq=3), an_event("E2", seq=2, status=Status.STARTED), over(an_event("E1"), 1.0))

        async def write(store: Store) -> None:
            await store.commit(Commit(scopes=rows, vms=vms, events=(*events, an_event("E4", scope_id="b", seq=1))))

        async def read(store: Store) -> None:
            assert list(store.scopes()) == [store.scope(scope_id) for scope_id in store.scope_ids()]
            assert store.scope_ids(enabled=True) == ["b"]
            assert store.scope_ids(enabled=False) == sorted(["a", SCOPE])

        self.play(write, read)

    def test_all_scopes_at_once_are_those_of_the_moment_of_asking(self) -> None:
        async def story(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id="a"), Scope(id="b"))))
            scopes = store.scopes()
            await store.commit(Commit(scopes=(Scope(id="b", version=1, incarnation=7),)))
            assert [(scope.id, scope.incarnation) for scope in scopes] == [("a", 0), ("b", 0)]

        self.play(story)

    def test_it_counts_what_there_is_now(self) -> None:
        vms = (a_vm("a"), a_vm("b"), a_vm("gone", removed_at=3.0))
        events = (an_event("E1"), an_event("E2", seq=2, status=Status.STARTED), over(an_event("E3"), 1.0))

        async def story(store: Store) -> None:
            assert store.counts() == Counts(vms=0, scopes=0, hosts=0, events=0)
            hosts = (Host(name="h1", location="north"),)
            await store.commit(Commit(scopes=(Scope(id=SCOPE),), vms=vms, events=events, hosts=hosts))
            assert store.counts() == Counts(vms=2, scopes=1, hosts=1, events=2)
            await store.commit(Commit(vms=(a_vm("a", removed_at=4.0),), removed_hosts=("h1",)))
            assert store.counts() == Counts(vms=1, scopes=1, hosts=0, events=2)

        self.play(story)

    def test_it_counts_the_enabled_scopes(self) -> None:
        async def story(store: Store) -> None:
            assert store.enabled() == 0
            ids = (SCOPE, "other", "disabled")
            rows = tuple(Scope(id=id_, enabled_at=None if id_ == "disabled" else 1.0) for id_ in ids)
            await store.commit(Commit(scopes=rows))
            assert store.enabled() == 2
            assert store.failed_writes() == 0

        self.play(story)

    def test_what_a_scope_carries_besides_its_row_is_not_written_with_it(self) -> None:
        async def story(store: Store) -> None:
            carried: dict[str, Any] = {"vms": (a_vm("a"),), "events": (an_event("E1"),), "news": (an_entry("x"),)}
            await store.commit(Commit(scopes=(Scope(id=SCOPE, **carried),)))
            assert store.scope(SCOPE) == Scope(id=SCOPE, version=1)
            assert store.last_seq() == 0

        self.play(story)

    @pytest.mark.parametrize("kind", ["scopes", "gates", "requests"])
    def test_a_row_that_has_moved_on_is_a_conflict_that_names_it(self, kind: str) -> None:
        async def story(store: Store) -> None:
            row = _guarded(kind)
            await store.commit(Commit(**{kind: (row,)}))
            await store.commit(Commit(**{kind: (changed(row, version=1),)}))
            with pytest.raises(Conflict, match=r"'x' is at version 2, but .* version 1: read it again"):
                await store.commit(Commit(**{kind: (changed(row, version=1),)}))
            with pytest.raises(Conflict, match=r"'x' is at version 2, but .* it not existing"):
                await store.commit(Commit(**{kind: (row,)}))
            with pytest.raises(Conflict, match=r"'y' does not exist, but .* version 4"):
                await store.commit(Commit(**{kind: (changed(row, id="y", version=4),)}))
            await store.commit(Commit(**{kind: (changed(row, version=2),)}))

        self.play(story)

    @pytest.mark.parametrize("kind", ["scopes", "gates", "requests"])
    def test_a_conflict_leaves_nothing_of_its_commit(self, kind: str) -> None:
        async def story(store: Store) -> None:
            await store.commit(Commit(**{kind: (_guarded(kind),)}, entries=(an_entry("kept"),)))
            rest = Commit(vms=(a_vm("a"),), events=(an_event("E"),), hosts=(Host(name="h", location="l"),))
            rest = changed(rest, planned=(a_plan("P"),), entries=(an_entry("lost"),))
            first: dict[str, Any] = {
                name: (changed(_guarded(name), id="first"),) for name in ("scopes", "gates", "requests")
            }
            first[kind] = (*first[kind], _guarded(kind))
            with pytest.raises(Conflict):
                await store.commit(changed(rest, **first))
            assert not any((store.vms(), store.events(), store.hosts(), store.planned()))
            assert store.scope("first") is None
            assert store.gate("first") is None
            assert store.request("first") is None
            assert [entry.text for entry in store.history()] == ["kept"]
            assert await store.commit(Commit(entries=(an_entry("next"),))) == 2

        self.play(story)

    def test_one_row_cannot_move_twice_from_the_same_version(self) -> None:
        async def story(store: Store) -> None:
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id=SCOPE), Scope(id=SCOPE))))
            assert store.scope(SCOPE) is None
            await store.commit(Commit(scopes=(Scope(id=SCOPE), Scope(id=SCOPE, version=1, epoch=5))))
            assert store.scope(SCOPE) == Scope(id=SCOPE, version=2, epoch=5)

        self.play(story)

    def test_a_scopes_last_request_never_goes_back(self) -> None:
        """Spec §8.2: 24 hours count from the last request, whoever wrote it down."""

        async def story(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id=SCOPE),)))
            await store.observe([a_poll("a", 50.0), a_poll("b", 40.0, scope_id="unknown")], [])
            await store.commit(Commit(scopes=(Scope(id=SCOPE, version=1, last_request_at=30.0),)))
            assert store.scope(SCOPE) == Scope(id=SCOPE, version=2, last_request_at=50.0)
            await store.commit(Commit(scopes=(Scope(id=SCOPE, version=2),)))
            await store.observe([a_poll("a", 45.0)], [])
            assert store.scope(SCOPE) == Scope(id=SCOPE, version=3, last_request_at=50.0)

        self.play(story)

    def test_vms_keep_the_order_they_were_added_in(self) -> None:
        async def story(store: Store) -> None:
            await store.commit(Commit(scopes=(Scope(id=SCOPE),), vms=(a_vm("c"), a_vm("a"), a_vm("b"))))
            await store.commit(Commit(vms=(a_vm("c", host="h2"), a_vm("a", removed_at=1.0))))
            assert [vm.name for vm in store.vms()] == ["c", "b"]
            assert [vm.name for vm in store.vms(removed=True)] == ["c", "a", "b"]
            await store.commit(Commit(vms=(a_vm("a"), a_vm("c", availability_set="db"))))
            assert [vm.name for vm in store.vms()] == ["b", "a", "c"]
            assert [vm.name for vm in _whole(store).vms] == ["b", "a"]

        self.play(story)

    def test_vms_are_found_by_scope_and_by_host(self) -> None:
        async def story(store: Store) -> None:
            vms = (a_vm("a"), a_vm("b", host="h2"), a_vm("c", availability_set="db"), a_vm("d", removed_at=1.0))
            await store.commit(Commit(vms=vms))
            assert [vm.name for vm in store.vms(scope_id=SCOPE)] == ["a", "b"]
            assert [vm.name for vm in store.vms(host="h1")] == ["a", "c"]
            assert [vm.name for vm in store.vms(scope_id=SCOPE, host="h1", removed=True)] == ["a", "d"]
            assert store.vm(vms[3].key) == vms[3]

        self.play(story)

    def test_hosts_are_put_and_removed_by_name(self) -> None:
        async def story(store: Store) -> None:
            h1, h2 = Host(name="h1", location="l"), Host(name="h2", location="l")
            await store.commit(Commit(hosts=(h2, h1)))
            assert store.hosts() == [h1, h2]
            failed = changed(h2, health=Health.FAILED)
            await store.commit(Commit(hosts=(failed,), removed_hosts=("h1", "unknown")))
            assert store.hosts() == [failed]

        self.play(story)

    def test_events_are_found_oldest_first(self) -> None:
        async def story(store: Store) -> None:
            e1, e2 = an_event("Z", request_id="r1", gate_id="g"), an_event("Y", request_id="r2", gate_id="g")
            e3 = over(an_event("X", scope_id="other", request_id="r2"), 5.0)
            await store.commit(Commit(events=(e1, e2)))
            await store.commit(Commit(events=(e3,)))
            e1 = changed(e1, approved_at=3.0)
            await store.commit(Commit(events=(e1,)))
            assert store.events() == [e1, e2, e3]
            assert store.events(limit=2) == [e2, e3]
            assert store.events(limit=0) == []
            assert store.events(scope_id=SCOPE) == [e1, e2]
            assert store.events(request_id="r2") == [e2, e3]
            assert store.events(gate_id="g", statuses=LIVE, limit=1) == [e2]
            assert store.events(statuses=[Status.OVER]) == [e3]
            assert store.events(statuses=[]) == []

        self.play(story)

    def test_waking_a_gate_outdates_what_was_decided_before(self) -> None:
        """Spec §6.2: no readiness may be missed by a gate that was being looked at meanwhile."""

        async def story(store: Store) -> None:
            await store.commit(Commit(gates=(Gate(id="g", request_id="r", host="h", wakes_at=None),)))
            looked_at = store.gate("g")
            assert looked_at is not None
            assert store.due_gates(1e12) == []
            await store.commit(Commit(wake_gates=("g", "unknown")))
            assert [gate.id for gate in store.due_gates(0.0)] == ["g"]
            assert store.gate("unknown") is None
            with pytest.raises(Conflict):
                await store.commit(Commit(gates=(looked_at,)))

        self.play(story)

    def test_what_is_due_comes_in_the_order_of_its_time(self) -> None:
        async def story(store: Store) -> None:
            scopes = [("a", 30.0), ("b", 10.0), ("c", None), ("d", 10.0)]
            gates = tuple(Gate(id=f"g{at}", request_id="r", host="h", wakes_at=at) for at in (9.0, 7.0))
            await store.commit(Commit(scopes=tuple(Scope(id=id_, wakes_at=at) for id_, at in scopes), gates=gates))
            assert store.due_scopes(9.9) == []
            assert store.due_scopes(10.0) == ["b", "d"]
            assert store.due_scopes(99.0) == ["b", "d", "a"]
            assert store.due_scopes(99.0, limit=1) == ["b"]
            assert [gate.id for gate in store.due_gates(9.0)] == ["g7.0", "g9.0"]
            assert [gate.version for gate in store.due_gates(8.0, limit=1)] == [1]
            assert store.next_wake() == 7.0
            done = tuple(changed(gate, version=1, wakes_at=None) for gate in gates)
            await store.commit(Commit(gates=done))
            assert store.next_wake() == 10.0

        self.play(story)

    def test_requests_are_found_oldest_first(self) -> None:
        async def story(store: Store) -> None:
            closed, open_ = a_request("z", at=9.0), a_rollout("y", at=1.0)
            await store.commit(Commit(requests=(closed,)))
            await store.commit(Commit(requests=(open_, a_rollout("x"))))
            assert [request.id for request in store.requests()] == ["z", "y", "x"]
            assert [request.id for request in store.requests(open_only=True)] == ["y", "x"]
            assert [request.id for request in store.requests(limit=1)] == ["x"]
            await store.commit(Commit(requests=(a_rollout("y", closed=True, version=1),)))
            assert [(r.id, r.version) for r in store.requests(open_only=True)] == [("x", 1)]

        self.play(story)

    def test_events_that_are_over_are_found_by_when(self) -> None:
        async def story(store: Store) -> None:
            late, soon, twin = (over(an_event(name), at) for name, at in (("A", 9.0), ("B", 5.0), ("C", 5.0)))
            await store.commit(Commit(events=(late, an_event("live"), soon, twin)))
            assert store.events_over(0.0, 10.0, limit=9) == [soon, twin, late]
            assert store.events_over(5.0, 9.0, limit=2) == [twin, late]
            assert store.events_over(5.0, 9.0, limit=2, newest=False) == [soon, twin]
            assert store.events_over(5.5, 8.5, limit=9) == []
            assert store.events_over(0.0, 10.0, limit=0) == []

        self.play(story)

    def test_what_gates_hold_back_is_found_for_many_at_once(self) -> None:
        async def story(store: Store) -> None:
            e1, e2, e3 = an_event("Z", gate_id="g1"), an_event("Y", gate_id="g2"), an_event("X", gate_id="g1")
            others = (an_event("W", gate_id="g3"), an_event("V"), over(an_event("U", gate_id="g1"), 5.0))
            await store.commit(Commit(events=(e1, e2, e3, *others)))
            await store.commit(Commit(planned=(a_plan("P1", gate_id="g2"), a_plan("P2", gate_id="g3"), a_plan("P3"))))
            assert store.behind(["g1", "g2", "unknown"]) == ([e1, e2, e3], {"g2"})
            assert store.behind([]) == ([], set())

        self.play(story)

    def test_planned_events_wait_until_they_are_unplanned(self) -> None:
        async def story(store: Store) -> None:
            p1, p2, p3 = a_plan("P2"), a_plan("P1", gate_id="g"), a_plan("P0", request_id="r2")
            await store.commit(Commit(planned=(p1, p2, p3)))
            assert store.planned() == [p1, p2, p3]
            assert store.planned(request_id="r1") == [p1, p2]
            assert store.behind(["g"]).planned == {"g"}
            p2 = changed(p2, notice_s=5.0)
            await store.commit(Commit(planned=(p2, a_plan("at once")), unplanned=("P2", "at once", "unknown")))
            assert store.planned() == [p2, p3]

        self.play(story)

    def test_history_is_numbered_without_gaps(self) -> None:
        async def story(store: Store) -> None:
            assert await store.commit(Commit(entries=(an_entry("a"), an_entry("b")))) == 2
            assert await store.commit(Commit()) == 2
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id="x", version=1),), entries=(an_entry("never"),)))
            assert await store.commit(Commit(entries=(an_entry("c", seq=77),))) == 3
            assert [(entry.seq, entry.text) for entry in store.history()] == [(1, "a"), (2, "b"), (3, "c")]
            assert store.last_seq() == 3

        self.play(story)

    def test_history_is_found_by_what_it_is_about(self) -> None:
        async def story(store: Store) -> None:
            a = an_entry("a", scope_id="s", event_id="e", request_id="r", vm="v")
            b, c = an_entry("b", scope_id="s", vm="v"), an_entry("c", scope_id="s", event_id="e")
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

        self.play(story)

    def test_whoever_follows_the_history_reads_it_from_the_oldest_on_in_pieces(self) -> None:
        async def story(store: Store) -> None:
            entries = tuple(an_entry(text, at=at) for at, text in enumerate("abcde"))
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

        self.play(story)

    def test_only_the_first_sighting_of_a_status_is_kept(self) -> None:
        async def story(store: Store) -> None:
            first, started = a_sighting("E"), a_sighting("E", status="Started")
            await store.observe([], [first, changed(first, at=99.0), a_sighting("F", "web-1")])
            await store.observe([], [started, changed(first, at=98.0)])
            assert store.sightings() == [first, a_sighting("F", "web-1"), started]
            assert store.sightings(event_id="E") == [first, started]
            assert store.sightings(vm="web-1") == [a_sighting("F", "web-1")]

        self.play(story)

    def test_the_latest_poll_of_each_vm_is_kept(self) -> None:
        async def story(store: Store) -> None:
            await store.observe([a_poll("b", 10.0), a_poll("a", 11.0, scope_id="other")], [])
            again = a_poll("b", 20.0, count=7, agent="curl/8.1", wait_s=30)
            await store.observe([again, a_poll("a", 9.0)], [])
            latest_a, latest_b = a_poll("a", 11.0, scope_id="other"), again
            assert store.polls() == [latest_a, latest_b]
            assert store.polls(scope_id=SCOPE) == [latest_b]

        self.play(story)

    def test_a_saved_value_is_replaced(self) -> None:
        async def story(store: Store) -> None:
            await store.save("clock", b"1")
            await store.save("clock", b"2")
            assert store.saved("clock") == b"2"
            assert store.saved("other") is None

        self.play(story)

    def test_pruning_forgets_the_past_but_nothing_live(self) -> None:
        """Spec §5.2: an event that is over stays known for a while; one that is not over stays, however old."""

        async def story(store: Store) -> None:
            past, recent, live = over(an_event("E1"), 9.0), over(an_event("E2"), 10.0), an_event("E3")
            entries = tuple(an_entry(str(at), at=at) for at in (8.0, 10.0, 9.0))
            await store.commit(Commit(events=(past, recent, live), entries=entries))
            await store.observe([], [a_sighting(event.id) for event in (past, recent, live)])
            assert await store.prune(10.0) == 2
            assert store.events() == [recent, live]
            assert store.event("E1") is None
            assert [sighting.event_id for sighting in store.sightings()] == ["E2", "E3"]
            assert [entry.seq for entry in store.history()] == [2]
            assert await store.prune(99.0) == 1
            assert store.events() == [live]
            assert store.history() == []
            assert store.last_seq() == 3
            assert await store.commit(Commit(entries=(an_entry("next"),))) == 4

        self.play(story)

    def test_pruning_keeps_the_events_of_a_rollout_that_is_under_way(self) -> None:
        """A rollout reads off its events which VMs it is done with: without them it would hit those again (§6.2)."""

        async def story(store: Store) -> None:
            reached = over(an_event("E1", request_id="r1"), 9.0)
            await store.commit(Commit(requests=(a_rollout("r1"),), events=(reached,)))
            await store.observe([], [a_sighting("E1")])
            await store.prune(99.0)
            assert store.events(request_id="r1") == [reached]
            assert [sighting.event_id for sighting in store.sightings()] == ["E1"]
            await store.commit(Commit(requests=(a_rollout("r1", closed=True, version=1),)))
            await store.prune(99.0)
            assert store.events() == []
            assert store.sightings() == []

        self.play(story)

    def test_subscribers_hear_every_commit_in_order_before_its_caller_goes_on(self) -> None:
        async def story(store: Store) -> None:
            heard: list[Committed] = []
            stop = store.subscribe(heard.append)

            async def commit_and_look(text: str) -> None:
                seq = await store.commit(Commit(entries=(an_entry(text),)))
                assert next(h for h in heard if h.seq == seq).commit.entries == (an_entry(text, seq=seq),)
                assert store.history(after=seq - 1)[0].text == text

            await asyncio.gather(*(commit_and_look(f"{number}") for number in range(20)))
            with pytest.raises(Conflict):
                await store.commit(Commit(scopes=(Scope(id="x", version=1),)))
            assert [h.seq for h in heard] == list(range(1, 21))
            stop()
            stop()
            await store.commit(Commit(entries=(an_entry("unheard"),)))
            assert len(heard) == 20

        self.play(story)

    def test_a_subscriber_that_fails_keeps_nobody_waiting(self) -> None:
        async def story(store: Store) -> None:
            reported: list[dict[str, Any]] = []
            heard: list[Committed] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

            def fail(_: Committed) -> None:
                raise ValueError("not today")

            store.subscribe(fail)
            store.subscribe(heard.append)
            assert await store.commit(Commit(entries=(an_entry("a"),))) == 1
            assert len(heard) == 1
            assert isinstance(reported[0]["exception"], ValueError)

        self.play(story)

    def test_a_closed_store_takes_no_more_writes_and_lost_none(self) -> None:
        async def write(store: Store) -> None:
            commits = [store.commit(Commit(entries=(an_entry(f"{number}"),))) for number in range(10)]
            waiting = asyncio.gather(*commits)
            await asyncio.sleep(0)
            await store.close()
            await store.close()
            assert await waiting == list(range(1, 11))
            with pytest.raises(Unavailable, match="closed"):
                await store.commit(Commit(entries=(an_entry("late"),)))
            with pytest.raises(Unavailable, match="closed"):
                await store.save("late", b"")

        async def read(store: Store) -> None:
            assert store.last_seq() == 10
            assert store.saved("late") is None

        self.play(write, read)

    def test_clients_and_grants_are_kept_replaced_and_removed(self) -> None:
        one = Client(id="app", secret_hash=b"\x00\xff", name="An app", by="ann", at=1.5)
        two = Client(id="bot", secret_hash=b"h")
        read = Grant(id="g1", role=Role.READER, to="client:app", over="/", by="ann", at=2.5)
        run = Grant(id="g2", role=Role.OPERATOR, to="client:bot", over="/subscriptions/s")

        async def first(store: Store) -> None:
            await store.commit(Commit(clients=(two, one), grants=(read, run)))

        async def second(store: Store) -> None:
            assert store.clients() == [one, two]
            assert store.client("app") == one
            assert store.grants() == [read, run]
            assert store.grants(to="client:bot") == [run]
            await store.commit(Commit(clients=(changed(one, name="New"),), removed_clients=("bot",)))
            await store.commit(Commit(removed_grants=("g2", "never there")))

        async def third(store: Store) -> None:
            assert store.clients() == [changed(one, name="New")]
            assert store.grants() == [read]

        self.play(first, second, third)

    def test_the_cursor_of_a_webhook_only_moves_ahead_and_brings_none_back(self) -> None:
        hook = Webhook(
            id="w1", url="https://x", secret="s", schema=Schema.CLOUD_EVENTS, happenings=(Happening.STARTED,)
        )
        other = Webhook(id="w0", url="https://y", secret="t", over="/subscriptions/s", opted_in_only=True, cursor=7)

        async def first(store: Store) -> None:
            await store.commit(Commit(webhooks=(hook, other)))
            await store.commit(Commit(cursors=(Cursor(webhook_id="w1", seq=5), Cursor(webhook_id="w0", seq=3))))

        async def second(store: Store) -> None:
            assert store.webhooks() == [changed(hook, cursor=5), other]
            await store.commit(Commit(removed_webhooks=("w1",)))
            await store.commit(Commit(cursors=(Cursor(webhook_id="w1", seq=9),)))
            assert store.webhooks() == [other]

        self.play(first, second)


def _guarded(kind: str) -> Any:
    rows = {"scopes": Scope(id="x"), "gates": Gate(id="x", request_id="r", host="h"), "requests": a_request("x")}
    return rows[kind]


def _whole(store: Store) -> Scope:
    scope = store.scope(SCOPE)
    assert scope is not None
    return scope
