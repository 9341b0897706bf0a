"""The state of a VM in one word."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.explain.explanation import VmState, vm_state
from forewarn.core.fleet import EvictionPolicy, PowerState, Priority, Vm, vm_key_in_scope
from forewarn.core.request import RequestedOperation
from tests.support.world import World, a_host, a_vm

WEB = a_vm("Web-0")
DONE = ActOutcome(ok=True, at=1.0)


def event_of(vm: Vm, status: EventState, *verbs: Verb, outcome: ActOutcome | None = None, **facts: Any) -> Event:
    acts = tuple(
        Act(id=f"a{number}", vm=vm.key, name=vm.name, verb=verb, event_id="E", outcome=outcome)
        for number, verb in enumerate(verbs)
    )
    given = {"id": "E", "scope_id": vm.scope_id, "request_id": "r", "cause": Cause.USER_RESTART, "requested_by": "ann"}
    return Event(
        **{**given, "vms": (vm.name,), "published_at": 0, "not_before": 9, "status": status, "acts": acts, **facts}
    )


@pytest.mark.parametrize(
    "where",
    [{}, {"availability_set": "A"}, {"scale_set": "S", "placement_group": "P"}, {"cloud_service": "C:1"}],
    ids=["standalone", "set", "placement", "service"],
)
def test_a_scope_id_and_a_name_give_the_key_in_every_kind_of_scope(where: dict[str, Any]) -> None:
    vm = a_vm("Straße:1", resource_group="Gr:oup", **where)
    assert vm_key_in_scope(vm.scope_id, "STRASSE:1") == vm.key
    assert vm_state(vm, [event_of(vm, EventState.SCHEDULED)]) is VmState.EVENT_SCHEDULED


def test_a_vm_without_events_is_running() -> None:
    assert vm_state(WEB, []) is VmState.RUNNING


def test_a_vm_with_a_scheduled_event_has_the_state_event_scheduled() -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.SCHEDULED)]) is VmState.EVENT_SCHEDULED


def test_names_of_vms_in_events_are_compared_without_case() -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.SCHEDULED, vms=("WEB-0",))]) is VmState.EVENT_SCHEDULED


def test_an_event_of_another_vm_of_the_scope_does_not_change_the_state() -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.SCHEDULED, vms=("web-1",))]) is VmState.RUNNING


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        (Verb.FREEZE, VmState.FROZEN),
        (Verb.MIGRATE, VmState.MOVING),
        (Verb.REBOOT, VmState.REBOOTING),
        (Verb.REIMAGE, VmState.REBOOTING),
        (Verb.REDEPLOY, VmState.MOVING),
        (Verb.EVICT, VmState.STARTED),
        (Verb.DELETE, VmState.STARTED),
        (Verb.POWER_OFF, VmState.STARTED),
        (Verb.START, VmState.STARTED),
        (Verb.DEALLOCATE, VmState.STARTED),
        (Verb.REAPPLY, VmState.STARTED),
    ],
)
def test_an_unfinished_act_decides_the_state(verb: Verb, state: VmState) -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.STARTED, verb)]) is state


def test_an_act_with_an_outcome_does_not_change_the_state() -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.STARTED, Verb.REBOOT, outcome=DONE)]) is VmState.RUNNING


def test_an_event_that_is_over_does_not_change_the_state() -> None:
    assert vm_state(WEB, [event_of(WEB, EventState.OVER, Verb.REBOOT)]) is VmState.RUNNING


def test_a_started_event_counts_before_a_scheduled_one() -> None:
    events = [event_of(WEB, EventState.SCHEDULED), event_of(WEB, EventState.STARTED, Verb.FREEZE, id="F")]
    assert vm_state(WEB, events) is VmState.FROZEN


@pytest.mark.parametrize("power", [PowerState.STOPPED, PowerState.DEALLOCATED])
def test_the_power_state_counts_before_a_scheduled_event(power: PowerState) -> None:
    off = a_vm("Web-0", power=power)
    assert vm_state(off, [event_of(off, EventState.SCHEDULED)]) == power.value
    assert vm_state(off, [event_of(off, EventState.STARTED, Verb.START)]) is VmState.STARTED


def test_a_vm_that_was_removed_is_gone() -> None:
    assert vm_state(a_vm("Web-0", removed_at=1.0), [event_of(WEB, EventState.STARTED, Verb.DELETE)]) is VmState.GONE


def states_after(operation: RequestedOperation, **facts: Any) -> list[str]:
    """The states of a VM one after the other, from the request until nothing is left to do."""
    world = World(vms=[a_vm("db", **facts)], hosts=[a_host("h1"), a_host("h2")])
    try:
        key, states_seen = world.vm("db").key, []
        world.ask(operation, "db")
        for _ in range(1200):
            vm = world.store.vm(key)
            assert vm is not None
            scope = world.store.scope(vm.scope_id)
            states_seen.append(vm_state(vm, scope.live_events() if scope else ()))
            world.advance(1)
        return [state for number, state in enumerate(states_seen) if state != states_seen[number - 1] or not number]
    finally:
        world.close()


@pytest.mark.parametrize(
    ("operation", "facts", "states"),
    [
        (RequestedOperation.RESTART, {}, "noticed rebooting running"),
        (RequestedOperation.REDEPLOY, {}, "noticed moving running"),
        (RequestedOperation.EVICT, {"priority": Priority.SPOT}, "noticed started deallocated"),
        (
            RequestedOperation.EVICT,
            {"priority": Priority.SPOT, "eviction_policy": EvictionPolicy.DELETE},
            "noticed started gone",
        ),
        (RequestedOperation.DELETE, {"terminate_notice_min": 5}, "noticed started gone"),
        (RequestedOperation.DELETE, {}, "started gone"),
        (RequestedOperation.POWER_OFF, {}, "started stopped"),
        (RequestedOperation.DEALLOCATE, {}, "started deallocated"),
        (RequestedOperation.START, {"power": PowerState.STOPPED}, "started running"),
        (RequestedOperation.REIMAGE, {}, "rebooting running"),
    ],
)
def test_the_states_of_a_vm_follow_the_acts_of_the_hypervisor(
    operation: RequestedOperation, facts: dict[str, Any], states: str
) -> None:
    assert " ".join(states_after(operation, **facts)) == states
