"""How every VM is, kept in memory: whatever happens, it is as if it were computed afresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.core.resource_ids import vm_resource_id
from forewarn.errors import ForewarnError
from forewarn.explain.vm_state import VmState, vm_state
from forewarn.portal.fleet_overview import FleetOverview
from forewarn.store.interface import AppliedCommit
from forewarn.web.authorization import VisibleDirectory
from forewarn.web.directory import FleetDirectory
from tests.support.operator_api import make_world
from tests.support.world import World, a_vm

NAMES = ("web-0", "web-1", "web-2", "db", "spot", "pool_0", "pool_1", "late")
HOSTS = ("h1", "h2", "h3")


class Looking:
    """A world and an overview of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = FleetDirectory(world.store)
        self.overview = self.fresh()
        self.told: dict[str, VmState] = {}
        world.store.subscribe(self._hear)

    def fresh(self) -> FleetOverview:
        made = FleetOverview(self.world.store, self.world.control.placement, self.directory)
        self.world.do(made.ensure_built())
        return made

    def _hear(self, committed: AppliedCommit) -> None:
        self.told.update(self.overview.changes_in(committed.commit))

    def computed(self) -> dict[str, VmState]:
        """The dumb way: every VM with the live events of its scope."""
        live = self.world.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
        return {vm.key: vm_state(vm, [e for e in live if e.scope_id == vm.scope_id]) for vm in self.world.store.vms()}

    def kept(self, overview: FleetOverview) -> dict[str, VmState]:
        return {key: overview.state_of(key) for key in overview.visible_keys(self.everybody())}

    def everybody(self) -> VisibleDirectory:
        return VisibleDirectory(self.directory, owner_principal("ann"))

    def seen_by(self, *over: str) -> VisibleDirectory:
        grants = tuple(Grant(id=str(n), role=Role.READER, to="client:ci", over=one) for n, one in enumerate(over))
        return VisibleDirectory(self.directory, Principal(id="client:ci", name="client ci", grants=grants))


@contextmanager
def looking() -> Iterator[Looking]:
    world = make_world()
    try:
        yield Looking(world)
    finally:
        world.close()


@pytest.fixture
def look() -> Iterator[Looking]:
    with looking() as made:
        yield made


def test_the_overview_counts_vm_states(look: Looking) -> None:
    look.world.ask(RequestedOperation.RESTART, "web-1")
    look.world.ask(RequestedOperation.POWER_OFF, "db")
    counts = look.overview.count_states(look.everybody())
    assert {state.value: count for state, count in counts.items() if count} == {
        "running": 5,
        "noticed": 1,
        "started": 1,
    }
    look.world.advance(60)
    assert look.overview.count_states(look.everybody())[VmState.STOPPED] == 1


def test_a_commit_reports_the_vms_whose_state_changed(look: Looking) -> None:
    look.world.ask(RequestedOperation.RESTART, "web-1")
    assert look.told == {"sub/lab/web-1": VmState.EVENT_SCHEDULED}
    look.told.clear()
    look.world.advance(15 * 60)
    assert look.told == {"sub/lab/web-1": VmState.REBOOTING}


def test_added_and_removed_vms_are_reported_as_changes(look: Looking) -> None:
    late, db = a_vm("late"), look.world.vm("db")
    look.world.do(look.world.control.fleet.apply_change(FleetChange(vms=(late,), removed=(db,), text="x"), who="ann"))
    assert look.told == {"sub/lab/late": VmState.RUNNING, "sub/lab/db": VmState.GONE}
    assert look.overview.state_of("sub/lab/db") is VmState.GONE


def test_the_overview_lists_the_vms_of_a_scope(look: Looking) -> None:
    look.world.ask(RequestedOperation.RESTART, "web-1")
    assert look.overview.vm_states_in("set:sub/lab/web") == [
        ("sub/lab/web-0", VmState.RUNNING),
        ("sub/lab/web-1", VmState.EVENT_SCHEDULED),
        ("sub/lab/web-2", VmState.RUNNING),
    ]
    assert look.overview.vm_states_in("vm:sub/lab/db") == [("sub/lab/db", VmState.RUNNING)]
    assert look.overview.vm_states_in("set:sub/lab/none") == []


@pytest.mark.parametrize(
    ("over", "seen"),
    [
        ("/subscriptions/SUB", 8),
        ("/subscriptions/sub/resourceGroups/lab", 7),
        ("/subscriptions/sub/resourceGroups/other", 1),
        ("/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/DB", 1),
        ("/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool", 2),
        ("/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/availabilitySets/web", 0),
        ("/subscriptions/sub/resourceGroups/la", 0),
    ],
)
def test_a_caller_is_shown_the_states_of_visible_vms_only(look: Looking, over: str, seen: int) -> None:
    other = a_vm("other", resource_group="other")
    look.world.do(look.world.control.fleet.apply_change(FleetChange(vms=(other,), text="x"), who="ann"))
    outlook = look.seen_by(over)
    assert sum(look.overview.count_states(outlook).values()) == seen
    assert set(look.overview.visible_keys(outlook)) == {vm.key for vm in look.world.store.vms() if outlook.can_see(vm)}


def test_a_caller_sees_a_vm_that_joins_the_visible_part(look: Looking) -> None:
    pool = look.seen_by(
        "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool"
    )
    assert look.overview.count_states(pool)[VmState.RUNNING] == 2
    third = a_vm("pool_2", scale_set="pool", placement_group="pg-0")
    look.world.do(look.world.control.fleet.apply_change(FleetChange(vms=(third,), text="x"), who="ann"))
    assert look.overview.count_states(pool)[VmState.RUNNING] == 3
    look.world.ask(RequestedOperation.POWER_OFF, "pool_2")
    assert look.overview.count_states(pool)[VmState.STARTED] == 1


def test_commits_during_the_build_are_in_the_overview() -> None:
    with looking() as look:
        made = FleetOverview(look.world.store, look.world.control.placement, look.directory)
        db = look.world.vm("db")

        async def build_and_change() -> None:
            await made.ensure_built()
            await look.world.store.commit(Commit(vms=(replace(db, removed_at=1.0),)))
            await made.ensure_built()

        look.world.do(build_and_change())
        assert look.kept(made) == look.computed()


def _ask(ask: RequestedOperation, name: str) -> Callable[[World], object]:
    return lambda world: world.ask(ask, name)


def _move(name: str, to: str) -> Callable[[World], object]:
    """No owner can; a store may all the same be told so."""
    return lambda world: world.do(
        world.store.commit(
            Commit(vms=(replace(world.vm(name), availability_set=to, scale_set="", placement_group=""),))
        )
    )


def _add(name: str) -> Callable[[World], object]:
    return lambda world: world.do(
        world.control.fleet.apply_change(FleetChange(vms=(a_vm(name),), text="added"), who="ann")
    )


def _remove(name: str) -> Callable[[World], object]:
    return lambda world: world.do(
        world.control.fleet.apply_change(FleetChange(removed=(world.vm(name),), text="removed"), who="ann")
    )


def _roll_out(host: str) -> Callable[[World], object]:
    def start(world: World) -> None:
        world.do(world.control.requests.start_rollout(Rollout(impact=RolloutImpact.REBOOT, hosts=(host,)), who="ann"))
        world.settle()

    return start


def _fail(host: str) -> Callable[[World], object]:
    def fail(world: World) -> None:
        world.do(world.control.requests.fail_host(host, who="ann"))
        world.settle()

    return fail


def _approve_all(world: World) -> None:
    for event in world.events(EventState.SCHEDULED):
        world.do(world.control.requests.approve(event.id, who="ann"))
    world.settle()


def _advance(by_s: float) -> Callable[[World], object]:
    return lambda world: world.advance(by_s)


names, hosts = st.sampled_from(NAMES), st.sampled_from(HOSTS)
asks = st.sampled_from(
    [
        ask
        for ask in RequestedOperation
        if ask.value not in ("rollout", "degrade", "fail", "replay", "perform-maintenance")
    ]
)
happenings = st.one_of(
    st.builds(_ask, asks, names),
    st.builds(_advance, st.sampled_from([1, 10, 31, 300, 900])),
    st.just(_approve_all),
    st.builds(_add, names),
    st.builds(_remove, names),
    st.builds(_move, names, st.sampled_from(["", "web", "new"])),
    st.builds(_roll_out, hosts),
    st.builds(_fail, hosts),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(happenings, min_size=1, max_size=12))
def test_an_updated_overview_equals_a_newly_built_one(happen: list[Callable[[World], object]]) -> None:
    with looking() as look:
        for one in happen:
            before = look.kept(look.overview)
            look.told.clear()
            try:
                one(look.world)
            except ForewarnError:
                pass  # what makes no sense at this moment is refused
            now = look.computed()
            assert look.kept(look.overview) == now
            assert look.kept(look.fresh()) == now
            assert Counter(now.values()) == Counter(look.overview.count_states(look.everybody()))
            changed = {key: now.get(key, VmState.GONE) for key in {*before, *now} if before.get(key) != now.get(key)}
            assert changed.items() <= look.told.items()
            assert look.told == {key: now.get(key, VmState.GONE) for key in look.told}
            seen = look.seen_by(vm_resource_id(a_vm("db")), "/subscriptions/sub/resourceGroups/none")
            assert set(look.overview.visible_keys(seen)) == {
                vm.key for vm in look.world.store.vms() if seen.can_see(vm)
            }
