"""The scope that a VM belongs to (spec §7.1), and the host that it moves to (spec §6.4)."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.fleet import Host, HostHealth, scope_id_for
from forewarn.core.placement import (
    DestinationHints,
    choose_destination,
    no_destination_problem,
    require_destination,
)
from forewarn.errors import Refused
from tests.support.world import a_host, a_vm


@pytest.mark.parametrize(
    ("facts", "scope_id"),
    [
        pytest.param({}, "vm:sub/lab/web-0", id="a standalone VM"),
        pytest.param({"zone": "1"}, "vm:sub/lab/web-0", id="a VM in a zone"),
        pytest.param({"availability_set": "Web"}, "set:sub/lab/web", id="an availability set"),
        pytest.param({"scale_set": "Web", "placement_group": "PG1"}, "placement:sub/lab/web/pg1", id="a group"),
        pytest.param(
            {"scale_set": "Web", "placement_group": "PG1", "zone": "2"},
            "placement:sub/lab/web/pg1",
            id="a placement group across zones",
        ),
        pytest.param({"cloud_service": "Shop"}, "service:sub/lab/shop", id="a cloud service"),
    ],
)  # fmt: skip
def test_a_vm_belongs_to_the_scope_that_the_specification_says(facts: dict[str, str], scope_id: str) -> None:
    """Spec §7.1: a zone never makes a scope."""
    assert scope_id_for(a_vm("web-0", **facts)) == scope_id


@pytest.mark.parametrize("different", ["subscription_id", "resource_group"])
def test_equal_names_in_other_groups_are_other_scopes(different: str) -> None:
    """Spec §7.4."""
    here, there = a_vm("web-0", availability_set="web"), a_vm("web-0", availability_set="web", **{different: "other"})
    assert here.scope_id != there.scope_id
    assert here.key != there.key


def test_names_of_scopes_are_compared_without_case() -> None:
    assert a_vm("Web-0", resource_group="LAB").key == a_vm("web-0").key
    assert a_vm("a", availability_set="WEB").scope_id == a_vm("b", availability_set="web").scope_id


def test_a_set_a_placement_group_and_a_service_of_one_name_are_three_scopes() -> None:
    ids = {a_vm("x", **{kind: "web"}).scope_id for kind in ("availability_set", "scale_set", "cloud_service")}
    assert len(ids) == 3


@dataclass(frozen=True)
class FixedOccupancy:
    """A HostOccupancy with given counts."""

    counts: dict[str, int] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    maintained: frozenset[str] = frozenset()
    mixed_fault_domains: frozenset[str] = frozenset()
    arriving: dict[str, list[str]] = field(default_factory=dict)

    def vm_count(self, host: str) -> int:
        return self.counts.get(host, 0)

    def domains_on(self, host: str, scope_id: str) -> set[tuple[int, int]]:
        there = {(VM.update_domain + 1, VM.fault_domain)} if host in self.mixed else set()
        return there | ({(VM.update_domain, VM.fault_domain + 1)} if host in self.mixed_fault_domains else set())

    def has_announced_work(self, host: str) -> bool:
        return host in self.maintained

    def arriving_vms(self, host: str) -> list[tuple[str, str]]:
        return [(f"other-{number}", size) for number, size in enumerate(self.arriving.get(host, []))]


VM = a_vm("web-0", host="h1", zone="1")


@pytest.mark.parametrize(
    "unsuitable",
    [
        pytest.param(a_host("h1", zone="1"), id="its own"),
        pytest.param(a_host("h2", zone="1", health=HostHealth.DEGRADED), id="degraded"),
        pytest.param(a_host("h2", zone="1", health=HostHealth.FAILED), id="failed"),
        pytest.param(a_host("h2", zone="2"), id="another zone"),
        pytest.param(a_host("h2"), id="no zone"),
        pytest.param(a_host("h2", zone="1", location="northeurope"), id="another location"),
    ],
)
def test_a_vm_moves_only_to_another_healthy_host_of_its_location_and_zone(unsuitable: Host) -> None:
    """Spec §6.4: with none, the request is refused."""
    assert choose_destination(VM, [unsuitable], FixedOccupancy()) is None
    assert choose_destination(VM, [unsuitable, a_host("h9", zone="1")], FixedOccupancy({"h9": 100})) == "h9"
    with pytest.raises(Refused) as refusal:
        require_destination(VM, [unsuitable])
    assert str(refusal.value) == (
        "VM 'web-0' cannot move: location 'westeurope', zone '1' has no healthy host besides 'h1'; "
        "add or repair a host first"
    )


def test_a_vm_without_a_host_is_refused_without_naming_one() -> None:
    with pytest.raises(Refused) as refusal:
        require_destination(msgspec.structs.replace(VM, host=""), [])
    assert str(refusal.value) == (
        "VM 'web-0' cannot move: location 'westeurope', zone '1' has no healthy host; add or repair a host first"
    )


def test_a_vm_may_move_if_a_host_is_possible() -> None:
    require_destination(VM, [a_host("h1", zone="1"), a_host("h2", zone="1")])


def test_the_host_with_the_fewest_vms_is_chosen_and_then_the_first_by_name() -> None:
    hosts = [a_host(name, zone="1") for name in ("h4", "h3", "h2")]
    assert choose_destination(VM, hosts, FixedOccupancy({"h2": 2, "h3": 1, "h4": 1})) == "h3"


def test_a_host_with_another_update_domain_of_the_scope_is_the_last_choice() -> None:
    """Spec §6.2: so that later work on that host stays within one update domain."""
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    assert choose_destination(VM, hosts, FixedOccupancy({"h3": 50}, frozenset({"h2"}))) == "h3"
    assert choose_destination(VM, hosts, FixedOccupancy({"h3": 50}, frozenset({"h2", "h3"}))) == "h2"


def test_a_host_with_announced_maintenance_comes_after_all_others() -> None:
    """Spec §6.4: the VM would be affected soon again."""
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    occupancy = FixedOccupancy({"h3": 50}, mixed=frozenset({"h3"}), maintained=frozenset({"h2"}))
    assert choose_destination(VM, hosts, occupancy) == "h3"
    assert choose_destination(VM, hosts[:1], occupancy) == "h2"


def test_a_host_with_another_fault_domain_of_the_scope_is_avoided_but_less_than_one_with_another_update_domain() -> (
    None
):
    """Spec §6.4: so that the failure of one host stays within one fault domain."""
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    occupancy = FixedOccupancy({"h3": 50}, mixed_fault_domains=frozenset({"h2"}))
    assert choose_destination(VM, hosts, occupancy) == "h3"
    both = FixedOccupancy({"h3": 50}, mixed=frozenset({"h3"}), mixed_fault_domains=frozenset({"h2"}))
    assert choose_destination(VM, hosts, both) == "h2"


@pytest.mark.parametrize(
    ("free_mib", "arriving", "chosen"),
    [
        pytest.param({}, {}, "h2", id="nothing is known, so the number of VMs decides"),
        pytest.param({"h2": 8_000, "h3": 9_000, "h4": 1_000}, {}, "h3", id="the most free memory"),
        pytest.param({"h2": 100, "h3": 200, "h4": 300}, {}, "h4", id="none has room, so the one that lacks least"),
        pytest.param({"h2": 100}, {}, "h3", id="a host with too little memory is avoided"),
        pytest.param({"h3": 9_000}, {}, "h2", id="known of some hosts only, so the number of VMs decides"),
        pytest.param({"h2": 5_000, "h3": 6_000, "h4": 7_000}, {"h4": [VM.size]}, "h3", id="VMs on their way count"),
    ],
)
def test_the_free_memory_of_hosts_decides_where_it_is_known(
    free_mib: dict[str, int], arriving: dict[str, list[str]], chosen: str
) -> None:
    hosts = [a_host(name, zone="1") for name in ("h2", "h3", "h4")]
    hints = DestinationHints(free_mib=free_mib, size_mib={VM.size: 2_048})
    assert choose_destination(VM, hosts, FixedOccupancy({"h3": 1, "h4": 2}, arriving=arriving), hints) == chosen


def test_the_memory_of_a_vm_that_the_hypervisor_knows_counts_instead_of_that_of_its_size() -> None:
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    free_mib = {"h2": 3_000, "h3": 2_900}
    by_size = DestinationHints(free_mib=free_mib, size_mib={VM.size: 2_048})
    assert choose_destination(VM, hosts, FixedOccupancy(maintained=frozenset({"h2"})), by_size) == "h3"
    real = DestinationHints(free_mib=free_mib, size_mib={VM.size: 2_048}, vm_mib={VM.name: 2_950})
    assert choose_destination(VM, hosts, FixedOccupancy(maintained=frozenset({"h2"})), real) == "h2"
    on_their_way = DestinationHints(free_mib=free_mib, vm_mib={VM.name: 1_000, "other-0": 2_500})
    assert choose_destination(VM, hosts, FixedOccupancy(arriving={"h2": [VM.size]}), on_their_way) == "h3"


def test_a_vm_is_not_migrated_live_to_a_host_that_cannot_run_its_cpu_but_may_be_redeployed_there() -> None:
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    occupancy = FixedOccupancy({"h3": 50}, maintained=frozenset({"h3"}))
    hints = DestinationHints(incompatible={VM.name: frozenset({"h2"})})
    assert choose_destination(VM, hosts, occupancy, hints, is_live=True) == "h3"
    assert choose_destination(VM, hosts, occupancy, hints) == "h2"
    assert choose_destination(VM, hosts[:1], occupancy, hints, is_live=True) is None
    assert choose_destination(a_vm("db", host="h1", zone="1"), hosts, occupancy, hints, is_live=True) == "h2"
    assert no_destination_problem(VM, hosts[:1]) == (
        "no healthy host in westeurope has a CPU that it can be migrated to live: redeploy it instead"
    )
    assert no_destination_problem(VM, []) == "no healthy host to move to in westeurope"


def test_a_host_that_does_not_answer_is_the_last_choice_and_still_one() -> None:
    hosts = [a_host(name, zone="1") for name in ("h2", "h3")]
    hints = DestinationHints(unreachable=frozenset({"h2"}))
    assert choose_destination(VM, hosts, FixedOccupancy(maintained=frozenset({"h3"})), hints) == "h3"
    assert choose_destination(VM, hosts[:1], FixedOccupancy(), hints) == "h2"


HOSTS = st.lists(
    st.builds(
        a_host,
        st.sampled_from([f"h{n}" for n in range(1, 8)]),
        zone=st.sampled_from(["1", "2"]),
        health=st.sampled_from(list(HostHealth)),
    ),
    unique_by=lambda host: host.name,
)


@settings(max_examples=100, deadline=None)
@given(hosts=HOSTS)
def test_a_request_is_refused_exactly_when_there_is_no_destination(hosts: list[Host]) -> None:
    """Spec §6.4."""
    if choose_destination(VM, hosts, FixedOccupancy()) is None:
        with pytest.raises(Refused):
            require_destination(VM, hosts)
    else:
        require_destination(VM, hosts)
