"""A live page finally shows the stored states, also after lost connections."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.access import owner_principal
from forewarn.core.event import EventState
from forewarn.core.explain.explanation import vm_state
from forewarn.core.request import RequestedOperation
from forewarn.errors import Rejected
from forewarn.web.portal import live_updates
from tests.portal.conftest import PortalUser
from tests.portal.live_stream_client import Stream, commit_entry, open_stream
from tests.support.operator_api import Api, make_world
from tests.support.world import World

NAMES = ("web-0", "web-1", "web-2", "db", "spot", "pool_0", "pool_1")
OPERATIONS = (
    RequestedOperation.RESTART,
    RequestedOperation.REDEPLOY,
    RequestedOperation.DELETE,
    RequestedOperation.POWER_OFF,
    RequestedOperation.START,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES)),
        st.tuples(st.just("approve"), st.sampled_from(NAMES)),
        st.tuples(st.just("advance"), st.sampled_from([5.0, 60.0, 1200.0])),
        st.tuples(st.sampled_from(["leave", "come", "much"]), st.none()),
    ),
    max_size=14,
)


class Page:
    """The VM states that a page shows: as loaded, then updated by the live stream."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seq = 0
        self.read()

    def read(self) -> None:
        self.seq = self._world.store.last_seq()
        self.shown = states(self._world)

    def apply(self, kind: str, data: Any, seq: int | None) -> None:
        if kind == "reset":
            self.read()
        if kind == "change":
            self.shown.update(dict(data["vms"]))
        self.seq = seq if seq is not None else self.seq

    async def catch_up(self, stream: Stream) -> None:
        """Reads the stream until it has sent everything that happened so far."""
        await commit_entry(self._world)
        last = self._world.store.last_seq()
        while self.seq < last:
            self.apply(*await stream.next("change", "reset"))


def states(world: World) -> dict[str, str]:
    """The states of all VMs, computed from the store."""
    data = {}
    for vm in world.store.vms(removed=True):
        scope = world.store.scope(vm.scope_id)
        data[vm.key] = str(vm_state(vm, scope.events if scope else ()))
    return data


async def submit_form(world: World, step: Any, target: Any) -> None:
    control = world.control
    try:
        if step == "advance":
            await control.lab_clock.advance(target)
        elif step == "much":
            await commit_entry(world, live_updates.MAX_MISSED_ENTRIES + 1)
        elif step == "approve":
            events = world.store.events(scope_id=world.vm(target).scope_id, statuses=[EventState.SCHEDULED])
            await control.guests.approve(world.vm(target).key, tuple(event.id for event in events))
        else:
            await control.requests.request_for_vms(step, [world.vm(target)], who="ann")
        await control.reconciler.catch_up()
    except Rejected:
        pass  # such as the start of a running VM: it changes nothing


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_live_page_finally_shows_the_stored_states(steps: list[tuple[Any, Any]]) -> None:
    world = make_world()
    portal = PortalUser(Api(world), owner_principal("local user ann"))

    async def scenario() -> None:
        page = Page(world)
        left = list(steps)
        while left:
            async with open_stream(portal, f"after={page.seq}") as stream:
                await stream.next("clock")
                while left and (step := left.pop(0))[0] != "leave":
                    await submit_form(world, *step) if step[0] != "come" else await page.catch_up(stream)
            while left and (step := left.pop(0))[0] != "come":
                await submit_form(world, *step) if step[0] != "leave" else None
        async with open_stream(portal, f"after={page.seq}") as stream:
            await page.catch_up(stream)
        assert page.shown == states(world)

    try:
        world.do(scenario())
    finally:
        world.close()
