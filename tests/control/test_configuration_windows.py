"""Windows of maintenance configurations (spec §13.3): VMs start in them, whichever rollout maintains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.control.dry_run import dry_run_rollout
from forewarn.control.fleet import FleetChange
from forewarn.core.azure_windows import AzureWindow, MaintenanceScope, parse_azure_window
from forewarn.core.event import Event, EventState
from forewarn.core.maintenance_configuration import (
    AssignmentFilter,
    ConfigurationAssignment,
    MaintenanceConfiguration,
)
from forewarn.core.release import start_wait
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState
from forewarn.core.vm_settings import VmSettingsChange
from forewarn.core.windows import MaintenanceCalendar, is_open, make_calendar
from tests.support.world import World, a_host, a_vm

A_DAY = 86_400.0
BERLIN = "W. Europe Standard Time"
SUBSCRIPTION, GROUP = "/subscriptions/sub", "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Worlds that begin on Monday, 2026-01-05, at noon UTC; each VM is alone on its host, in a scope of its own."""
    made: list[World] = []

    def make(*names: str, **options: Any) -> World:
        vms = options.pop("vms", None) or [a_vm(name, host=f"h-{name}") for name in names]
        hosts = [a_host(name) for name in sorted({vm.host for vm in vms})]
        made.append(World(hosts=hosts, vms=vms, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def configure(
    world: World, name: str = "nightly", hour: str = "02:00", recur_every: str = "Day", **more: Any
) -> MaintenanceConfiguration:
    scope = more.pop("scope", MaintenanceScope.HOST)
    words = AzureWindow(start=f"2026-01-05 {hour}", time_zone=BERLIN, recur_every=recur_every, **more)
    configuration = MaintenanceConfiguration(
        id=f"{GROUP}/providers/Microsoft.Maintenance/maintenanceConfigurations/{name}",
        location="westeurope",
        maintenance_scope=scope,
        azure_window=words,
        window=parse_azure_window(words, scope),
    )
    stored, _ = world.do(world.control.maintenance_configurations.put(configuration, who="ann"))
    world.settle()
    return stored


def assign(
    world: World, configuration: MaintenanceConfiguration, target: str, condition: AssignmentFilter | None = None
) -> ConfigurationAssignment:
    assignment = ConfigurationAssignment(
        id=f"{target}/providers/Microsoft.Maintenance/configurationAssignments/{configuration.name}",
        target=target,
        configuration_id=configuration.id.upper(),
        filter=condition,
    )
    stored, _ = world.do(world.control.maintenance_configurations.assign(assignment, who="ann"))
    world.settle()
    return stored


def start(
    world: World, *windows: str, impact: RolloutImpact = RolloutImpact.REBOOT, **options: Any
) -> MaintenanceRequest:
    calendar = make_calendar(windows, options.pop("blackouts", ()), options.pop("deadline", None))
    hosts = tuple(host.name for host in world.store.hosts())
    rollout = Rollout(impact=impact, hosts=hosts, calendar=calendar, max_failures=0)
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def start_on(world: World, host: str) -> MaintenanceRequest:
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=(host,))
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def move_to(world: World, vm: str, host: str) -> None:
    change = FleetChange(vms=(replace(world.vm(vm), host=host),))
    world.do(world.control.fleet.apply_change(change, who="ann"))
    world.settle()


def event_of(world: World, vm: str) -> Event:
    (event,) = [event for event in world.events() if vm in event.vms]
    return event


def test_a_vm_with_a_configuration_starts_in_its_window_and_others_after_their_notice(make_world: MakeWorld) -> None:
    world = make_world("db", "web")
    assign(world, configure(world), f"{COMPUTE}/virtualMachines/db")
    request = start(world)
    event = event_of(world, "db")
    assert event.not_before == berlin("2026-01-06T02:00")
    assert event.note == "its maintenance window of configuration nightly is open from Tue 2026-01-06 02:00 CET"
    assert event_of(world, "web").not_before == world.now + 900
    world.advance(A_DAY)
    assert event_of(world, "db").started_at == berlin("2026-01-06T02:00")
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


@pytest.mark.parametrize("target", [f"{COMPUTE}/virtualMachineScaleSets/pool", GROUP, SUBSCRIPTION])
def test_a_configuration_of_a_set_group_or_subscription_is_for_all_its_vms(make_world: MakeWorld, target: str) -> None:
    pool = [a_vm(f"pool_{n}", scale_set="pool", placement_group="pg-0", host=f"h{n}", update_domain=n) for n in (0, 1)]
    world = make_world(vms=pool)
    assign(world, configure(world), target)
    start(world)
    assert event_of(world, "pool_0").not_before == berlin("2026-01-06T02:00")


@pytest.mark.parametrize(
    ("condition", "is_held"),
    [
        (AssignmentFilter(), True),
        (AssignmentFilter(locations=("WestEurope",)), True),
        (AssignmentFilter(locations=("northeurope",)), False),
        (AssignmentFilter(os_types=("linux",), resource_groups=("LAB",)), True),
        (AssignmentFilter(os_types=("Windows",)), False),
        (AssignmentFilter(resource_groups=("other",)), False),
        (AssignmentFilter(resource_types=("Microsoft.Compute/virtualMachines",)), True),
        (AssignmentFilter(resource_types=("Microsoft.Compute/virtualMachineScaleSets",)), False),
        (AssignmentFilter(tags={"Team": ("shop",)}), True),
        (AssignmentFilter(tags={"team": ()}), True),
        (AssignmentFilter(tags={"team": ("Shop",)}), False),
        (AssignmentFilter(tags={"team": ("shop",), "stage": ("test",)}), True),
        (AssignmentFilter(tags={"team": ("shop",), "stage": ("test",)}, needs_all_tags=True), False),
    ],
)
def test_a_filter_says_which_vms_of_a_subscription_have_the_window(
    make_world: MakeWorld, condition: AssignmentFilter, is_held: bool
) -> None:
    world = make_world(vms=[a_vm("db", host="h1", tags={"team": "shop"})])
    assign(world, configure(world), SUBSCRIPTION, condition)
    start(world)
    assert (event_of(world, "db").calendar is not None) is is_held


@pytest.mark.parametrize("scope", [MaintenanceScope.OS_IMAGE, MaintenanceScope.IN_GUEST_PATCH])
def test_configurations_of_other_scopes_hold_no_platform_maintenance(
    make_world: MakeWorld, scope: MaintenanceScope
) -> None:
    world = make_world("db")
    assign(world, configure(world, scope=scope), SUBSCRIPTION)
    start(world)
    assert event_of(world, "db").calendar is None


def test_windows_of_a_configuration_take_the_place_of_the_rollouts_own(make_world: MakeWorld) -> None:
    """The rollout's blackout dates and its deadline hold for the VM all the same."""
    world = make_world("db", "web")
    assign(world, configure(world), f"{COMPUTE}/virtualMachines/db")
    start(world, "12:00 3h Europe/Berlin", blackouts=("2026-01-06",))
    assert event_of(world, "web").not_before == world.now + 900
    assert event_of(world, "db").not_before == berlin("2026-01-07T02:00")


def test_at_the_deadline_of_the_rollout_a_configuration_no_longer_matters(make_world: MakeWorld) -> None:
    world = make_world("db")
    assign(world, configure(world, recur_every="Month Last Sunday"), SUBSCRIPTION)
    start(world, "12:00 3h Europe/Berlin", deadline=berlin("2026-01-08T09:00"))
    event = event_of(world, "db")
    assert event.not_before == berlin("2026-01-08T09:00")
    assert event.note == (
        "its deadline, Thu 2026-01-08 09:00 CET, comes before its next maintenance window of configuration nightly"
    )


def test_two_configurations_of_a_vm_both_open_windows(make_world: MakeWorld) -> None:
    world = make_world("db")
    assign(world, configure(world, "sunday", recur_every="Week Sunday"), SUBSCRIPTION)
    assign(world, configure(world, "wednesday", recur_every="Week Wednesday"), GROUP)
    start(world)
    event = event_of(world, "db")
    assert event.not_before == berlin("2026-01-07T02:00")
    assert event.calendar is not None
    assert event.calendar.source == "configurations sunday, wednesday"


def test_vms_of_one_host_start_when_windows_of_all_of_them_are_open(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h1")])
    assign(world, configure(world, "early", "01:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "late", "02:00", duration="04:00"), f"{COMPUTE}/virtualMachines/web")
    start(world)
    assert {event.not_before for event in world.events()} == {berlin("2026-01-06T02:00")}
    world.advance(A_DAY)
    assert {event.started_at for event in world.events()} == {berlin("2026-01-06T02:00")}


def test_events_name_only_configurations_of_their_own_scope(make_world: MakeWorld) -> None:
    """Users of one scope learn that other VMs of the host have windows, but not whose."""
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h1"), a_vm("free", host="h1")])
    assign(world, configure(world, "mine", "01:00", duration="04:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "theirs", duration="04:00"), f"{COMPUTE}/virtualMachines/web")
    start(world)
    opens = "is open from Tue 2026-01-06 02:00 CET"
    assert {event.vms[0]: event.note for event in world.events()} == {
        "db": f"its maintenance window of configuration mine and other VMs of the host {opens}",
        "web": f"its maintenance window of configuration theirs and other VMs of the host {opens}",
        "free": f"its maintenance window of other VMs of the host {opens}",
    }
    configure(world, "theirs", "03:00", duration="04:00")
    assert event_of(world, "db").note == "it starts in a window of configuration mine and other VMs of the host"
    scope_id = world.vm("db").scope_id
    assert not [e for e in world.store.history() if e.scope_id == scope_id and "theirs" in e.text]
    world.advance(A_DAY)
    assert {event.started_at for event in world.events()} == {berlin("2026-01-06T03:00")}


def test_a_rollout_stops_if_the_windows_of_a_hosts_vms_never_meet(make_world: MakeWorld) -> None:
    """What can start is done before; nothing is published for the host that can never start."""
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h1"), a_vm("free", host="h2")])
    assign(world, configure(world, "night", "02:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "noon", "12:00"), f"{COMPUTE}/virtualMachines/web")
    request = start(world)
    world.advance(A_DAY)
    assert [event.vms for event in world.events()] == [("free",)]
    assert world.rollout(request.id).progress is RolloutState.STOPPED
    assert world.rollout(request.id).reason == "no maintenance window follows in which the other VMs could start"


def test_live_migrations_on_one_host_start_each_in_its_own_window(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h1"), a_vm("free", host="h2")])
    assign(world, configure(world, "night", "02:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "noon", "12:00"), f"{COMPUTE}/virtualMachines/web")
    start(world, impact=RolloutImpact.MIGRATE)
    assert event_of(world, "db").not_before == berlin("2026-01-06T02:00")
    assert event_of(world, "web").not_before == world.now + 900  # it is 13:00 there


def test_an_assignment_holds_an_event_that_was_published_before(make_world: MakeWorld) -> None:
    """Its NotBefore stays; without an approval it starts in the window."""
    world = make_world("db")
    start(world)
    event = event_of(world, "db")
    assign(world, configure(world), SUBSCRIPTION)
    held = event_of(world, "db")
    assert (held.not_before, held.note) == (event.not_before, "it starts in a window of configuration nightly")
    world.advance(3600)
    scope = world.scope("db")
    wait = start_wait(scope, event_of(world, "db"), world.control.transactions.context_for(scope))
    assert wait is not None
    assert wait.text == (
        "an approval, or its next maintenance window of configuration nightly, Tue 2026-01-06 02:00 CET"
    )
    world.advance(A_DAY)
    assert event_of(world, "db").started_at == berlin("2026-01-06T02:00")


def test_removing_the_assignment_lets_an_event_start_whose_notice_is_over(make_world: MakeWorld) -> None:
    world = make_world("db")
    start(world)
    assignment = assign(world, configure(world), SUBSCRIPTION)
    world.advance(3600)
    assert event_of(world, "db").status is EventState.SCHEDULED
    world.do(world.control.maintenance_configurations.unassign(assignment.id, who="ann"))
    world.settle()
    assert event_of(world, "db").started_at == world.now


def test_a_changed_window_moves_the_start_of_events_behind_a_gate(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h1")])
    configuration = configure(world)
    assign(world, configuration, SUBSCRIPTION)
    start(world)
    configure(world, hour="04:00")
    world.advance(A_DAY)
    assert {event.started_at for event in world.events()} == {berlin("2026-01-06T04:00")}


def test_a_crash_after_a_configuration_changed_loses_nothing(make_world: MakeWorld) -> None:
    world = make_world("db")
    start(world)
    configuration = configure(world)
    assignment = ConfigurationAssignment(id="/a", target=SUBSCRIPTION, configuration_id=configuration.id)
    world.do(world.control.maintenance_configurations.assign(assignment, who="ann"))  # no pass follows
    world.restart()
    world.advance(3600)
    assert event_of(world, "db").status is EventState.SCHEDULED
    world.advance(A_DAY)
    assert event_of(world, "db").started_at == berlin("2026-01-06T02:00")


def test_a_tag_that_matches_a_filter_holds_an_event_that_was_published_before(make_world: MakeWorld) -> None:
    world = make_world("db")
    assign(world, configure(world), SUBSCRIPTION, AssignmentFilter(tags={"team": ("shop",)}))
    start(world)
    change = VmSettingsChange(tags={"team": "shop"})
    world.do(world.control.fleet.update_settings([world.vm("db")], change, label="db", who="ann"))
    world.settle()
    world.advance(A_DAY)
    assert event_of(world, "db").started_at == berlin("2026-01-06T02:00")


def test_a_changed_fleet_lets_an_event_start_that_a_filter_held(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1", tags={"team": "shop"})])
    assign(world, configure(world), SUBSCRIPTION, AssignmentFilter(tags={"team": ("shop",)}))
    start(world)
    untagged = replace(world.vm("db"), tags={})
    world.do(world.control.fleet.apply_change(FleetChange(vms=(untagged,)), who="ann"))
    world.settle()
    assert event_of(world, "db").calendar is None


def test_a_vm_that_joins_a_closed_gate_starts_when_windows_of_both_are_open(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h2")])
    assign(world, configure(world, "early", "01:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "late", "02:00", duration="04:00"), f"{COMPUTE}/virtualMachines/web")
    start_on(world, "h1")
    move_to(world, "web", "h1")
    assert len({event.gate_id for event in world.events()}) == 1
    world.advance(A_DAY)
    assert {event.started_at for event in world.events()} == {berlin("2026-01-06T02:00")}


def test_a_rollout_stops_if_a_vm_joins_a_gate_whose_windows_its_own_never_meet(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm("db", host="h1"), a_vm("web", host="h2")])
    assign(world, configure(world, "night", "02:00"), f"{COMPUTE}/virtualMachines/db")
    assign(world, configure(world, "evening", "20:00"), f"{COMPUTE}/virtualMachines/web")
    request = start_on(world, "h1")
    move_to(world, "web", "h1")
    assert world.rollout(request.id).progress is RolloutState.STOPPED
    assert world.rollout(request.id).reason == "no maintenance window follows in which the other VMs could start"


def test_an_approval_starts_an_event_before_the_window_of_its_configuration(make_world: MakeWorld) -> None:
    world = make_world("db")
    assign(world, configure(world), SUBSCRIPTION)
    start(world)
    world.approve("db", event_of(world, "db").id)
    assert event_of(world, "db").started_at == world.now


def test_an_expired_configuration_has_no_effect(make_world: MakeWorld) -> None:
    world = make_world("db", "web")
    expiring = configure(world, expires="2026-01-06 01:00")
    assign(world, expiring, f"{COMPUTE}/virtualMachines/db")
    start(world, "12:00 3h Europe/Berlin")
    assert event_of(world, "db").not_before == world.now + 900


def test_an_event_that_waits_starts_once_its_configuration_has_expired(make_world: MakeWorld) -> None:
    """The grace period after a restart takes the rest of the last window."""
    world = make_world("db")
    assign(world, configure(world, expires="2026-01-06 03:00"), SUBSCRIPTION)
    request = start(world)
    world.do(world.control.close())
    world.clock.apply_setting(world.clock.setting_after_jump(berlin("2026-01-06T02:59") + 30))
    world.restart()
    world.advance(A_DAY)
    started_at = event_of(world, "db").started_at
    assert started_at is not None
    assert started_at <= berlin("2026-01-06T03:01")
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


def test_a_rollout_whose_own_windows_are_over_goes_on_in_those_of_configurations(make_world: MakeWorld) -> None:
    world = make_world(vms=[a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in range(3)])
    assign(world, configure(world), SUBSCRIPTION)
    request = start(world, "2026-01-06T02:00 2h Europe/Berlin")
    world.advance(10 * A_DAY)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


def test_a_dry_run_shows_the_windows_of_configurations(make_world: MakeWorld) -> None:
    world = make_world("db")
    assign(world, configure(world), SUBSCRIPTION)
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h-db",))
    preview = world.do(dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    (event,) = preview.events
    assert event.starts_at == berlin("2026-01-06T02:00")


def test_writing_a_configuration_unchanged_touches_no_event(make_world: MakeWorld) -> None:
    world = make_world("db")
    configuration = configure(world)
    assign(world, configuration, SUBSCRIPTION)
    start(world)
    before = world.scope("db")
    configure(world)
    world.do(world.control.maintenance_configurations.put(replace(configuration, tags={"a": "b"}), who="ann"))
    world.settle()
    assert world.scope("db") == before


HOURS = st.sampled_from([None, "00:00", "01:00", "02:00", "12:30", "23:00"])


@given(
    hours=st.tuples(HOURS, HOURS, HOURS),
    is_shared=st.booleans(),
    late=st.booleans(),
    impact=st.sampled_from(RolloutImpact),
)
@settings(max_examples=15, deadline=None)
def test_no_unapproved_start_is_outside_of_the_windows_of_its_vms(
    hours: tuple[str | None, ...], is_shared: bool, late: bool, impact: RolloutImpact
) -> None:
    """Whether the configurations are assigned before or after the events are published."""
    vms = [a_vm(f"web-{n}", host="h0" if is_shared else f"h{n}") for n in range(3)]
    world = World(hosts=[a_host(f"h{n}") for n in range(4)], vms=vms)
    try:
        if late:
            start(world, impact=impact)
        windows = {}
        for vm, hour in zip(vms, hours, strict=True):
            if hour is not None:
                configuration = configure(world, f"of-{vm.name}", hour)
                assign(world, configuration, f"{COMPUTE}/virtualMachines/{vm.name}")
                windows[vm.name] = MaintenanceCalendar(windows=(configuration.window,))
        if not late:
            start(world, impact=impact)
        world.advance(3 * A_DAY)
        for event in world.events():
            for name in event.vms:
                if event.started_at is not None and name in windows:
                    assert is_open(windows[name], event.started_at), (event.vms, hours)
    finally:
        world.close()
