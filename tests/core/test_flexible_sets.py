"""Scale sets with flexible orchestration, narrow delivery and `approve_all_down` in fleet files (spec §14)."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from msgspec.structs import replace

from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Orchestration, Vm
from forewarn.core.fleet_diff import FleetDiff, diff_fleet
from forewarn.core.fleetfile.problems import InvalidFleetFile
from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.core.fleetfile.tables import flexible_instance_ids
from forewarn.core.maintenance_configuration import SCALE_SET_TYPE, VM_TYPE, AssignmentFilter
from forewarn.core.projection import instance_facts
from forewarn.core.resource_ids import scope_resource_id, vm_resource_id
from forewarn.core.scope import scope_title_from_id, scope_title_of_vm

HOSTS = '[[hosts]]\nname = "h"\ncount = 4\n'
FLEXIBLE = '[[scale_sets]]\nname = "Work"\norchestration = "Flexible"\n'
UNIFORM = '[[scale_sets]]\nname = "Work"\n'
GROUP = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/fleet/providers/Microsoft.Compute"


def read(text: str) -> DeclaredFleet:
    return read_fleet_file(HOSTS + text)


def vms(text: str) -> tuple[Vm, ...]:
    return read(text).vms


def diff(running: str, text: str, *, live: bool = False, remove_missing: bool = True) -> FleetDiff:
    fleet = read(running)
    first = fleet.vms[0]
    event = Event(
        id="E1",
        scope_id=first.scope_id,
        request_id="R1",
        cause=Cause.USER_RESTART,
        requested_by="ann",
        vms=(first.name,),
        published_at=0.0,
        not_before=900.0,
        status=EventState.SCHEDULED,
    )
    known = [replace(vm, vm_id=f"id-{vm.name}") for vm in fleet.vms]
    events = [event] if live else []
    return diff_fleet(read(text), hosts=fleet.hosts, vms=known, live_events=events, remove_missing=remove_missing)


def test_the_vms_of_a_flexible_set_are_named_by_eight_hexadecimal_digits() -> None:
    """Spec §14.5: `set_1a2b3c4d`."""
    found = vms(f"{FLEXIBLE}count = 300")
    assert len({vm.name for vm in found}) == 300
    assert all(re.fullmatch(r"Work_[0-9a-f]{8}", vm.name) for vm in found)
    assert all(vm.computer_name == vm.name.replace("_", "") for vm in found)
    assert all(vm.orchestration is Orchestration.FLEXIBLE and vm.placement_group == "" for vm in found)
    assert vms(f'{FLEXIBLE}count = 1\ncomputer_name_prefix = "w"')[0].computer_name == f"w{found[0].name[5:]}"


def test_the_names_of_a_flexible_set_stay_when_its_count_changes_and_differ_between_sets() -> None:
    few, many = vms(f"{FLEXIBLE}count = 3"), vms(f"{FLEXIBLE}count = 9")
    assert [vm.name for vm in few] == [vm.name for vm in many[:3]]
    other = vms(f'{FLEXIBLE}count = 9\nresource_group = "other"')
    assert not {vm.name for vm in many} & {vm.name for vm in other}


def test_ids_of_a_flexible_set_never_occur_twice() -> None:
    ids = list(islice(flexible_instance_ids("sub/group/set"), 100_000))  # about one of these repeats by chance
    assert len(set(ids)) == 100_000


def test_a_flexible_set_is_one_scope_of_vm_resources() -> None:
    """Spec §14.5: no placement groups, and ids that are not below the set's."""
    found = vms(f'{FLEXIBLE}count = 250\n[[vms]]\nname = "extra"\nscale_set = "work"')
    (scope_id,) = {vm.scope_id for vm in found}
    assert scope_id == "flexible:00000000-0000-0000-0000-000000000001/fleet/work"
    assert (scope_title_from_id(scope_id), scope_title_of_vm(found[0])) == ("scale set work", "scale set Work")
    assert {vm_resource_id(vm) for vm in found} == {f"{GROUP}/virtualMachines/{vm.name}" for vm in found}
    assert {scope_resource_id(vm) for vm in found} == {f"{GROUP}/virtualMachineScaleSets/Work"}
    assert {vm.update_domain for vm in found} == set(range(5))


def test_uniform_is_the_default_and_its_names_scopes_and_ids_stay() -> None:
    for text in (f"{UNIFORM}count = 2", f'{UNIFORM}count = 2\norchestration = "Uniform"'):
        found = vms(text)
        assert [vm.name for vm in found] == ["Work_0", "Work_1"]
        assert {vm.scope_id.partition(":")[0] for vm in found} == {"placement"}
        assert vm_resource_id(found[1]) == f"{GROUP}/virtualMachineScaleSets/Work/virtualMachines/1"


def test_the_instance_metadata_of_a_vm_names_its_flexible_set() -> None:
    """Spec §14.5, §2.6: `virtualMachineScaleSet.id` is for flexible sets only."""
    flexible, uniform = vms(f"{FLEXIBLE}count = 1")[0], vms(f"{UNIFORM}count = 1")[0]
    assert instance_facts(flexible).virtual_machine_scale_set_id == f"{GROUP}/virtualMachineScaleSets/Work"
    assert instance_facts(flexible).resource_id == f"{GROUP}/virtualMachines/{flexible.name}"
    assert instance_facts(uniform).virtual_machine_scale_set_id == ""


def test_an_assignment_filter_takes_a_vm_of_a_flexible_set_for_a_vm() -> None:
    flexible, uniform = vms(f"{FLEXIBLE}count = 1")[0], vms(f"{UNIFORM}count = 1")[0]
    of_vms, of_sets = AssignmentFilter(resource_types=(VM_TYPE,)), AssignmentFilter(resource_types=(SCALE_SET_TYPE,))
    assert (of_vms.allows(flexible), of_sets.allows(flexible)) == (True, False)
    assert (of_vms.allows(uniform), of_sets.allows(uniform)) == (False, True)


NO_GROUPS = "scale set 'Work' is Flexible and has no placement groups (spec §14.5): leave out placement_group"
ONE_FAULT_DOMAIN = "fault_domains = 1\nnarrow_delivery = true\n"
# Each: the file after HOSTS, which has three lines; the line, what is wrong, the remedy.
PROBLEMS = {
    "unknown orchestration": (
        '[[scale_sets]]\nname = "s"\ncount = 1\norchestration = "Mixed"',
        'fleet.toml:7: orchestration = \'Mixed\' is not "Uniform" or "Flexible": write orchestration = "Flexible"',
    ),
    "placement group of a flexible set": (
        f'{FLEXIBLE}count = 1\nplacement_group = "a"',
        f"fleet.toml:8: {NO_GROUPS}",
    ),
    "placement group of a VM of a flexible set": (
        f'{FLEXIBLE}[[vms]]\nname = "a"\nscale_set = "Work"\nplacement_group = "a"',
        f"fleet.toml:10: {NO_GROUPS}",
    ),
    "too many VMs in a flexible set": (
        f"{FLEXIBLE}count = 1001",
        "fleet.toml:7: scale set 'Work' is Flexible and has more than 1,000 VMs: "
        "write a smaller count, or declare another scale set",
    ),
    "name of a flexible set too long": (
        f'[[scale_sets]]\nname = "{"s" * 56}"\norchestration = "Flexible"\ncount = 1',
        f"fleet.toml:5: the name '{'s' * 56}' is 56 characters long, but the limit is 55: "
        'write a plain name, such as name = "prod"',
    ),
    "narrow delivery with several fault domains": (
        f"{FLEXIBLE}count = 1\nnarrow_delivery = true",
        "fleet.toml:8: scale set 'Work' has narrow_delivery and 5 fault domains (spec §14.6): "
        "write fault_domains = 1, or leave out narrow_delivery",
    ),
    "narrow delivery of an availability set with several fault domains": (
        '[[availability_sets]]\nname = "db"\nnarrow_delivery = true',
        "fleet.toml:6: availability set 'db' has narrow_delivery and 2 fault domains (spec §14.6): "
        "write fault_domains = 1, or leave out narrow_delivery",
    ),
    "narrow delivery that is no switch": (
        f'{FLEXIBLE}count = 1\nfault_domains = 1\nnarrow_delivery = "yes"',
        "fleet.toml:9: narrow_delivery = 'yes' is not true or false: write narrow_delivery = true",
    ),
    "approval policy of one VM of a set": (
        '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\navailability_set = "db"\napprove_all_down = false',
        "fleet.toml:9: VM 'a' is in availability set 'db' and has no approve_all_down of its own: "
        "move approve_all_down to the availability set, line 4",
    ),
}


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_mistake_gets_one_sentence_with_its_line_and_remedy(text: str, problem: str) -> None:
    with pytest.raises(InvalidFleetFile) as caught:
        read(text)
    assert str(caught.value) == problem


def test_narrow_delivery_is_a_setting_of_sets_with_one_fault_domain() -> None:
    """Spec §14.6: of scale sets with either orchestration, and of availability sets."""
    for text in (
        f"{FLEXIBLE}{ONE_FAULT_DOMAIN}count = 2",
        f"{UNIFORM}{ONE_FAULT_DOMAIN}count = 2",
        f'[[availability_sets]]\nname = "db"\n{ONE_FAULT_DOMAIN}[[vms]]\nname = "a"\navailability_set = "db"',
    ):
        assert {vm.narrow_delivery for vm in vms(text)} == {True}
    assert vms(f"{FLEXIBLE}count = 1\nfault_domains = 1")[0].narrow_delivery is False


def test_a_file_may_keep_policies_from_approving_what_stops_the_last_vm() -> None:
    """Spec §14.2."""
    sets = '[[availability_sets]]\nname = "db"\napprove_all_down = false\n[[vms]]\nname = "a"\navailability_set = "db"'
    assert vms(sets)[0].approves_all_down is False
    assert vms(f"{UNIFORM}count = 1\napprove_all_down = false")[0].approves_all_down is False
    assert vms('[[vms]]\nname = "a"\napprove_all_down = false')[0].approves_all_down is False
    assert vms('[[vms]]\nname = "a"')[0].approves_all_down is True


def test_a_file_without_approve_all_down_keeps_what_azures_api_has_set() -> None:
    fleet = read('[[vms]]\nname = "a"')
    running = [replace(fleet.vms[0], vm_id="id", approves_all_down=False)]
    for keys, changes in (("", []), ("approve_all_down = true", ["approves_all_down"])):
        declared = read(f'[[vms]]\nname = "a"\n{keys}')
        found = diff_fleet(declared, hosts=fleet.hosts, vms=running, live_events=[])
        assert [change.field for vm in found.changed for change in vm.fields] == changes


def test_the_orchestration_of_a_set_cannot_change_while_it_keeps_its_vms() -> None:
    flexible, uniform = f"{FLEXIBLE}count = 2", f"{UNIFORM}count = 2"
    assert diff(uniform, flexible).problems == ()  # its VMs are replaced
    (kept,) = diff(uniform, flexible, remove_missing=False).problems
    assert kept.message.startswith("scale set 'Work' is Flexible, and its VM 'Work_0' is Uniform")
    own = '[[vms]]\nname = "a"\nscale_set = "Work"'
    (moved,) = diff(f"{UNIFORM}{own}", f"{FLEXIBLE}{own}").problems
    assert "cannot move to the scope of scale set Work" in moved.message


def test_a_flexible_set_cannot_grow_beyond_its_limit_over_several_files() -> None:
    grown = f'{FLEXIBLE}[[vms]]\nname = "more"\nscale_set = "Work"'
    (problem,) = diff(f"{FLEXIBLE}count = 1000", grown, remove_missing=False).problems
    assert problem.message == "scale set 'Work' would have 1001 VMs; the limit is 1000"


def test_who_sees_an_event_cannot_change_while_it_is_live() -> None:
    """Spec §14.6, §4.2: same number, same content."""
    before, after = f"{FLEXIBLE}count = 2\nfault_domains = 1", f"{FLEXIBLE}{ONE_FAULT_DOMAIN}count = 2"
    assert diff(before, after).problems == ()
    (problem,) = diff(before, after, live=True).problems
    assert problem.message == (
        "narrow_delivery of scale set Work cannot change while event E1 (user restart) is scheduled"
    )


EXTRA = '[[vms]]\nname = "extra"\nscale_set = "Work"\n'
NARROW, WIDE = f"{FLEXIBLE}{ONE_FAULT_DOMAIN}", f"{FLEXIBLE}fault_domains = 1\n"


def test_new_and_removed_vms_cannot_change_who_sees_a_live_event() -> None:
    """Spec §14.6: what counts is the whole set, not only VMs that are in the file and in the running fleet."""
    other = '[[vms]]\nname = "other"\nscale_set = "Work"\n'
    for running, text, is_allowed in (
        (f"{WIDE}{EXTRA}", f"{NARROW}{other}", False),  # all VMs replaced
        (f"{NARROW}{EXTRA}", f"{WIDE}{other}", False),
        (f"{NARROW}{EXTRA}", f"{NARROW}{other}", True),
    ):
        assert diff(running, text).problems == ()
        whats = [problem.message for problem in diff(running, text, live=True).problems]
        changed = "narrow_delivery of scale set Work cannot change while event E1 (user restart) is scheduled"
        assert whats == ([] if is_allowed else [changed])


@pytest.mark.parametrize(("old", "new"), [(WIDE, NARROW), (NARROW, WIDE)], ids=["on", "off"])
def test_a_file_cannot_change_narrow_delivery_for_a_part_of_a_set(old: str, new: str) -> None:
    """Spec §14.6: VMs that the file does not name and the service keeps would differ from the others."""
    (problem,) = diff(f"{old}count = 2", f"{new}{EXTRA}", remove_missing=False).problems
    kept, here = vms(f"{old}count = 1")[0], "true" if new == NARROW else "false"
    there = "false" if new == NARROW else "true"
    assert problem.sentence("fleet.toml").endswith(
        f"narrow_delivery of a set is the same for all its VMs (spec §14.6), but would be {here} for VM 'extra' and "
        f"{there} for VM {kept.name!r}, which is not in the file: write narrow_delivery = {there}, or declare all VMs "
        "of the set"
    )
    assert diff(f"{old}count = 2", f"{old}{EXTRA}", live=True, remove_missing=False).problems == ()


def test_a_uniform_set_has_one_narrow_delivery_in_all_its_placement_groups() -> None:
    grouped = '[[vms]]\nname = "extra"\nscale_set = "Work"\nplacement_group = "other"\n'
    running = f"{UNIFORM}{ONE_FAULT_DOMAIN}count = 2"
    (problem,) = diff(running, f"{UNIFORM}fault_domains = 1\n{grouped}", remove_missing=False).problems
    assert problem.message.startswith("narrow_delivery of a set is the same for all its VMs")


def test_a_set_whose_vms_are_in_several_fault_domains_cannot_become_narrow() -> None:
    """Spec §14.6: VMs keep the fault domain that the service chose when it added them."""
    running = f"{FLEXIBLE}fault_domains = 3\ncount = 3"
    (problem,) = diff(running, f"{NARROW}count = 3").problems
    second = vms(running)[1].name
    assert problem.message == f"VM {second!r} is in fault domain 1 and cannot have narrow_delivery (spec §14.6)"
    assert diff(f"{FLEXIBLE}fault_domains = 3\ncount = 1", f"{NARROW}count = 1").problems == ()


def test_a_file_about_other_vms_is_applied_beside_a_set_whose_vms_differ() -> None:
    fleet = read(f"{NARROW}count = 2")
    known = [replace(vm, vm_id=vm.name, narrow_delivery=n == 0) for n, vm in enumerate(fleet.vms)]
    alone = read('[[vms]]\nname = "alone"')
    assert diff_fleet(alone, hosts=fleet.hosts, vms=known, live_events=[], remove_missing=False).problems == ()
