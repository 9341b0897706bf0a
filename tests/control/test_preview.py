"""A preview says what then happens: the same events, in the same order, at the same instants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import MAX_SIMULATED_VMS, dry_run_request, dry_run_rollout
from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.decision import Policy
from forewarn.core.event import Event
from forewarn.core.faults import FaultKind
from forewarn.core.fleet import AutoApproval, Priority, Vm
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Refused
from forewarn.explain.preview import Preview, PreviewedEvent
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm

A_DAY = 86400.0
Seen = tuple[Any, ...]


def foreseen(event: PreviewedEvent) -> Seen:
    times = (event.published_at, event.not_before, event.starts_at, event.over_at)
    return event.scope, event.cause, event.vms, event.host, event.update_domain, event.listed, *times, event.ending


def happened(event: Event) -> Seen:
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


def asking(ask: RequestedOperation, vms: list[Vm], **options: Any) -> Any:
    async def deed(control: ControlPlane) -> MaintenanceRequest:
        return (await control.requests.request_for_vms(ask, vms, who="ann", **options)).request

    return deed


def preview(world: World, ask: RequestedOperation, *names: str, **options: Any) -> Preview:
    vms = [world.vm(name) for name in names]
    return world.do(dry_run_request(world.control, asking(ask, vms, **options), vms))


def roll_out(
    world: World, rollout: Rollout, notice_s: float = 0, short_notice: bool = False
) -> tuple[list[Seen], list[Seen]]:
    """What a rollout was foreseen to do, and what it did."""
    before = world.store.history()
    how: Any = {"who": "ann", "notice_s": notice_s, "short_notice": short_notice}
    told = world.do(dry_run_rollout(world.control, rollout, **how))
    assert world.store.history() == before
    request = world.do(world.control.requests.start_rollout(rollout, **how))
    world.settle()
    world.advance(30 * A_DAY)
    return [foreseen(event) for event in told.events], [happened(e) for e in world.store.events(request_id=request.id)]


@pytest.mark.parametrize("impact", list(RolloutImpact))
def test_a_rollout_over_hosts_happens_as_it_was_foreseen(worlds: list[World], impact: RolloutImpact) -> None:
    """Spec §6.2: one update domain of a scope at a time, and everything on a host together."""
    worlds.append(world := in_sets(3, 4, 4))
    told, done = roll_out(world, Rollout(impact=impact, hosts=("h0", "h1", "h2", "h3")))
    assert len(done) == 12
    assert told == done
    assert len({seen[6] for seen in told}) >= 4  # as many waves as update domains, at least


def test_a_rollout_waits_for_what_is_under_way_as_it_was_foreseen(worlds: list[World]) -> None:
    worlds.append(world := in_sets(2, 3, 3))
    first = world.do(
        world.control.requests.start_rollout(
            Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/set0"), who="bob"
        )
    )
    world.settle()
    world.advance(905)  # its first reboot is at work
    told, done = roll_out(world, Rollout(impact=RolloutImpact.UPDATE, hosts=("h0", "h1", "h2")), notice_s=1200)
    assert told == done
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
def test_any_fleet_is_rolled_over_as_it_was_foreseen(
    places: list[tuple[int, int, int]],
    impact: RolloutImpact,
    before: tuple[RolloutImpact, tuple[str, ...]] | None,
    late_s: int,
    notice: tuple[float, bool],
) -> None:
    """Whatever else is under way: a restart, and another rollout somewhere on its way."""
    vms = [
        a_vm(f"v{n}", availability_set=f"set{s}" if s else "", update_domain=d if s else 0, host=f"h{h}")
        for n, (s, d, h) in enumerate(places)
    ]
    world = World(vms=vms, hosts=[a_host(f"h{n}") for n in range(4)])
    try:
        world.ask(RequestedOperation.RESTART, "v0")
        if before is not None:
            first = Rollout(impact=before[0], hosts=before[1])
            world.do(world.control.requests.start_rollout(first, who="bob"))
        world.advance(late_s)
        told, done = roll_out(world, Rollout(impact=impact, hosts=("h0", "h1", "h2", "h3")), *notice)
        assert told == done
    finally:
        world.close()


def test_what_has_started_ends_in_the_preview_when_it_really_does(worlds: list[World]) -> None:
    worlds.append(world := in_sets(1, 2, 2))
    first = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",))
    world.do(world.control.requests.start_rollout(first, who="bob"))
    world.settle()
    world.advance(912)  # since 12 s the first VM reboots, which takes 30
    told, done = roll_out(world, Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",)), 5, True)
    assert told == done
    assert [seen[8] - seen[6] for seen in told] == [18]  # it starts when the other update domain is back


def test_acts_on_one_vm_end_one_after_the_other_in_the_preview_too(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    world.ask(RequestedOperation.RESTART, "db")
    world.do(world.control.requests.start_rollout(Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",)), who="bob"))
    world.advance(935)  # the reboot took until 930, and the freeze takes until 939
    told = preview(world, RequestedOperation.POWER_OFF, "db")
    (event,) = world.ask(RequestedOperation.POWER_OFF, "db")
    world.advance(60)
    assert [foreseen(event) for event in told.events] == [happened(world.control.requests.event(event.id))]
    assert told.over_at == world.now - 60 + 4 + 15


def test_a_rollout_waits_behind_the_gates_of_another_as_it_was_foreseen(worlds: list[World]) -> None:
    """Spec §6.2."""
    worlds.append(world := in_sets(2, 2, 2))
    world.do(world.control.requests.start_rollout(Rollout(impact=RolloutImpact.REBOOT, hosts=("h0", "h1")), who="bob"))
    world.advance(890)
    told, done = roll_out(world, Rollout(impact=RolloutImpact.UPDATE, hosts=("h0", "h1")), 15, True)
    assert told == done


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
def test_a_request_happens_as_it_was_foreseen(worlds: list[World], ask: RequestedOperation, kind: str | None) -> None:
    facts = {"terminate_notice_min": 5} if ask is RequestedOperation.DELETE else {}
    facts |= {"priority": Priority.SPOT} if ask is RequestedOperation.EVICT else {}
    vms = [a_vm(f"v{n}", host="h1", **facts) for n in range(3)]
    worlds.append(world := World(vms=vms, hosts=[a_host("h1"), a_host("h2")]))
    told = preview(world, ask, "v0", "v1", "v2")
    events = world.ask(ask, "v0", "v1", "v2")
    world.advance(A_DAY)
    assert [event.kind for event in told.events] == [kind] * 3
    assert [foreseen(event) for event in told.events] == [
        happened(e) for e in world.store.events(request_id=events[0].request_id)
    ]
    assert told.over_at == max(e.over_at or 0 for e in world.store.events(request_id=events[0].request_id))


def test_a_preview_tells_what_happens_at_once_and_why(worlds: list[World]) -> None:
    """Spec §8.2: where nobody has asked for events within a day, there are none."""
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")], policy=Policy()))
    told = preview(world, RequestedOperation.RESTART, "db")
    assert told.sentences == (
        "reboot of db at once, without an event: "
        "no VM of the scope has polled within 24 h, so scheduled events are disabled there.",
    )


def test_a_preview_tells_whose_place_is_taken(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1"), a_host("h2")]))
    (restart,) = world.ask(RequestedOperation.RESTART, "db")
    told = preview(world, RequestedOperation.REDEPLOY, "db")
    assert told.sentences == (
        "1 event over 1 VM, published at once.",
        f"It takes the place of 1 pending event, which would be withdrawn: {restart.id}.",
        "If nobody approves and every act takes its usual time, all is over in 12 min; approvals make it faster.",
    )


def test_a_preview_tells_what_policy_lets_start_at_once(worlds: list[World]) -> None:
    vm = a_vm("db", auto_approve=AutoApproval(restart=True))
    worlds.append(world := World(vms=[vm], hosts=[a_host("h1")]))
    assert (
        "1 event of them starts at once, without notice." in preview(world, RequestedOperation.RESTART, "db").sentences
    )


def test_a_preview_reckons_with_the_faults_that_are_on(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    wish = FaultSpec(kind=FaultKind.SHORT_NOTICE, target=FaultTarget(name="db", vm=world.vm("db")), count=1)
    world.do(world.control.faults.set(wish, who="ann"))
    told = preview(world, RequestedOperation.RESTART, "db")
    assert [event.not_before - event.published_at for event in told.events] == [5]
    (event,) = world.ask(RequestedOperation.RESTART, "db")
    assert event.not_before - event.published_at == 5


def test_what_is_refused_is_refused_in_the_same_words_beforehand(worlds: list[World]) -> None:
    worlds.append(world := World(vms=[a_vm("db")], hosts=[a_host("h1")]))
    for ask in (RequestedOperation.REDEPLOY, RequestedOperation.EVICT, RequestedOperation.START):
        with pytest.raises(Refused) as before:
            preview(world, ask, "db")
        with pytest.raises(Refused) as then:
            world.ask(ask, "db")
        assert str(before.value) == str(then.value)


def test_a_rollout_over_too_many_vms_tells_its_first_wave(worlds: list[World]) -> None:
    worlds.append(world := in_sets(700, 3, 90))
    rollout = Rollout(impact=RolloutImpact.MIGRATE, hosts=tuple(f"h{n}" for n in range(90)))
    told = world.do(dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    request = world.do(world.control.requests.start_rollout(rollout, who="ann"))
    world.settle()
    now = {(e.scope_id, e.vms, e.published_at, e.not_before) for e in world.store.events(request_id=request.id)}
    assert {(e.scope, e.vms, e.published_at, e.not_before) for e in told.events} == now
    assert (told.vms, told.is_cut, told.over_at) == (2100, True, None)
    assert told.vms > MAX_SIMULATED_VMS
    assert told.sentences[-1] == (
        "1400 VMs more follow in later waves, which are not told here: 2100 VMs are too many to rehearse to the end."
    )


def test_in_a_large_fleet_only_what_is_concerned_is_rehearsed(worlds: list[World]) -> None:
    worlds.append(world := in_sets(700, 3, 90))
    told, done = roll_out(world, Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/set7"))
    assert len(done) == 3
    assert told == done


def test_a_preview_leaves_no_trace(worlds: list[World]) -> None:
    worlds.append(world := in_sets(2, 2, 2))
    assert isinstance(world.store, MemoryStore)
    seq, requests = world.store.last_seq(), world.store.requests()
    preview(world, RequestedOperation.RESTART, "s0-0")
    assert (world.store.last_seq(), world.store.requests(), world.store.events()) == (seq, requests, [])
    assert world.hypervisor.ledger.effects() == []


def test_others_get_their_turn_while_a_rollout_is_rehearsed(worlds: list[World]) -> None:
    worlds.append(world := in_sets(60, 5, 20))
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=tuple(f"h{n}" for n in range(20)))

    async def meanwhile() -> int:
        rehearsal = asyncio.create_task(
            dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False)
        )
        turns = 0
        while not rehearsal.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await rehearsal).events) == 300
        return turns

    assert world.do(meanwhile()) > 300
