"""The fleet overview: after any sequence of changes it equals one that is computed anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.control.directory import FleetDirectory
from forewarn.control.fleet import FleetChange
from forewarn.control.visibility import VisibleDirectory
from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.explain.explanation import VmState, vm_state
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.core.resource_ids import vm_resource_id
from forewarn.errors import ForewarnError
from forewarn.store.interface import AppliedCommit
from forewarn.web.portal.fleet_overview import FleetOverview
from tests.support.operator_api import make_world
from tests.support.world import World, a_vm

NAMES = ("web-0", "web-1", "web-2", "db", "spot", "pool_0", "pool_1", "late")
HOSTS = ("h1", "h2", "h3")


class OverviewFixture:
    """A world with an overview, which records the changes that the overview reports."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = FleetDirectory(world.store)
        self.overview = self.build_overview()
        self.changes: dict[str, VmState] = {}
        world.store.subscribe(self._on_commit)

    def build_overview(self) -> FleetOverview:
        overview = FleetOverview(self.world.store, self.world.control.placement, self.directory)
        self.world.do(overview.ensure_built())
        return overview

    def _on_commit(self, committed: AppliedCommit) -> None:
        self.changes.update(self.overview.changes_in(committed.commit))

    def compute_states(self) -> dict[str, VmState]:
        """The states of all VMs, each computed from the live events of its scope."""
        live = self.world.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
        return {vm.key: vm_state(vm, [e for e in live if e.scope_id == vm.scope_id]) for vm in self.world.store.vms()}

    def states_in(self, overview: FleetOverview) -> dict[str, VmState]:
        return {key: overview.state_of(key) for key in overview.visible_keys(self.full_directory())}

    def full_directory(self) -> VisibleDirectory:
        return VisibleDirectory(self.directory, owner_principal("ann"))

    def reader_directory(self, *over: str) -> VisibleDirectory:
        grants = tuple(
            Grant(id=str(n), role=Role.READER, principal="client:ci", resource=resource)
            for n, resource in enumerate(over)
        )
        return VisibleDirectory(self.directory, Principal(id="client:ci", name="client ci", grants=grants))


@contextmanager
def make_overview() -> Iterator[OverviewFixture]:
    world = make_world()
    try:
        yield OverviewFixture(world)
    finally:
        world.close()


@pytest.fixture
def observed() -> Iterator[OverviewFixture]:
    with make_overview() as overview:
        yield overview


def test_the_overview_counts_vm_states(observed: OverviewFixture) -> None:
    observed.world.ask(RequestedOperation.RESTART, "web-1")
    observed.world.ask(RequestedOperation.POWER_OFF, "db")
    counts = observed.overview.count_states(observed.full_directory())
    assert {state.value: count for state, count in counts.items() if count} == {
        "running": 5,
        "noticed": 1,
        "started": 1,
    }
    observed.world.advance(60)
    assert observed.overview.count_states(observed.full_directory())[VmState.STOPPED] == 1


def test_visible_hosts_and_scopes_are_those_of_visible_vms(observed: OverviewFixture) -> None:
    db = observed.world.vm("db")
    assert observed.overview.visible_hosts(observed.full_directory()) is None
    assert observed.overview.visible_scopes(observed.full_directory()) is None
    reader = observed.reader_directory(vm_resource_id(db))
    assert observed.overview.visible_hosts(reader) == frozenset({db.host})
    assert observed.overview.visible_scopes(reader) == frozenset({db.scope_id})
    group = observed.reader_directory("/subscriptions/sub/resourceGroups/lab")
    vms = observed.world.store.vms()
    assert observed.overview.visible_hosts(group) == frozenset(vm.host for vm in vms)
    assert observed.overview.visible_scopes(group) == frozenset(vm.scope_id for vm in vms)
    observed.world.do(observed.world.control.fleet.apply_change(FleetChange(removed=(db,), text="x"), who="ann"))
    assert observed.overview.visible_hosts(reader) == observed.overview.visible_scopes(reader) == frozenset()


def test_a_commit_reports_the_vms_whose_state_changed(observed: OverviewFixture) -> None:
    observed.world.ask(RequestedOperation.RESTART, "web-1")
    assert observed.changes == {"sub/lab/web-1": VmState.EVENT_SCHEDULED}
    observed.changes.clear()
    observed.world.advance(15 * 60)
    assert observed.changes == {"sub/lab/web-1": VmState.REBOOTING}


def test_added_and_removed_vms_are_reported_as_changes(observed: OverviewFixture) -> None:
    late, db = a_vm("late"), observed.world.vm("db")
    observed.world.do(
        observed.world.control.fleet.apply_change(FleetChange(vms=(late,), removed=(db,), text="x"), who="ann")
    )
    assert observed.changes == {"sub/lab/late": VmState.RUNNING, "sub/lab/db": VmState.GONE}
    assert observed.overview.state_of("sub/lab/db") is VmState.GONE


def test_the_overview_lists_the_vms_of_a_scope(observed: OverviewFixture) -> None:
    observed.world.ask(RequestedOperation.RESTART, "web-1")
    (group,) = observed.overview.all_groups()
    assert [(key, group.state_of(key)) for key in group.blocks["set:sub/lab/web"].keys] == [
        ("sub/lab/web-0", VmState.RUNNING),
        ("sub/lab/web-1", VmState.EVENT_SCHEDULED),
        ("sub/lab/web-2", VmState.RUNNING),
    ]
    assert list(group.blocks["vms:sub/lab"].keys) == ["sub/lab/db", "sub/lab/spot"]
    assert group.state_of("sub/lab/db") is VmState.RUNNING
    assert "set:sub/lab/none" not in group.blocks


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
def test_a_caller_is_shown_the_states_of_visible_vms_only(observed: OverviewFixture, over: str, seen: int) -> None:
    other = a_vm("other", resource_group="other")
    observed.world.do(observed.world.control.fleet.apply_change(FleetChange(vms=(other,), text="x"), who="ann"))
    visible = observed.reader_directory(over)
    assert sum(observed.overview.count_states(visible).values()) == seen
    assert set(observed.overview.visible_keys(visible)) == {
        vm.key for vm in observed.world.store.vms() if visible.can_see(vm)
    }


def test_a_caller_sees_a_vm_that_joins_the_visible_part(observed: OverviewFixture) -> None:
    pool = observed.reader_directory(
        "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool"
    )
    assert observed.overview.count_states(pool)[VmState.RUNNING] == 2
    third = a_vm("pool_2", scale_set="pool", placement_group="pg-0")
    observed.world.do(observed.world.control.fleet.apply_change(FleetChange(vms=(third,), text="x"), who="ann"))
    assert observed.overview.count_states(pool)[VmState.RUNNING] == 3
    observed.world.ask(RequestedOperation.POWER_OFF, "pool_2")
    assert observed.overview.count_states(pool)[VmState.STARTED] == 1


@pytest.mark.parametrize(
    ("over", "seen"),
    [
        ("", {"sub/lab": None}),
        ("/providers/Microsoft.Compute/virtualMachines/web-1", {"sub/lab": frozenset({"set:sub/lab/web"})}),
        ("/providers/Microsoft.Compute/virtualMachines/db", {"sub/lab": frozenset({"vm:sub/lab/db"})}),
        ("/providers/Microsoft.Compute/virtualMachines/none", {}),
    ],
    ids=["the whole group", "a VM of a set", "a standalone VM", "nothing"],
)
def test_a_caller_sees_the_scopes_of_visible_vms(
    observed: OverviewFixture, over: str, seen: dict[str, frozenset[str] | None]
) -> None:
    directory = observed.reader_directory(f"/subscriptions/sub/resourceGroups/lab{over}")
    scopes = observed.overview.visible_scopes_by_group(directory)
    assert scopes.by_group == seen
    assert scopes.has("vm:sub/lab/db") is (over in ("", "/providers/Microsoft.Compute/virtualMachines/db"))
    assert not scopes.has("vm:sub/other/db")


def test_results_are_cached_by_grants_until_a_vm_is_added(observed: OverviewFixture) -> None:
    made: list[VisibleDirectory] = []

    def count_vms(overview: FleetOverview, directory: VisibleDirectory) -> int:
        made.append(directory)
        return sum(1 for _ in overview.visible_keys(directory))

    def cached(directory: VisibleDirectory) -> int:
        return observed.overview.cached(count_vms, directory)

    lab = "/subscriptions/sub/resourceGroups/lab"
    assert [cached(observed.reader_directory(lab)) for _ in range(2)] == [7, 7]
    assert [cached(observed.full_directory()) for _ in range(2)] == [7, 7]
    assert len(made) == 2
    observed.world.do(observed.world.control.fleet.apply_change(FleetChange(vms=(a_vm("late"),), text="x"), who="ann"))
    assert (cached(observed.reader_directory(lab)), cached(observed.full_directory()), len(made)) == (8, 8, 4)
    for number in range(20):
        cached(observed.reader_directory(f"/subscriptions/s{number}"))
    assert (cached(observed.full_directory()), len(made)) == (8, 24)
    assert (cached(observed.reader_directory(lab)), len(made)) == (8, 25)


def test_commits_during_the_build_are_in_the_overview() -> None:
    with make_overview() as observed:
        overview = FleetOverview(observed.world.store, observed.world.control.placement, observed.directory)
        db = observed.world.vm("db")

        async def build_and_change() -> None:
            await overview.ensure_built()
            await observed.world.store.commit(Commit(vms=(replace(db, removed_at=1.0),)))
            await overview.ensure_built()

        observed.world.do(build_and_change())
        assert observed.states_in(overview) == observed.compute_states()


def _request(operation: RequestedOperation, name: str) -> Callable[[World], object]:
    return lambda world: world.ask(operation, name)


def _move(name: str, to: str) -> Callable[[World], object]:
    """Moves a VM to another set, which no request can do but the store accepts."""
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
        world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.REBOOT, hosts=(host,)), who="ann"))
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
operations = st.sampled_from(
    [
        operation
        for operation in RequestedOperation
        if operation.value not in ("rollout", "degrade", "fail", "replay", "perform-maintenance")
    ]
)
steps = st.one_of(
    st.builds(_request, operations, names),
    st.builds(_advance, st.sampled_from([1, 10, 31, 300, 900])),
    st.just(_approve_all),
    st.builds(_add, names),
    st.builds(_remove, names),
    st.builds(_move, names, st.sampled_from(["", "web", "new"])),
    st.builds(_roll_out, hosts),
    st.builds(_fail, hosts),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=12))
def test_an_updated_overview_equals_a_newly_built_one(steps_taken: list[Callable[[World], object]]) -> None:
    with make_overview() as observed:
        for step in steps_taken:
            before = observed.states_in(observed.overview)
            observed.changes.clear()
            try:
                step(observed.world)
            except ForewarnError:
                pass  # such as a start of a running VM: it is refused
            now = observed.compute_states()
            assert observed.states_in(observed.overview) == now
            assert observed.states_in(observed.build_overview()) == now
            assert Counter(now.values()) == Counter(observed.overview.count_states(observed.full_directory()))
            changed = {key: now.get(key, VmState.GONE) for key in {*before, *now} if before.get(key) != now.get(key)}
            assert changed.items() <= observed.changes.items()
            assert observed.changes == {key: now.get(key, VmState.GONE) for key in observed.changes}
            seen = observed.reader_directory(vm_resource_id(a_vm("db")), "/subscriptions/sub/resourceGroups/none")
            assert set(observed.overview.visible_keys(seen)) == {
                vm.key for vm in observed.world.store.vms() if seen.can_see(vm)
            }
