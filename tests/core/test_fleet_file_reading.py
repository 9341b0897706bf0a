"""The hosts and VMs that a valid fleet file declares."""

from __future__ import annotations

from collections import Counter

import pytest

from forewarn.core.fleet import AutoApproval, EvictionPolicy, Host, Priority, Vm
from forewarn.core.fleetfile.reader import DeclaredFleet, DeclaredResourceGroup, DeclaredSubscription, read_fleet_file

HOSTS = '[[hosts]]\nname = "h"\ncount = 4\n'


def read(text: str) -> DeclaredFleet:
    return read_fleet_file(HOSTS + text)


def vm(text: str, name: str) -> Vm:
    return next(vm for vm in read(text).vms if vm.name == name)


def names(text: str) -> list[str]:
    return [vm.name for vm in read(text).vms]


def test_an_empty_file_is_an_empty_fleet() -> None:
    fleet = read_fleet_file("")
    assert (fleet.hosts, fleet.vms) == ((), ())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ('name = "web"', ["web"]),
        ('name = "web-{n}"', ["web-0"]),
        ('name = "web-{n}"\ncount = 3', ["web-0", "web-1", "web-2"]),
        ('name = "web-{n:03}"\ncount = 2', ["web-000", "web-001"]),
        ('name = "{n}-of-{n}"\ncount = 2\nfirst = 9', ["9-of-9", "10-of-10"]),
        ('name = "web"\ncount = 2', ["web-0", "web-1"]),
        ('name = "web"\ncount = 1', ["web-0"]),
    ],
    ids=["plain", "pattern alone", "pattern", "digits", "first", "count adds a number", "a count of one too"],
)
def test_a_pattern_numbers_the_names_of_vms(keys: str, expected: list[str]) -> None:
    assert names(f"[[vms]]\n{keys}") == expected


def test_a_vm_without_keys_gets_the_defaults() -> None:
    text = (
        '[defaults]\nresource_group = "rg"\nsize = "L"\nos_type = "Windows"\ntags = { a = "1" }\n[[vms]]\nname = "web"'
    )
    assert vm(text, "web") == Vm(
        name="web",
        vm_id="",
        subscription_id="00000000-0000-0000-0000-000000000001",
        resource_group="rg",
        location="local",
        computer_name="web",
        size="L",
        os_type="Windows",
        tags={"a": "1"},
        host="h-0",
    )


def test_a_vm_may_set_every_key_itself() -> None:
    text = """
[[hosts]]
name = "z1"
location = "north"
zone = "1"
[[vms]]
name = "web"
subscription = "6F1A4B52-7c3e-4a51-9a0e-2f60c1b7a001"
resource_group = "rg"
location = "north"
zone = "1"
computer_name = "w"
size = "L"
os_type = "Windows"
priority = "Spot"
eviction_policy = "Delete"
auto_approve = ["redeploy"]
tags = { b = "2" }
address = "10.0.0.4"
host = "Z1"
"""
    assert vm(text, "web") == Vm(
        name="web",
        vm_id="",
        subscription_id="6F1A4B52-7c3e-4a51-9a0e-2f60c1b7a001",
        resource_group="rg",
        location="north",
        zone="1",
        computer_name="w",
        size="L",
        os_type="Windows",
        priority=Priority.SPOT,
        eviction_policy=EvictionPolicy.DELETE,
        auto_approve=AutoApproval(redeploy=True),
        tags={"b": "2"},
        address="10.0.0.4",
        host="z1",
    )


def test_values_of_the_vm_win_over_those_of_its_set_group_and_defaults() -> None:
    text = """
[defaults]
location = "far"
size = "S"
tags = { a = "default", b = "default", c = "default" }
[[hosts]]
name = "x"
location = "near"
[[resource_groups]]
name = "rg"
location = "near"
[[availability_sets]]
name = "db"
resource_group = "rg"
size = "M"
tags = { b = "set", c = "set" }
[[vms]]
name = "one"
availability_set = "db"
tags = { c = "vm" }
[[vms]]
name = "two"
availability_set = "db"
size = "L"
"""
    one, two = vm(text, "one"), vm(text, "two")
    assert (one.resource_group, one.location, one.size) == ("rg", "near", "M")
    assert one.tags == {"a": "default", "b": "set", "c": "vm"}
    assert two.size == "L"


def test_a_subscription_can_be_named_by_name_or_id() -> None:
    guid = "6f1a4b52-7c3e-4a51-9a0e-2f60c1b7a001"
    declared = f'[[subscriptions]]\nname = "Prod"\nid = "{guid}"\n'
    group = '[[resource_groups]]\nname = "rg"\nsubscription = "prod"\ntags = { a = "1" }\n'
    fleet = read(
        f'{declared}{group}[[vms]]\nname = "a"\nsubscription = "PROD"\n[[vms]]\nname = "b"\nsubscription = "{guid}"'
    )
    assert [vm.subscription_id for vm in fleet.vms] == [guid, guid]
    assert fleet.subscriptions == (DeclaredSubscription(id=guid, name="Prod"),)
    assert fleet.resource_groups == (
        DeclaredResourceGroup(name="rg", subscription_id=guid, location="local", tags={"a": "1"}),
    )


def test_vms_of_a_set_take_its_update_and_fault_domains_in_turn_over_all_tables() -> None:
    """Spec §7.3 needs this."""
    text = (
        '[[availability_sets]]\nname = "db"\nupdate_domains = 3\n'
        '[[vms]]\nname = "a"\ncount = 2\navailability_set = "db"\n'
        '[[vms]]\nname = "b"\ncount = 3\navailability_set = "DB"\n'
        '[[vms]]\nname = "c"\navailability_set = "db"\nupdate_domain = 2\nfault_domain = 1\n'
    )
    assert [(vm.update_domain, vm.fault_domain) for vm in read(text).vms] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (0, 1),
        (1, 0),
        (2, 1),
    ]
    assert len({vm.scope_id for vm in read(text).vms}) == 1


def test_scale_set_instances_have_the_names_and_hostnames_of_azure() -> None:
    """Spec §4.2: instance `set_7`, hostname `set000007`, base 36."""
    vms = read('[[scale_sets]]\nname = "set"\ncount = 38').vms
    assert (vms[7].name, vms[7].computer_name) == ("set_7", "set000007")
    assert (vms[35].computer_name, vms[36].computer_name) == ("set00000Z", "set000010")


def test_instances_inherit_the_values_of_their_scale_set() -> None:
    text = (
        '[[scale_sets]]\nname = "set"\ncount = 2\nterminate_notification = 15\nauto_approve = ["restart"]\n'
        'computer_name_prefix = "w"\naddress = "10.1.0.255"\nsize = "L"\n'
    )
    first, second = read(text).vms
    assert (first.terminate_notice_min, first.auto_approve, first.size) == (15, AutoApproval(restart=True), "L")
    assert (second.computer_name, second.address) == ("w000001", "10.1.1.0")


def test_a_big_scale_set_has_placement_groups_of_a_hundred() -> None:
    """Spec §7.1: at most 100 VMs."""
    vms = read('[[scale_sets]]\nname = "set"\ncount = 250').vms
    assert Counter(vm.placement_group for vm in vms) == {"pg-0": 100, "pg-1": 100, "pg-2": 50}
    assert len({vm.scope_id for vm in vms}) == 3


def test_a_named_placement_group_may_have_exactly_a_hundred_vms() -> None:
    """Spec §7.1."""
    vms = read('[[scale_sets]]\nname = "set"\ncount = 100\nplacement_group = "pg"').vms
    assert {vm.scope_id for vm in vms} == {vms[0].scope_id}


def test_a_vm_that_joins_a_scale_set_inherits_its_values() -> None:
    text = (
        '[[scale_sets]]\nname = "set"\npriority = "Spot"\neviction_policy = "Delete"\n'
        '[[vms]]\nname = "one"\nscale_set = "set"\n[[vms]]\nname = "two"\nscale_set = "set"\nplacement_group = "mine"'
    )
    one, two = read(text).vms
    assert (one.priority, one.eviction_policy, one.placement_group) == (Priority.SPOT, EvictionPolicy.DELETE, "pg-0")
    assert two.placement_group == "mine"


def test_a_placement_group_is_one_scope_even_across_zones() -> None:
    """Spec §7.1."""
    zones = 'zones = ["1", "2", "3"]'
    text = f'[[hosts]]\nname = "z"\ncount = 3\n{zones}\n[[scale_sets]]\nname = "s"\ncount = 4\n{zones}'
    vms = read(text).vms
    assert [(vm.zone, vm.host) for vm in vms] == [("1", "z-0"), ("2", "z-1"), ("3", "z-2"), ("1", "z-0")]
    assert len({vm.scope_id for vm in vms}) == 1


def test_standalone_vms_in_zones_are_scopes_of_their_own() -> None:
    """Spec §7.1."""
    text = '[[hosts]]\nname = "z"\nzone = "1"\n[[vms]]\nname = "a"\ncount = 3\nzone = "1"'
    assert len({vm.scope_id for vm in read(text).vms}) == 3


def test_the_roles_of_a_cloud_service_share_one_scope() -> None:
    """Spec §4.2 and §7.1."""
    roles = (
        '[[cloud_services.roles]]\nname = "FrontEnd"\ncount = 2\n[[cloud_services.roles]]\nname = "Worker"\nsize = "L"'
    )
    text = f'[[cloud_services]]\nname = "shop"\n{roles}'
    vms = read(text).vms
    assert [vm.name for vm in vms] == ["FrontEnd_IN_0", "FrontEnd_IN_1", "Worker_IN_0"]
    assert [vm.update_domain for vm in vms] == [0, 1, 0]
    assert vms[2].size == "L"
    assert len({vm.scope_id for vm in vms}) == 1


def test_inline_tables_mean_the_same_as_other_tables() -> None:
    text = (
        'scale_sets = [{ name = "a", count = 2 }, { name = "b", count = 2 }]\n'
        'cloud_services = [{ name = "s", roles = [{ name = "R" }] }]\n'
    )
    fleet = read_fleet_file(text + HOSTS)
    assert [(vm.name, vm.update_domain) for vm in fleet.vms] == [
        ("a_0", 0),
        ("a_1", 1),
        ("b_0", 0),
        ("b_1", 1),
        ("R_IN_0", 0),
    ]


def test_vms_are_in_the_order_of_the_file() -> None:
    text = '[[vms]]\nname = "z"\n[[scale_sets]]\nname = "m"\ncount = 1\n[[vms]]\nname = "a"'
    assert names(text) == ["z", "m_0", "a"]


def test_hosts_may_differ_in_location_and_zone() -> None:
    text = (
        '[defaults]\nlocation = "west"\n[[hosts]]\nname = "w"\n'
        '[[hosts]]\nname = "n-{n:02}"\ncount = 2\nfirst = 7\nlocation = "north"\nzones = ["a", "b"]'
    )
    assert read_fleet_file(text).hosts == (
        Host(name="w", location="west"),
        Host(name="n-07", location="north", zone="a"),
        Host(name="n-08", location="north", zone="b"),
    )


def test_a_file_may_put_two_update_domains_on_one_host() -> None:
    text = '[[availability_sets]]\nname = "db"\n[[vms]]\nname = "a"\ncount = 2\navailability_set = "db"\nhost = "h-1"'
    assert [(vm.update_domain, vm.host) for vm in read(text).vms] == [(0, "h-1"), (1, "h-1")]


def test_a_host_may_be_a_pattern() -> None:
    assert [vm.host for vm in read('[[vms]]\nname = "a"\ncount = 3\nhost = "h-{n}"').vms] == ["h-0", "h-1", "h-2"]


def test_vms_that_name_their_host_are_counted_before_the_others_choose() -> None:
    text = '[[vms]]\nname = "free"\n[[vms]]\nname = "fixed"\ncount = 2\nhost = "h-0"'
    assert vm(text, "free").host == "h-1"


def test_a_declared_vm_knows_its_unspecified_fields() -> None:
    text = '[[vms]]\nname = "a"\naddress = "10.0.0.4"\nhost = "h-0"\n[[scale_sets]]\nname = "s"\ncount = 1'
    fleet = read(text)
    origins = [fleet.origins[vm.key] for vm in fleet.vms]
    assert [origin.line for origin in origins] == [5, 9]
    assert origins[0].unspecified_fields == {
        "computer_name",
        "update_domain",
        "fault_domain",
        "approves_all_down",
    }
    assert origins[1].unspecified_fields == origins[0].unspecified_fields | {"address", "host", "placement_group"}


def test_a_few_lines_declare_a_hundred_thousand_vms() -> None:
    text = '[[hosts]]\nname = "h"\ncount = 1000\n[[scale_sets]]\nname = "s"\ncount = 100000\naddress = "10.0.0.1"'
    fleet = read_fleet_file(text)
    counts = Counter(vm.host for vm in fleet.vms)
    assert len({vm.key for vm in fleet.vms}) == 100_000
    assert set(counts.values()) == {100}


@pytest.mark.parametrize(("written", "minutes"), [("true", 5), ("false", 0), ("5", 5), ("15", 15)])
def test_the_terminate_notification_is_five_minutes_by_default(written: str, minutes: int) -> None:
    """Spec §6.3."""
    place = 'location = "w"\nname = "a"\n'
    text = f"[[hosts]]\n{place}[[vms]]\n{place}terminate_notification = {written}\n"
    (vm,) = read_fleet_file(text).vms
    assert vm.terminate_notice_min == minutes
