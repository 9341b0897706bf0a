"""No VM ever learns anything of another scope, nor can it approve there, whatever is asked (spec §7.4).

Every fleet is doubled into a second resource group, so that names alone tell nobody apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for, instance_facts
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Rejected
from forewarn.protocol.codec import decode_document
from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, PollRequest, poll_response, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.instance import instance_response
from forewarn.protocol.responses import approval_accepted, unknown_event
from forewarn.protocol.versions import VERSIONS
from tests.properties.random_fleets import SmallFleet, small_fleets
from tests.properties.search_profile import searching
from tests.support.world import World

METADATA = (("metadata", "true"),)
PICKS = st.integers(0, 19)
ASKS = st.sampled_from(
    [
        RequestedOperation.RESTART,
        RequestedOperation.REDEPLOY,
        RequestedOperation.EVICT,
        RequestedOperation.DELETE,
        RequestedOperation.SCALE_IN,
        RequestedOperation.DEALLOCATE,
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that somebody does, and the VM that then approves everything it can think of."""

    ask: RequestedOperation | RolloutImpact | None
    pick: int
    approver: int
    by_s: float


STEPS = st.lists(
    st.builds(
        Step,
        ask=st.one_of(ASKS, st.sampled_from(RolloutImpact), st.none()),
        pick=PICKS,
        approver=PICKS,
        by_s=st.sampled_from([1.0, 31.0, 301.0, 901.0]),
    ),
    min_size=1,
    max_size=8,
)


def doubled(fleet: SmallFleet) -> World:
    twins = tuple(replace(vm, resource_group="twin") for vm in fleet.vms)
    return World(vms=(*fleet.vms, *twins), hosts=fleet.hosts)


def answer(world: World, vm: Vm, request: HttpRequest) -> HttpResponse:
    """A metadata server for one VM, without sockets."""
    asked = read_request(request, is_known_caller=True, rules=EndpointRules())
    scope = world.store.scope(vm.scope_id)
    assert scope is not None
    match asked:
        case PollRequest():
            return poll_response(asked, tag="", document=document_for(scope), rules=EndpointRules())
        case ApprovalRequest():
            unknown = world.do(world.control.guests.approve(vm.key, asked.event_ids))
            return approval_accepted() if unknown is None else unknown_event(unknown)
        case HttpResponse():
            return asked
        case _:
            return instance_response(asked, instance_facts(vm))


def polled(world: World, vm: Vm, version: str) -> HttpResponse:
    target = f"/metadata/scheduledevents?api-version={version}"
    return answer(world, vm, HttpRequest(method="GET", target=target, headers=METADATA))


def posted(world: World, vm: Vm, event_ids: Sequence[str]) -> HttpResponse:
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
    target = f"/metadata/scheduledevents?api-version={VERSIONS[-1]}"
    return answer(world, vm, HttpRequest(method="POST", target=target, headers=METADATA, body=body))


def do(world: World, step: Step) -> None:
    vms, hosts = world.store.vms(), world.store.hosts()
    try:
        if isinstance(step.ask, RolloutImpact):
            rollout = Rollout(impact=step.ask, hosts=(hosts[step.pick % len(hosts)].name,))
            world.do(world.control.requests.start_rollout(rollout, who="op"))
        elif step.ask is not None and vms:
            world.do(world.control.requests.request_for_vms(step.ask, [vms[step.pick % len(vms)]], who="ann"))
    except Rejected:
        pass
    world.settle()


def must_see_its_own_only(world: World, vm: Vm, events: dict[str, Event]) -> None:
    own = {other.name for other in world.store.vms(scope_id=vm.scope_id, removed=True)}
    foreign = [event_id for event_id, event in events.items() if event.scope_id != vm.scope_id]
    for version in VERSIONS:
        body = polled(world, vm, version).body
        for seen in decode_document(body).events:
            assert events[seen.id].scope_id == vm.scope_id
            assert {name.removeprefix("_") for name in seen.resources} <= own
        assert not any(event_id.encode() in body for event_id in foreign)


def must_not_approve_elsewhere(world: World, vm: Vm, events: dict[str, Event]) -> None:
    """A foreign id is answered as one that never was, and an own one beside it is not approved either."""
    foreign = next((e for e in events.values() if e.scope_id != vm.scope_id and e.listed), None)
    own = [e.id for e in events.values() if e.scope_id == vm.scope_id and e.listed]
    if foreign is None:
        return
    seq, never = world.store.last_seq(), "00000000-0000-4000-8000-FFFFFFFFFFFF"
    told, told_never = posted(world, vm, [*own, foreign.id]), posted(world, vm, [*own, never])

    assert told.status == told_never.status == 400
    assert told.headers == told_never.headers
    assert told.body.replace(foreign.id.encode(), never.encode()) == told_never.body
    assert world.store.last_seq() == seq
    assert world.store.event(foreign.id) == foreign


def must_keep_history_apart(world: World) -> None:
    for scope_id in world.store.scope_ids():
        names = {vm.name for vm in world.store.vms(scope_id=scope_id, removed=True)}
        for entry in world.store.history(scope_id=scope_id):
            event = world.store.event(entry.event_id) if entry.event_id else None
            assert event is None or event.scope_id == scope_id
            assert entry.vm in {"", *names}


@given(fleet=small_fleets(), steps=STEPS)
@searching(60)
def test_a_vm_sees_and_approves_in_its_own_scope_only(fleet: SmallFleet, steps: list[Step]) -> None:
    world = doubled(fleet)
    try:
        for step in steps:
            do(world, step)
            events = {event.id: event for event in world.events()}
            for vm in world.store.vms():
                must_see_its_own_only(world, vm, events)
            if vms := world.store.vms():
                must_not_approve_elsewhere(world, vms[step.approver % len(vms)], events)
            world.advance(step.by_s)
        must_keep_history_apart(world)
    finally:
        world.close()
