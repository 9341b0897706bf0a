"""Whatever happens, and however often the connection is lost: a page that follows shows at last what is there."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.access import owner_principal
from forewarn.core.event import EventState
from forewarn.core.request import RequestedOperation
from forewarn.errors import Rejected
from forewarn.explain.vm_state import vm_state
from forewarn.portal import live_updates
from tests.portal.conftest import Visitor
from tests.portal.live_stream_client import Stream, looking, note
from tests.support.operator_api import Api, make_world
from tests.support.world import World

NAMES = ("web-0", "web-1", "web-2", "db", "spot", "pool_0", "pool_1")
ASKS = (
    RequestedOperation.RESTART,
    RequestedOperation.REDEPLOY,
    RequestedOperation.DELETE,
    RequestedOperation.POWER_OFF,
    RequestedOperation.START,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(ASKS), st.sampled_from(NAMES)),
        st.tuples(st.just("approve"), st.sampled_from(NAMES)),
        st.tuples(st.just("advance"), st.sampled_from([5.0, 60.0, 1200.0])),
        st.tuples(st.sampled_from(["leave", "come", "much"]), st.none()),
    ),
    max_size=14,
)


class Page:
    """What a page shows of each VM: as it was read, then as it was told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seq = 0
        self.read()

    def read(self) -> None:
        self.seq = self._world.store.last_seq()
        self.shown = states(self._world)

    def hear(self, kind: str, told: Any, number: int | None) -> None:
        if kind == "reset":
            self.read()
        if kind == "change":
            self.shown.update(dict(told["vms"]))
        self.seq = number if number is not None else self.seq

    async def follow(self, stream: Stream) -> None:
        """Until everything that has happened by now was told."""
        await note(self._world)
        last = self._world.store.last_seq()
        while self.seq < last:
            self.hear(*await stream.next("change", "reset"))


def states(world: World) -> dict[str, str]:
    """Of every VM, computed from what is stored."""
    told = {}
    for vm in world.store.vms(removed=True):
        scope = world.store.scope(vm.scope_id)
        told[vm.key] = str(vm_state(vm, scope.events if scope else ()))
    return told


async def do(world: World, what: Any, whom: Any) -> None:
    control = world.control
    try:
        if what == "advance":
            await control.lab_clock.advance(whom)
        elif what == "much":
            await note(world, live_updates.MAX_MISSED_ENTRIES + 1)
        elif what == "approve":
            events = world.store.events(scope_id=world.vm(whom).scope_id, statuses=[EventState.SCHEDULED])
            await control.guests.approve(world.vm(whom).key, [event.id for event in events])
        else:
            await control.requests.request_for_vms(what, [world.vm(whom)], who="ann")
        await control.reconciler.run_until_idle()
    except Rejected:
        pass  # such as a start of what runs: it changes nothing


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_live_page_finally_shows_the_stored_states(steps: list[tuple[Any, Any]]) -> None:
    world = make_world()
    portal = Visitor(Api(world), owner_principal("local user ann"))

    async def story() -> None:
        page = Page(world)
        left = list(steps)
        while left:
            async with looking(portal, f"after={page.seq}") as stream:
                await stream.next("clock")
                while left and (step := left.pop(0))[0] != "leave":
                    await do(world, *step) if step[0] != "come" else await page.follow(stream)
            while left and (step := left.pop(0))[0] != "come":
                await do(world, *step) if step[0] != "leave" else None
        async with looking(portal, f"after={page.seq}") as stream:
            await page.follow(stream)
        assert page.shown == states(world)

    try:
        world.do(story())
    finally:
        world.close()
