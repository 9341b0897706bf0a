"""Faults of events and scopes change events as described and nothing else (spec §6, §11, §12)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.event import Ending, EventState
from forewarn.core.faults import Fault, FaultKind
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import NotFound, Refused, Rejected, Unavailable
from tests.support.world import World, a_host, a_vm


def pair(name: str) -> list[Any]:
    return [a_vm(f"{name}-{n}", availability_set=name, update_domain=n, host=f"h{n + 1}") for n in (0, 1)]


@pytest.fixture
def world() -> Iterator[World]:
    vms = [*pair("web"), *pair("db"), a_vm("alone", host="h3")]
    made = World(vms=vms, hosts=[a_host(f"h{n}") for n in (1, 2, 3)])
    yield made
    made.close()


def set_fault(world: World, kind: FaultKind, vm: str = "", *, scope: str = "", **facts: Any) -> Fault:
    if vm:
        target = FaultTarget(name=vm, vm=world.vm(vm))
    else:
        target = FaultTarget(name=scope, scope_id=world.vm(scope).scope_id) if scope else FaultTarget()
    return world.do(world.control.faults.set(FaultSpec(kind=kind, target=target, **facts), who="ann"))


def fault_entries(world: World) -> list[str]:
    return [entry.text for entry in world.store.history() if entry.kind == "fault"]


def document(world: World, vm: str) -> Any:
    return json.loads(world.document(vm))


def active_ids(world: World) -> list[str]:
    return [fault.id for fault in world.control.faults.active.faults]


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_for_a_scope_that_does_not_exist_is_refused_and_changes_nothing(world: World, kind: FaultKind) -> None:
    before = world.control.faults.active, world.store.load("faults"), world.store.last_seq()
    spec = FaultSpec(kind=kind, target=FaultTarget(name="nosuch", scope_id="set:sub/lab/nosuch"))
    with pytest.raises(NotFound, match=r"nosuch.* does not exist"):
        world.do(world.control.faults.set(spec, who="ann"))
    assert (world.control.faults.active, world.store.load("faults"), world.store.last_seq()) == before


@pytest.mark.parametrize("writes", [0, 1])
def test_a_fault_is_active_exactly_if_the_history_says_that_it_was_set(world: World, writes: int) -> None:
    world.store.fail_next(Unavailable("the disk is full"), after=writes)  # type: ignore[attr-defined]
    with suppress(Unavailable):
        set_fault(world, FaultKind.GONE, "alone")
    assert len(active_ids(world)) == len(fault_entries(world))
    world.restart()
    assert len(active_ids(world)) == len(fault_entries(world))


@pytest.mark.parametrize("writes", [0, 1])
def test_a_fault_is_cleared_exactly_if_the_history_says_so(world: World, writes: int) -> None:
    set_fault(world, FaultKind.GONE, "alone")
    world.store.fail_next(Unavailable("the disk is full"), after=writes)  # type: ignore[attr-defined]
    with suppress(Unavailable):
        world.do(world.control.faults.clear(lambda fault: True, who="ann"))
    is_recorded = any("cleared by ann" in text for text in fault_entries(world))
    assert active_ids(world) == ([] if is_recorded else ["f1"])


def test_a_short_notice_with_count_one_affects_only_the_next_event(world: World) -> None:
    set_fault(world, FaultKind.SHORT_NOTICE, "web-0", count=1)
    (first,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert first.not_before == world.now + 5
    world.advance(60)
    (second,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert second.not_before == world.now + 900  # spec §6.3
    assert fault_entries(world) == [
        "fault f1 (short-notice) set for web-0 by ann, 1 event at most",
        "fault f1 (short-notice) of web-0 expired: it affected 1 event",
    ]


def test_a_notice_that_is_already_shorter_stays_as_it_is(world: World) -> None:
    set_fault(world, FaultKind.SHORT_NOTICE, "web-0", count=1, parameters={"notice_s": 60})
    (event,) = world.ask(RequestedOperation.RESTART, "web-0", notice_s=20, short_notice=True)
    assert event.not_before == world.now + 20
    assert active_ids(world) == ["f1"]


def test_an_event_without_notice_is_started_when_it_first_appears(world: World) -> None:
    before = document(world, "web-1")["DocumentIncarnation"]
    set_fault(world, FaultKind.NO_NOTICE, "web-0", count=1)
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert event.status is EventState.STARTED
    shown = document(world, "web-1")
    assert [(e["EventStatus"], e["NotBefore"]) for e in shown["Events"]] == [("Started", "")]
    assert shown["DocumentIncarnation"] == before + 1  # spec §4.2
    world.advance(60)
    assert world.store.event(event.id).ending is Ending.FINISHED  # type: ignore[union-attr]


def test_events_without_notice_still_start_one_update_domain_at_a_time(world: World) -> None:
    """Spec §6.2: while planned maintenance is Started for one update domain, none starts for another."""
    set_fault(world, FaultKind.NO_NOTICE, scope="web-0")
    set_fault(world, FaultKind.SEVERAL_AT_ONCE, "web-0", parameters={"events": 2})
    assert [event.status for event in world.events()] == [EventState.STARTED, EventState.SCHEDULED]


def test_an_approved_event_is_withdrawn_instead_of_started(world: World) -> None:
    set_fault(world, FaultKind.WITHDRAWN_AFTER_APPROVAL, "web-0", count=1)
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    incarnation = document(world, "web-0")["DocumentIncarnation"]
    assert world.approve("web-1", event.id) is None
    assert document(world, "web-0") == {"DocumentIncarnation": incarnation + 1, "Events": []}
    over = world.store.event(event.id)
    assert over is not None
    assert (over.ending, over.started_at, over.acts) == (Ending.WITHDRAWN, None, ())
    assert over.reason == "fault f1 (withdrawn-after-approval) of web-0"
    assert world.approve("web-1", event.id) is None  # spec §5.2: a retry is harmless


def test_an_event_without_approval_is_not_withdrawn_by_the_fault(world: World) -> None:
    set_fault(world, FaultKind.WITHDRAWN_AFTER_APPROVAL, "web-0")
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    world.advance(1000)
    assert world.store.event(event.id).ending is Ending.FINISHED  # type: ignore[union-attr]


def test_several_events_at_once_increase_the_incarnation_by_their_number(world: World) -> None:
    before = document(world, "web-0")["DocumentIncarnation"]
    set_fault(world, FaultKind.SEVERAL_AT_ONCE, "web-1")
    shown = document(world, "web-0")
    assert [e["Resources"] for e in shown["Events"]] == [["web-1"], ["web-0"], ["web-1"]]
    assert {e["EventType"] for e in shown["Events"]} == {"Freeze"}
    assert shown["DocumentIncarnation"] == before + 3
    world.advance(3600)
    assert {event.ending for event in world.events()} == {Ending.FINISHED}


def test_the_event_of_a_neighbour_does_not_list_the_vm(world: World) -> None:
    set_fault(world, FaultKind.NEIGHBOUR_ONLY, "web-0")
    assert [e["Resources"] for e in document(world, "web-0")["Events"]] == [["web-1"]]
    with pytest.raises(Refused, match="alone has no neighbour that runs"):
        set_fault(world, FaultKind.NEIGHBOUR_ONLY, "alone")


def test_an_event_over_several_update_domains_is_performed_like_any_other(world: World) -> None:
    """Spec §11: against spec §7.3, as Azure does since 2022."""
    set_fault(world, FaultKind.SEVERAL_UPDATE_DOMAINS, "web-1")
    (event,) = document(world, "web-0")["Events"]
    assert (event["Resources"], event["EventType"]) == (["web-1", "web-0"], "Freeze")
    assert {vm.update_domain for vm in world.scope("web-0").vms} == {0, 1}
    world.advance(3600)
    (over,) = world.events()
    assert (over.ending, [act.name for act in over.acts]) == (Ending.FINISHED, ["web-1", "web-0"])
    assert over.note == "made by fault f1 (several-update-domains) of web-1"


def test_an_event_over_several_update_domains_needs_two(world: World) -> None:
    with pytest.raises(Refused, match="scope of alone are in fewer than two update domains"):
        set_fault(world, FaultKind.SEVERAL_UPDATE_DOMAINS, "alone")
    with pytest.raises(Rejected, match=r"parameter 'domains' of fault several-update-domains is 2\.5: give a whole"):
        set_fault(world, FaultKind.SEVERAL_UPDATE_DOMAINS, "web-0", parameters={"domains": 2.5})


def test_freezes_made_by_faults_leave_out_vms_that_do_not_run(world: World) -> None:
    world.ask(RequestedOperation.POWER_OFF, "web-0")
    world.advance(60)
    set_fault(world, FaultKind.SEVERAL_AT_ONCE, "web-0")
    assert [e["Resources"] for e in document(world, "web-1")["Events"]] == [["web-1"]] * 3
    world.advance(3600)
    for vm, scope in (("web-1", ""), ("", "web-1")):  # web-1 runs, but its only neighbour does not
        with pytest.raises(Refused, match="has no neighbour that runs"):
            set_fault(world, FaultKind.NEIGHBOUR_ONLY, vm, scope=scope)


def test_a_freeze_of_a_scope_in_which_no_vm_runs_is_refused_with_the_name_of_the_scope(world: World) -> None:
    world.ask(RequestedOperation.POWER_OFF, "alone")
    world.advance(60)
    with pytest.raises(Refused, match="no VM runs in the scope of VM alone, so there is nothing to freeze"):
        set_fault(world, FaultKind.SEVERAL_AT_ONCE, "alone")


def test_an_incarnation_reset_keeps_pending_events_in_a_new_epoch(world: World) -> None:
    """Spec §4.2: the incarnation starts again at 1, with the pending events listed."""
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    epoch = world.scope("web-0").epoch
    set_fault(world, FaultKind.INCARNATION_RESET, "web-0")
    shown = document(world, "web-0")
    assert (shown["DocumentIncarnation"], [e["EventId"] for e in shown["Events"]]) == (1, [event.id])
    assert world.scope("web-0").epoch == epoch + 1
    assert (
        fault_entries(world)[-1] == f"fault f1 (incarnation-reset) set web-0 back to incarnation 1, epoch {epoch + 1}"
    )


def test_an_at_once_fault_for_everything_skips_scopes_that_cannot_have_it(world: World) -> None:
    fault = set_fault(world, FaultKind.NEIGHBOUR_ONLY)
    assert fault.applied == 2
    assert sorted(event.vms for event in world.events()) == [("db-1",), ("web-1",)]
    assert document(world, "alone")["Events"] == []


def test_a_fault_of_one_vm_does_not_affect_other_vms_and_scopes(world: World) -> None:
    for kind in (FaultKind.SHORT_NOTICE, FaultKind.NO_NOTICE, FaultKind.WITHDRAWN_AFTER_APPROVAL):
        set_fault(world, kind, "web-0")
    events = world.ask(RequestedOperation.RESTART, "web-1", "db-0", "alone")
    world.settle()
    for event in world.store.events(request_id=events[0].request_id):
        assert (event.status, event.not_before) == (EventState.SCHEDULED, world.now + 900)
        world.approve(event.vms[0], event.id)
    assert {event.status for event in world.events()} == {EventState.STARTED}
    assert all(not event.faults for event in world.events())


def test_a_count_holds_across_scopes_that_are_decided_concurrently(world: World) -> None:
    set_fault(world, FaultKind.NO_NOTICE, count=2)
    world.ask(RequestedOperation.RESTART, "web-0", "web-1", "db-0", "db-1", "alone")
    statuses = [event.status for event in world.events()]
    assert sorted(statuses) == [EventState.SCHEDULED] * 3 + [EventState.STARTED] * 2


def test_an_event_that_was_not_committed_does_not_count(world: World) -> None:
    set_fault(world, FaultKind.NO_NOTICE, "web-0", count=1)
    world.store.fail_next(Unavailable("the disk is full"))  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        world.ask(RequestedOperation.RESTART, "web-0")
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert event.status is EventState.STARTED


def test_the_duration_of_an_event_fault_is_lab_time_and_ends_on_time(world: World) -> None:
    """Spec §12."""
    set_fault(world, FaultKind.NO_NOTICE, "web-0", duration_s=600)
    began = world.now
    world.advance(3600)
    last = world.store.history()[-1]
    assert (last.text, last.at) == ("fault f1 (no-notice) of web-0 expired: it affected 0 events", began + 600)
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert event.status is EventState.SCHEDULED


def test_a_cleared_fault_affects_no_more_events(world: World) -> None:
    set_fault(world, FaultKind.NO_NOTICE, "web-0")
    cleared = world.do(world.control.faults.clear(lambda fault: fault.vm_name == "web-0", who="bob"))
    assert [fault.id for fault in cleared] == ["f1"]
    assert fault_entries(world)[-1] == "fault f1 (no-notice) of web-0 cleared by bob: it affected 0 events"
    (event,) = world.ask(RequestedOperation.RESTART, "web-0")
    assert event.status is EventState.SCHEDULED
    assert world.do(world.control.faults.clear(lambda fault: True, who="bob")) == ()


def test_a_restart_keeps_faults_and_their_counts(world: World) -> None:
    set_fault(world, FaultKind.NO_NOTICE, "web-0", count=2)
    set_fault(world, FaultKind.GONE, "web-1")
    world.ask(RequestedOperation.RESTART, "web-0")
    before = world.control.faults.active
    world.restart()
    assert world.control.faults.active == before
    assert [fault.remaining for fault in before.faults] == [1, None]
    world.advance(60)
    assert [world.ask(RequestedOperation.RESTART, "web-0")[0].status for _ in "1"] == [EventState.STARTED]
    assert active_ids(world) == ["f2"]
    assert set_fault(world, FaultKind.RESET, "web-0").id == "f3"  # numbers are not reused


def test_a_fault_is_not_set_if_the_store_is_unavailable(world: World) -> None:
    world.store.fail_next(Unavailable("the disk is full"))  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        set_fault(world, FaultKind.NO_NOTICE, "web-0")
    assert active_ids(world) == []
    assert world.ask(RequestedOperation.RESTART, "web-0")[0].status is EventState.SCHEDULED


@pytest.mark.parametrize("kind", [FaultKind.NO_NOTICE, FaultKind.SHORT_NOTICE, FaultKind.WITHDRAWN_AFTER_APPROVAL])
def test_a_rollout_completes_even_if_faults_affect_its_events(world: World, kind: FaultKind) -> None:
    set_fault(world, kind, count=2)
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1", "h2"))
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    for event in world.events(EventState.SCHEDULED):
        world.approve(event.vms[0], event.id)
    world.advance(4 * 3600)
    ended = world.rollout(request.id)
    assert (ended.progress, ended.closed) == (RolloutState.COMPLETED, True)
    assert world.events(EventState.SCHEDULED, EventState.STARTED) == []
    assert active_ids(world) == []


BAD: list[tuple[FaultKind, dict[str, Any], str]] = [
    (FaultKind.GONE, {"duration_s": 71}, "fault gone lasts 1 min 10 s at most, not 1 min 11 s: give a shorter one"),
    (FaultKind.GONE, {"duration_s": 0}, "duration 0 s of fault gone is too short: give more than 0 s"),
    (FaultKind.GONE, {"count": 0}, "count 0 of fault gone is too small: give 1 or more"),
    (FaultKind.RESET, {"parameters": {"x": 1}}, "fault reset has no parameter 'x': it has none"),
    (FaultKind.STALE, {"parameters": {"x": 1}}, "fault stale has no parameter 'x': it has 'age_s'"),
    (FaultKind.STALE, {"parameters": {"age_s": 61}}, "parameter 'age_s' of fault stale is 61 s: give 0 to 60 s"),
    (
        FaultKind.LATE_FIRST_ANSWER,
        {"parameters": {"delay_s": 121}},
        "parameter 'delay_s' of fault late-first-answer is 121 s: give 0 to 120 s",
    ),
    (
        FaultKind.SEVERAL_AT_ONCE,
        {"parameters": {"events": 2.5}},
        "parameter 'events' of fault several-at-once is 2.5: give a whole number",
    ),
    (
        FaultKind.INCARNATION_RESET,
        {"count": 1},
        "fault incarnation-reset happens once, at once: leave count and duration out",
    ),
]


@pytest.mark.parametrize(("kind", "facts", "sentence"), BAD, ids=[sentence[:40] for _, _, sentence in BAD])
def test_a_bad_fault_is_rejected_with_a_sentence(
    world: World, kind: FaultKind, facts: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        set_fault(world, kind, "web-0", **facts)
    assert str(refusal.value) == sentence
    assert (active_ids(world), fault_entries(world)) == ([], [])
