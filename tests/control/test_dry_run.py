"""A preview predicts what then happens: the same events, in the same order, at the same times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import MAX_SIMULATED_VMS, dry_run_request, dry_run_rollout, plan_rollout, simulate_request
from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.decision import Policy
from forewarn.core.event import Event
from forewarn.core.explain.preview import Preview, PreviewedEvent
from forewarn.core.faults import FaultKind
from forewarn.core.fleet import AutoApproval, Priority, Vm
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact
from forewarn.core.waves import make_waves
from forewarn.errors import Refused
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm

A_DAY = 86400.0
EventFields = tuple[Any, ...]


def predicted_fields(event: PreviewedEvent) -> EventFields:
    times = (event.published_at, event.not_before, event.starts_at, event.over_at)
    return event.scope, event.cause, event.vms, event.host, event.update_domain, event.listed, *times, event.ending


def actual_fields(event: Event) -> EventFields:
    times = (event.published_at, event.not_before, event.started_at, event.over_at)
    return event.scope_id, event.cause, event.vms, event.host, event.update_domain, event.listed, *times, event.ending


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.close()


def in_sets(sets: int, domains: int, hosts: int, **facts: Any) -> World:
    vms = [
        a_vm(f"s{s}-{d}", availability_set=f"set{s}", update_domain=d, host=f"h{(s + d) % hosts}")
        for s in range(sets)
        for d in range(domains)
    ]
    return World(vms=vms, hosts=[a_host(f"h{n}") for n in range(hosts)], **facts)


def request_action(ask: RequestedOperation, vms: list[Vm], **options: Any) -> Any:
    async def action(control: ControlPlane) -> MaintenanceRequest:
        return (await control.requests.request_for_vms(ask, vms, who="ann", **options)).request

    return action


def preview(world: World, ask: RequestedOperation, *names: str, **options: Any) -> Preview:
    vms = [world.vm(name) for name in names]
    return world.do(dry_run_request(world.control, request_action(ask, vms, **options), vms))


def roll_out(
    world: World, rollout: Rollout, notice_s: float = 0, short_notice: bool = False
) -> tuple[list[EventFields], list[EventFields]]:
    """Preview a rollout, run it, and return the predicted and the actual events."""
    before = world.store.history()
    how: Any = {"who": "ann", "notice_s": notice_s, "short_notice": short_notice}
    result = world.do(dry_run_rollout(world.control, rollout, **how))
    assert world.store.history() == before
    request = world.do(world.control.rollout_requests.start(rollout, **how))
    world.settle()
    world.advance(30 * A_DAY)
    return [predicted_fields(event) for event in result.events], [
        actual_fields(e) for e in world.store.events(request_id=request.id)
    ]


def predicted_moves(world: World, rollout: Rollout, **how: Any) -> list[tuple[str, str]]:
    """Simulate a rollout, and return the name and the destination of each VM that it moves, in order."""

    async def start(control: ControlPlane) -> MaintenanceRequest:
        return await control.rollout_requests.start(rollout, who="ann", **how)

    vms = world.control.rollouts.vms_of(rollout)
    return moves_of(world.do(simulate_request(world.control, start, vms)).events)


def moves_of(events: list[Event]) -> list[tuple[str, str]]:
    return [(act.name, act.to_host) for event in events for act in event.acts]


@pytest.mark.parametrize("impact", list(RolloutImpact))
def test_a_rollout_over_hosts_happens_as_predicted(worlds: list[World], impact: RolloutImpact) -> None:
    """Spec §6.2: one update domain of a scope at a time, and everything on a host together."""
    worlds.append(world := in_sets(3, 4, 4))
    predicted, actual = roll_out(world, Rollout(impact=impact, hosts=("h0", "h1", "h2", "h3")))
    assert len(actual) == 12
    assert predicted == actual
    assert len({fields[6] for fields in predicted}) >= 4  # as many waves as update domains, at least


def test_a_rollout_waits_for_another_rollout_as_predicted(worlds: list[World]) -> None:
    worlds.append(world := in_sets(2, 3, 3))
    first = world.do(
        world.control.rollout_requests.start(
            Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/set0"), who="bob"
        )
    )
    world.settle()
    world.advance(905)  # its first reboot is under way
    predicted, actual = roll_out(world, Rollout(impact=RolloutImpact.UPDATE, hosts=("h0", "h1", "h2")), notice_s=1200)
    assert predicted == actual
    assert world.store.events(request_id=first.id)


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    places=PLACES,
    impact=st.sampled_from(list(RolloutImpact)),
    before=st.none()
    | st.tuples(st.sampled_from(list(RolloutImpact)), st.sampled_from([("h0",), ("h0", "h1", "h2", "h3")])),
    late_s=st.sampled_from([1, 400, 904, 935]),
    notice=st.sampled_from([(0.0, False), (1.0, True), (1200.0, False)]),
)
def test_a_rollout_over_any_fleet_happens_as_predicted(
    places: list[tuple[int, int, int]],
    impact: RolloutImpact,
    before: tuple[RolloutImpact, tuple[str, ...]] | None,
    late_s: int,
    notice: tuple[float, bool],
) -> None:
    """Also while a restart and another rollout are under way."""
    vms = [
        a_vm(f"v{n}", availability_set=f"set{s}" if s else "", update_domain=d if s else 0, host=f"h{h}")
        for n, (s, d, h) in enumerate(places)
    ]
    world = World(vms=vms, hosts=[a_host(f"h{n}") for n in range(4)])
    try:
        world.ask(RequestedOperation.RESTART, "v0")
        if before is not None:
            first = Rollout(impact=before[0], hosts=before[1])
            world.do(world.control.rollout_requests.start(first, who="bob"))
        world.advance(late_s)
        rollout = Rollout(impact=impact, hosts=("h0", "h1", "h2", "h3"))
        moves = predicted_moves(world, rollout, notice_s=notice[0], short_notice=notice[1])
        predicted, actual = roll_out(world, rollout, *notice)
        assert predicted == actual
        assert moves == moves_of(world.store.events(request_id=world.store.requests()[-1].id))
    finally:
        world.close()


def test_a_preview_predicts_when_acts_under_way_end(worlds: list[World]) -> None:
    worlds.append(world := in_sets(1, 2, 2))
    first = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",))
    world.do(world.control.rollout_requests.start(first, who="bob"))
    world.settle()
    world.advance(912)  # the first VM has been rebooting for 12 of 30 s
    predicted, actual = roll_out(world, Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",)), 5, True)
    assert predicted == actual
    assert [fields[8] - fields[6] for fields in predicted] == [18]  # it starts when the other update domain is back


def test_a_preview_performs_acts_on_one_vm_one_after_the_other(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    world.ask(RequestedOperation.RESTART, "db")
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",)), who="bob"))
    world.advance(935)  # the reboot took until 930, and the freeze takes until 939
    result = preview(world, RequestedOperation.POWER_OFF, "db")
    (event,) = world.ask(RequestedOperation.POWER_OFF, "db")
    world.advance(60)
    assert [predicted_fields(event) for event in result.events] == [
        actual_fields(world.control.requests.event(event.id))
    ]
    assert result.over_at == world.now - 60 + 4 + 15


def test_a_rollout_waits_for_the_gates_of_another_as_predicted(worlds: list[World]) -> None:
    """Spec §6.2."""
    worlds.append(world := in_sets(2, 2, 2))
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.REBOOT, hosts=("h0", "h1")), who="bob"))
    world.advance(890)
    predicted, actual = roll_out(world, Rollout(impact=RolloutImpact.UPDATE, hosts=("h0", "h1")), 15, True)
    assert predicted == actual


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (RequestedOperation.RESTART, "Reboot"),
        (RequestedOperation.REDEPLOY, "Redeploy"),
        (RequestedOperation.EVICT, "Preempt"),
        (RequestedOperation.DELETE, "Terminate"),
        (RequestedOperation.SCALE_IN, None),
        (RequestedOperation.REIMAGE, None),
    ],
)
def test_a_request_happens_as_predicted(worlds: list[World], ask: RequestedOperation, kind: str | None) -> None:
    facts: dict[str, Any] = {"terminate_notice_min": 5} if ask is RequestedOperation.DELETE else {}
    facts |= {"priority": Priority.SPOT} if ask is RequestedOperation.EVICT else {}
    vms = [a_vm(f"v{n}", host="h1", **facts) for n in range(3)]
    worlds.append(world := World(vms=vms, hosts=[a_host("h1"), a_host("h2")]))
    result = preview(world, ask, "v0", "v1", "v2")
    events = world.ask(ask, "v0", "v1", "v2")
    world.advance(A_DAY)
    assert [event.kind for event in result.events] == [kind] * 3
    assert [predicted_fields(event) for event in result.events] == [
        actual_fields(e) for e in world.store.events(request_id=events[0].request_id)
    ]
    assert result.over_at == max(e.over_at or 0 for e in world.store.events(request_id=events[0].request_id))


def test_a_preview_says_what_happens_at_once_without_an_event_and_why(worlds: list[World]) -> None:
    """Spec §8.2: a scope without polls for a day has no events."""
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")], policy=Policy()))
    result = preview(world, RequestedOperation.RESTART, "db")
    assert result.summary == (
        "Reboot of db at once, without an event: "
        "no VM of the scope has polled within 24 h, so scheduled events are disabled there.",
    )


def test_a_preview_names_the_events_that_would_be_withdrawn(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1"), a_host("h2")]))
    (restart,) = world.ask(RequestedOperation.RESTART, "db")
    result = preview(world, RequestedOperation.REDEPLOY, "db")
    assert result.summary == (
        "1 event over 1 VM, published at once.",
        f"It replaces 1 pending event, which would be withdrawn: {restart.id}.",
        "Without approvals, and if every act takes its usual time, everything is done in 12 min; "
        "approvals make it faster.",
    )


def test_a_preview_says_which_events_start_at_once_by_policy(worlds: list[World]) -> None:
    vm = a_vm("db", auto_approve=AutoApproval(restart=True))
    worlds.append(world := World(vms=[vm], hosts=[a_host("h1")]))
    expected = "1 event starts at once, without notice: db (approved by policy)."
    assert expected in preview(world, RequestedOperation.RESTART, "db").summary


def test_a_preview_takes_active_faults_into_account(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    spec = FaultSpec(kind=FaultKind.SHORT_NOTICE, target=FaultTarget(name="db", vm=world.vm("db")), count=1)
    world.do(world.control.faults.set(spec, who="ann"))
    result = preview(world, RequestedOperation.RESTART, "db")
    assert [event.not_before - event.published_at for event in result.events] == [5]
    (event,) = world.ask(RequestedOperation.RESTART, "db")
    assert event.not_before - event.published_at == 5


def test_a_preview_refuses_a_request_in_the_same_words_as_the_request(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    for ask in (RequestedOperation.REDEPLOY, RequestedOperation.EVICT, RequestedOperation.START):
        with pytest.raises(Refused) as before:
            preview(world, ask, "db")
        with pytest.raises(Refused) as then:
            world.ask(ask, "db")
        assert str(before.value) == str(then.value)


def test_a_preview_of_a_very_large_rollout_shows_its_first_wave(worlds: list[World]) -> None:
    worlds.append(world := in_sets(700, 3, 90))
    rollout = Rollout(impact=RolloutImpact.MIGRATE, hosts=tuple(f"h{n}" for n in range(90)))
    result = world.do(dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    plan = world.do(plan_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    assert result.summary == plan.summary
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    now = {(e.scope_id, e.vms, e.published_at, e.not_before) for e in world.store.events(request_id=request.id)}
    assert {(e.scope, e.vms, e.published_at, e.not_before) for e in result.events} == now
    assert (result.vms, result.is_partial, result.over_at) == (2100, True, None)
    assert result.vms > MAX_SIMULATED_VMS


def test_the_plan_of_a_very_large_rollout_has_the_estimated_times_of_its_waves(worlds: list[World]) -> None:
    """Spec §13.6: two update domains in each of the two waves, of 15 minutes and 5 seconds each."""
    worlds.append(world := in_sets(700, 3, 90))
    waves = make_waves("", (50,))
    rollout = Rollout(impact=RolloutImpact.MIGRATE, everything=True, waves=waves, settle_s=600)
    plan = world.do(
        plan_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False, has_handler=lambda vm: False)
    )
    assert [(wave.size, wave.earliest) for wave in plan.waves] == [(1050, None), (1050, None)]
    assert [wave.latest and wave.latest.settled_at for wave in plan.waves] == [plan.now + 2410, plan.now + 4820]
    assert (plan.over_latest, plan.is_estimated) == (plan.now + 4820, True)
    assert "2100 VMs do not poll" in plan.summary[-1]
    assert plan.summary[-1].endswith("and 2097 more.")


def test_the_plan_of_a_very_large_rollout_names_the_rollout_that_does_the_same_work(worlds: list[World]) -> None:
    worlds.append(world := in_sets(700, 3, 90))
    other = Rollout(impact=RolloutImpact.MIGRATE, scope_id="set:sub/lab/set7")
    request = world.do(world.control.rollout_requests.start(other, who="ann"))
    world.settle()
    rollout = Rollout(impact=RolloutImpact.MIGRATE, everything=True)
    plan = world.do(plan_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    assert plan.shared == {request.id: 1}
    assert any("1 VM is shared with rollout" in sentence for sentence in plan.summary)


def test_a_preview_in_a_large_fleet_covers_the_concerned_scopes(worlds: list[World]) -> None:
    worlds.append(world := in_sets(700, 3, 90))
    predicted, actual = roll_out(world, Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/set7"))
    assert len(actual) == 3
    assert predicted == actual


def test_a_preview_changes_nothing_in_the_store(worlds: list[World]) -> None:
    worlds.append(world := in_sets(2, 2, 2))
    assert isinstance(world.store, MemoryStore)
    seq, requests = world.store.last_seq(), world.store.requests()
    preview(world, RequestedOperation.RESTART, "s0-0")
    assert (world.store.last_seq(), world.store.requests(), world.store.events()) == (seq, requests, [])
    assert world.hypervisor.ledger.effects() == []


def test_the_event_loop_stays_responsive_during_a_preview(worlds: list[World]) -> None:
    worlds.append(world := in_sets(60, 5, 20))
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=tuple(f"h{n}" for n in range(20)))

    async def meanwhile() -> int:
        dry_run = asyncio.create_task(
            dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False)
        )
        iterations = 0
        while not dry_run.done():
            await asyncio.sleep(0)
            iterations += 1
        assert len((await dry_run).events) == 300
        return iterations

    assert world.do(meanwhile()) > 300
