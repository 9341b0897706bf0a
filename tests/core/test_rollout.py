"""Rollouts, one update domain at a time (spec §6.2), checked against simple rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.cause import CAUSE_RULES, Verb
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.request import (
    MaintenanceRequest,
    PlannedEvent,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
)
from forewarn.core.rollout import (
    RolloutBatch,
    count_rollout_vms,
    next_batch,
    next_rollout_state,
    remaining_vms,
    rollout_end_reason,
)
from tests.support.world import a_vm, sequential_ids

NOW = 1_000_000.0
UPDATE = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1", "h2", "h3"))


def request(rollout: Rollout = UPDATE) -> MaintenanceRequest:
    return MaintenanceRequest(
        id="r",
        operation=RequestedOperation.ROLLOUT,
        requested_by="ops",
        requested_at=NOW,
        targets=("h1",),
        notice_s=900,
        rollout=rollout,
    )


def vm(name: str, host: str, domain: int = 0, scope: str = "web", **facts: object) -> Vm:
    return a_vm(name, host=host, availability_set=scope, update_domain=domain, **facts)


def wave_of(
    vms: Iterable[Vm], events: Iterable[Event] = (), planned: Iterable[PlannedEvent] = (), *, rollout: Rollout = UPDATE
) -> RolloutBatch:
    numbers = sequential_ids()
    return next_batch(request(rollout), list(vms), list(events), list(planned), lambda: next(numbers))


def event_of(planned: PlannedEvent, status: EventState = EventState.SCHEDULED, *, failed: bool = False) -> Event:
    outcome = ActOutcome(ok=not failed, at=NOW)
    acts = [
        Act(id=f"{planned.event_id}:{n}", vm=n, name=n, verb=Verb.FREEZE, event_id=planned.event_id, outcome=outcome)
        for n in planned.vms
    ]
    return Event(
        id=planned.event_id, scope_id=planned.scope_id, request_id="r", cause=planned.cause, requested_by="ops",
        vms=planned.vms, published_at=NOW, not_before=NOW + 900, update_domain=planned.update_domain,
        host=planned.host, gate_id=planned.gate_id, status=status,
        acts=() if status is EventState.SCHEDULED else tuple(acts),
    )  # fmt: skip


def listed(wave: RolloutBatch) -> list[tuple[str, ...]]:
    return [planned.vms for planned in wave.planned]


def test_the_lowest_update_domain_is_published_first() -> None:
    """Spec §6.2: the next update domain's events come when the previous one's are gone."""
    vms = [vm("a", "h1", 1), vm("b", "h2", 0), vm("c", "h3", 1)]
    assert listed(wave_of(vms)) == [("b",)]


def test_hosts_of_one_update_domain_are_published_together() -> None:
    assert listed(wave_of([vm("a", "h1"), vm("b", "h2"), vm("c", "h2")])) == [("a",), ("b", "c")]


@pytest.mark.parametrize("status", list(EventState))
def test_the_next_update_domain_waits_until_the_events_of_the_previous_one_are_over(status: EventState) -> None:
    """Spec §6.2."""
    vms = [vm("a", "h1", 0), vm("b", "h2", 1)]
    (first,) = wave_of(vms).planned
    assert listed(wave_of(vms, [event_of(first, status)])) == ([("b",)] if status is EventState.OVER else [])


def test_planned_events_count_as_in_progress() -> None:
    vms = [vm("a", "h1", 0), vm("b", "h2", 1)]
    assert listed(wave_of(vms, planned=wave_of(vms).planned)) == []


def test_a_host_gets_one_event_per_scope_behind_one_gate() -> None:
    """Spec §6.2: shared host."""
    wave = wave_of([vm("a", "h1"), vm("b", "h1"), vm("c", "h1", scope="db")])
    assert listed(wave) == [("a", "b"), ("c",)]
    assert [gate.host for gate in wave.gates] == ["h1"]
    assert {planned.gate_id for planned in wave.planned} == {wave.gates[0].id}


def test_a_host_waits_while_one_of_its_scopes_is_busy_in_another_update_domain() -> None:
    """Two hosts must never wait for each other."""
    vms = [vm("a", "h1", 0), vm("b", "h2", 1), vm("c", "h2", 1, "db")]
    (first,) = wave_of(vms).planned
    assert first.vms == ("a",)
    assert listed(wave_of(vms, [event_of(first)])) == []
    assert listed(wave_of(vms, [event_of(first, EventState.OVER)])) == [("b",), ("c",)]


def test_two_update_domains_of_a_scope_on_one_host_are_updated_one_after_the_other() -> None:
    """Spec §7.3: the Resources of one event stay within one update domain."""
    vms = [vm("a", "h1", 1), vm("b", "h1", 0)]
    (first,) = wave_of(vms).planned
    assert (first.vms, first.update_domain) == (("b",), 0)
    assert listed(wave_of(vms, [event_of(first, EventState.OVER)])) == [("a",)]


def test_migrations_are_one_event_per_vm_and_need_no_gate() -> None:
    """Spec §6.2: moves of single VMs never wait for the host."""
    wave = wave_of([vm("a", "h1"), vm("b", "h1")], rollout=replace(UPDATE, impact=RolloutImpact.MIGRATE))
    assert listed(wave) == [("a",), ("b",)]
    assert wave.gates == ()


def test_a_rollout_over_a_scope_needs_no_gate() -> None:
    over_scope = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web")
    wave = wave_of([vm("a", "h1"), vm("b", "h2")], rollout=over_scope)
    assert wave.gates == ()
    assert listed(wave) == [("a",), ("b",)]


def test_a_deallocated_vm_is_left_out_of_a_rollout() -> None:
    """Spec §4.2: there is nothing to hit."""
    assert listed(wave_of([vm("a", "h1", power=PowerState.DEALLOCATED), vm("b", "h2")])) == [("b",)]


def test_a_vm_that_moved_to_another_host_of_the_rollout_is_updated_once() -> None:
    (first,) = wave_of([vm("a", "h1")]).planned
    assert listed(wave_of([vm("a", "h2")], [event_of(first, EventState.OVER)])) == []


@pytest.mark.parametrize(
    ("failures", "maximum", "live", "left", "progress"),
    [
        pytest.param(0, 1, True, 0, RolloutState.RUNNING, id="under way"),
        pytest.param(0, 1, False, 2, RolloutState.RUNNING, id="more to come"),
        pytest.param(0, 1, False, 0, RolloutState.COMPLETED, id="nothing left"),
        pytest.param(1, 1, True, 2, RolloutState.STOPPED, id="at its maximum"),
        pytest.param(1, 2, False, 2, RolloutState.RUNNING, id="below its maximum"),
        pytest.param(2, 2, False, 0, RolloutState.STOPPED, id="failed at the end"),
        pytest.param(9, 0, False, 2, RolloutState.RUNNING, id="never stops"),
    ],
)
def test_a_rollout_stops_after_its_maximum_of_failures(
    failures: int, maximum: int, live: bool, left: int, progress: RolloutState
) -> None:
    (planned,) = wave_of([vm("a", "h1")]).planned
    events = [event_of(planned, EventState.OVER, failed=True)] * failures
    events += [event_of(planned)] if live else []
    assert next_rollout_state(replace(UPDATE, max_failures=maximum), events, left) is progress


@pytest.mark.parametrize("ended", [RolloutState.STOPPED, RolloutState.ABORTED, RolloutState.COMPLETED])
def test_a_rollout_that_has_ended_keeps_its_state(ended: RolloutState) -> None:
    assert next_rollout_state(replace(UPDATE, progress=ended), [], 0) is ended


@pytest.mark.parametrize(
    ("failures", "progress", "why"),
    [
        pytest.param(0, RolloutState.COMPLETED, "", id="all went well"),
        pytest.param(1, RolloutState.COMPLETED, "a: no reason given", id="completed"),
        pytest.param(1, RolloutState.STOPPED, "1 VM failed, and it stops after 1 (a: no reason given)", id="stopped"),
        pytest.param(5, RolloutState.COMPLETED, "; ".join(["a: no reason given"] * 3) + "; and 2 more", id="many"),
        pytest.param(1, RolloutState.RUNNING, "", id="not ended"),
    ],
)
def test_a_rollout_that_ended_with_failures_names_the_failed_vms(
    failures: int, progress: RolloutState, why: str
) -> None:
    (planned,) = wave_of([vm("a", "h1")]).planned
    events = [event_of(planned, EventState.OVER, failed=True)] * failures
    assert rollout_end_reason(UPDATE, events, progress) == why


def test_the_tally_counts_every_vm_once() -> None:
    vms = [vm(name, "h1", domain) for domain, name in enumerate("abcde")]
    plans = [PlannedEvent(event_id=n, request_id="r", scope_id=vms[0].scope_id, cause=UPDATE.cause, requested_by="ops",
                          vms=(n,),notice_s=900) for n in "abcd"]  # fmt: skip
    events = [
        event_of(plans[0], EventState.OVER),
        event_of(plans[1], EventState.OVER, failed=True),
        replace(event_of(plans[2]), status=EventState.OVER, ending=Ending.WITHDRAWN),
        event_of(plans[3], EventState.STARTED),
    ]
    counted = count_rollout_vms(vms, events)
    assert (counted.total, counted.done, counted.failed, counted.withdrawn) == (5, 1, 1, 1)
    assert (counted.started, counted.scheduled, counted.waiting, counted.not_needed) == (1, 0, 1, 0)


def test_a_vm_that_left_its_host_before_the_start_counts_as_not_needed() -> None:
    """Spec §6.4: not as done."""
    (alone,) = wave_of([vm("a", "h1")]).planned
    (both,) = wave_of([vm("b", "h2"), vm("c", "h2")]).planned
    skipped = replace(event_of(both, EventState.OVER), acts=event_of(both, EventState.OVER).acts[:1])
    not_needed = replace(event_of(alone), status=EventState.OVER, ending=Ending.NOT_NEEDED)
    counted = count_rollout_vms([vm("c", "h2")], [not_needed, skipped])
    assert (counted.total, counted.done, counted.not_needed) == (3, 1, 2)


def test_a_vm_whose_event_was_not_needed_gets_another_one_when_it_is_back_on_the_host() -> None:
    (first,) = wave_of([vm("a", "h1")]).planned
    not_needed = replace(event_of(first), status=EventState.OVER, ending=Ending.NOT_NEEDED)
    assert listed(wave_of([vm("a", "h1")], [not_needed])) == [("a",)]
    over_scope = Rollout(impact=RolloutImpact.UPDATE, scope_id="set:sub/lab/web")
    assert listed(wave_of([vm("a", "h2")], [not_needed], rollout=over_scope)) == []


HOSTS = [f"h{n}" for n in range(5)]
FLEETS = st.lists(
    st.builds(
        lambda n, host, domain, scope: vm(f"vm-{n}", host, domain, scope),
        st.integers(0, 10_000),
        st.sampled_from(HOSTS),
        st.integers(0, 3),
        st.sampled_from(["web", "db", "mq"]),
    ),
    max_size=14,
    unique_by=lambda vm: vm.name,
)


class RolloutSimulation:
    """A rollout with all its waves and events. It records only; the caller ends events in any order."""

    def __init__(self, vms: list[Vm], impact: RolloutImpact) -> None:
        self.vms = vms
        self.rollout = Rollout(impact=impact, hosts=tuple(HOSTS))
        self.events: dict[str, Event] = {}
        self.waves: list[RolloutBatch] = []
        self._numbers = sequential_ids()

    def publish(self) -> bool:
        """Publish the next wave; whether there was one."""
        ask = request(self.rollout)
        wave = next_batch(ask, self.vms, list(self.events.values()), [], lambda: next(self._numbers))
        self.events |= {planned.event_id: event_of(planned) for planned in wave.planned}
        if wave.planned:
            self.waves.append(wave)
        return bool(wave.planned)

    @property
    def live(self) -> list[Event]:
        return [event for event in self.events.values() if event.is_live]

    def end(self, event: Event) -> None:
        acts = [
            Act(id=f"{event.id}:{name}", vm=name, name=name, verb=Verb.FREEZE, event_id=event.id) for name in event.vms
        ]
        self.events[event.id] = replace(event, status=EventState.OVER, acts=tuple(acts))


def _simulate(vms: list[Vm], impact: RolloutImpact, data: st.DataObject) -> RolloutSimulation:
    simulation = RolloutSimulation(vms, impact)
    for _ in range(3 * len(vms) + 1):
        published = simulation.publish()
        _at_most_one_domain_per_scope(simulation.live)
        if not simulation.live:
            assert not published
            return simulation
        simulation.end(data.draw(st.sampled_from(simulation.live)))
    raise AssertionError("the rollout does not come to an end")


def _at_most_one_domain_per_scope(live: list[Event]) -> None:
    domains: dict[str, set[int]] = defaultdict(set)
    for event in live:
        domains[event.scope_id].add(event.update_domain)
    assert all(len(found) == 1 for found in domains.values()), domains


@settings(max_examples=150, deadline=None)
@given(vms=FLEETS, impact=st.sampled_from(list(RolloutImpact)), data=st.data())
def test_every_rollout_ends_and_lists_every_vm_exactly_once(
    vms: list[Vm], impact: RolloutImpact, data: st.DataObject
) -> None:
    """Spec §6.2: in every order of ends, a scope never has live events of two update domains."""
    simulation = _simulate(vms, impact, data)
    reached = Counter((event.scope_id, name) for event in simulation.events.values() for name in event.vms)
    assert reached == Counter({(vm.scope_id, vm.name): 1 for vm in vms})
    assert remaining_vms(simulation.rollout, vms, list(simulation.events.values()), []) == []


@settings(max_examples=150, deadline=None)
@given(vms=FLEETS, impact=st.sampled_from(list(RolloutImpact)), data=st.data())
def test_every_event_of_a_rollout_stays_within_one_scope_update_domain_and_host(
    vms: list[Vm], impact: RolloutImpact, data: st.DataObject
) -> None:
    """Spec §7.3, §4.2."""
    where = {(vm.scope_id, vm.name): (vm.update_domain, vm.host) for vm in vms}
    for event in _simulate(vms, impact, data).events.values():
        assert {where[event.scope_id, name] for name in event.vms} == {(event.update_domain, event.host)}


@settings(max_examples=150, deadline=None)
@given(vms=FLEETS, impact=st.sampled_from([RolloutImpact.UPDATE, RolloutImpact.REBOOT]), data=st.data())
def test_all_scopes_on_a_host_are_published_together(vms: list[Vm], impact: RolloutImpact, data: st.DataObject) -> None:
    """Spec §6.2, shared host: the wave has the lowest remaining update domain of each scope on it."""
    simulation = _simulate(vms, impact, data)
    left = {(vm.scope_id, vm.name): vm for vm in vms}
    for wave in simulation.waves:
        for gate in wave.gates:
            behind = [planned for planned in wave.planned if planned.gate_id == gate.id]
            assert {(p.scope_id, name) for p in behind for name in p.vms} == _lowest_on(gate.host, left.values())
        for planned in wave.planned:
            for name in planned.vms:
                del left[planned.scope_id, name]


def _lowest_on(host: str, vms: Iterable[Vm]) -> set[tuple[str, str]]:
    """The simple way: of each scope on the host, the VMs of the lowest update domain there."""
    here = [vm for vm in vms if vm.host == host]
    lowest = {vm.scope_id: min(v.update_domain for v in here if v.scope_id == vm.scope_id) for vm in here}
    return {(vm.scope_id, vm.name) for vm in here if vm.update_domain == lowest[vm.scope_id]}


def test_rollouts_have_only_planned_causes() -> None:
    """Spec §6.2: rollouts are planned platform maintenance."""
    assert all(CAUSE_RULES[Rollout(impact=impact).cause].planned for impact in RolloutImpact)
