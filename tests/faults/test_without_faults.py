"""Without a fault nothing changes, and a fault changes nothing for other VMs and scopes (spec §11)."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.event import EventState
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind
from forewarn.core.request import RequestedOperation
from tests.support.metadata_backend import tag_of
from tests.support.world import World, a_host, a_vm

POLL = "/metadata/scheduledevents?api-version="
TARGETS = [POLL + "2020-07-01", POLL + "2017-03-01", POLL + "1999-01-01", POLL, "/metadata/instance", "/x"]
BODIES = [b"", b"{}", b'{"StartRequests":[{"EventId":"EVENT-1"}]}', b'{"StartRequests":[{"EventId":"NOT"}]}']
HEADERS: list[dict[str, str]] = [
    {},
    {"If_None_Match": tag_of(incarnation=2)},
    {"If_None_Match": "junk"},
    {"Origin": "x"},
]

requests = st.fixed_dictionaries(
    {
        "target": st.sampled_from(TARGETS),
        "method": st.sampled_from(["GET", "POST", "PUT"]),
        "body": st.sampled_from(BODIES),
        "headers": st.sampled_from(HEADERS),
    }
)


@given(sent=st.lists(requests, min_size=1, max_size=6), kinds=st.sets(st.sampled_from(FaultKind), min_size=1))
@settings(max_examples=40, deadline=None)
def test_a_vm_without_a_fault_is_answered_byte_for_byte_as_before(
    new_world: Any, fault: Any, notice: Any, sent: list[dict[str, Any]], kinds: set[FaultKind]
) -> None:
    async def answers(world: Any) -> list[bytes]:
        got = []
        for each in sent:
            reply = await world.ask(each["target"], method=each["method"], body=each["body"], **each["headers"])
            got.append(reply.raw)
        return got

    async def scenario() -> None:
        world = await new_world()
        try:
            world.backend.show("pair", notice())
            before = await answers(world)
            world.set_faults(*(fault(kind, id=kind, vm="b") for kind in sorted(kinds)))
            assert await answers(world) == before
            world.set_faults(*(fault(kind, id=kind, vm="", scope_id="single") for kind in sorted(kinds)))
            assert await answers(world) == before
            assert world.server.faults.take_hits() == []
            world.set_faults()
            assert await answers(world) == before
        finally:
            await world.close()

    with asyncio.Runner() as runner:
        runner.run(scenario())


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from([RequestedOperation.RESTART, RequestedOperation.REDEPLOY]),
            st.sampled_from(["web-0", "web-1"]),
        ),
        st.tuples(st.just("approve"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("advance"), st.sampled_from([1, 60, 900]), st.just("")),
    ),
    max_size=8,
)
LASTING = [kind for kind, row in FAULT_DEFINITIONS.items() if row.category is not FaultCategory.AT_ONCE]


def make_world() -> World:
    web = [a_vm(f"web-{n}", availability_set="web", update_domain=n, host=f"h{n + 1}") for n in (0, 1)]
    return World(vms=[*web, a_vm("other", host="h3")], hosts=[a_host(f"h{n}") for n in (1, 2, 3)])


def take_steps(world: World, steps: list[tuple[Any, ...]]) -> list[str]:
    """Take the steps; return the documents of web-0 and the history of its scope."""
    shown = []
    for what, how, vm in steps:
        if what == "ask" and not any(
            vm in event.vms for event in world.events(EventState.SCHEDULED, EventState.STARTED)
        ):
            world.ask(how, vm)
        elif what == "approve":
            for event in world.events(EventState.SCHEDULED)[how : how + 1]:
                world.approve("web-0", event.id)
        elif what == "advance":
            world.advance(how)
        shown.append(world.document("web-0").decode())
    scope_id = world.vm("web-0").scope_id
    return [*shown, *(f"{entry.at} {entry.text}" for entry in world.store.history(scope_id=scope_id))]


@given(steps=steps, kinds=st.lists(st.sampled_from(LASTING), unique=True), clear=st.booleans())
@settings(max_examples=40, deadline=None)
def test_faults_of_another_scope_have_no_effect_on_a_scope(
    steps: list[tuple[Any, ...]], kinds: list[FaultKind], clear: bool
) -> None:
    plain, faulty = make_world(), make_world()
    try:
        other = FaultTarget(name="other", vm=faulty.vm("other"))
        for kind in kinds:
            faulty.do(faulty.control.faults.set(FaultSpec(kind=kind, target=other), who="ann"))
        if clear:
            faulty.do(faulty.control.faults.clear(lambda fault: True, who="ann"))
        assert take_steps(faulty, steps) == take_steps(plain, steps)
    finally:
        plain.close()
        faulty.close()
