"""With any faults and restarts, documents keep their rules and all events end (spec §4.2, §6)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.event import EventState
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory
from forewarn.core.request import RequestedOperation
from forewarn.errors import Refused
from tests.support.world import World, a_host, a_vm

VMS = ["web-0", "web-1", "alone"]
KINDS = [kind for kind, row in FAULT_DEFINITIONS.items() if row.category is not FaultCategory.TRANSPORT]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("fault"), st.sampled_from(KINDS), st.sampled_from(["", *VMS]), st.integers(1, 3)),
        st.tuples(
            st.just("ask"),
            st.sampled_from([RequestedOperation.RESTART, RequestedOperation.REDEPLOY]),
            st.sampled_from(VMS),
        ),
        st.tuples(st.just("approve"), st.integers(0, 3)),
        st.tuples(st.just("advance"), st.sampled_from([1, 60, 900])),
        st.tuples(st.just("restart")),
        st.tuples(st.just("storm"), st.integers(0, 99)),
    ),
    max_size=14,
)


def make_world() -> World:
    web = [a_vm(f"web-{n}", availability_set="web", update_domain=n, host=f"h{n + 1}") for n in (0, 1)]
    return World(vms=[*web, a_vm("alone", host="h3")], hosts=[a_host(f"h{n}") for n in (1, 2, 3)])


def take_step(world: World, what: str, *how: Any) -> None:
    try:
        if what == "fault":
            kind, vm, count = how
            target = FaultTarget(name=vm, vm=world.vm(vm)) if vm else FaultTarget()
            at_once = FAULT_DEFINITIONS[kind].category is FaultCategory.AT_ONCE
            spec = FaultSpec(kind=kind, target=target, count=None if at_once else count)
            world.do(world.control.faults.set(spec, who="ann"))
        elif what == "ask":
            world.ask(how[0], how[1])
        elif what == "approve":
            for event in world.events(EventState.SCHEDULED)[how[0] : how[0] + 1]:
                world.approve("web-0" if "web" in event.vms[0] else "alone", event.id)
        elif what == "advance":
            world.advance(how[0])
        elif what == "restart":
            world.restart()
        else:
            world.do(world.control.fault_storms.start(how[0], [world.vm(vm) for vm in VMS], for_s=120, who="ann"))
    except Refused:
        pass  # a VM that has an operation pending, or has no neighbour


@given(steps=steps)
@settings(max_examples=60, deadline=None)
def test_documents_keep_their_rules_and_all_events_end_with_any_faults(steps: list[tuple[Any, ...]]) -> None:
    world = make_world()
    shown: dict[tuple[str, int, int], bytes] = {}
    latest: dict[str, tuple[int, int]] = {}
    try:
        for step in steps:
            take_step(world, *step)
            for vm in ("web-0", "alone"):
                scope, document = world.scope(vm), world.document(vm)
                position = (scope.epoch, scope.incarnation)
                assert shown.setdefault((vm, *position), document) == document  # same incarnation, same content
                assert latest.setdefault(vm, position) <= position
                latest[vm] = position
        for event in world.events():
            for fault_id in event.faults:
                assert f"fault {fault_id} " in event.note + event.reason
        world.do(world.control.fault_storms.clear([s.id for s in world.control.faults.active.storms], who="ann"))
        world.do(world.control.faults.clear(lambda fault: True, who="ann"))
        world.advance(24 * 3600)
        assert world.events(EventState.SCHEDULED, EventState.STARTED) == []
    finally:
        world.close()
