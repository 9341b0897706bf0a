"""HostAllocator chooses quickly, and always the host that `choose_destination` would (spec §6.4)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.placement import HostAllocator, choose_destination


def a_vm(number: int, group: str = "", update_domain: int = 0, zone: str = "", host: str = "") -> Vm:
    return Vm(
        name=f"v{number}",
        vm_id="",
        subscription_id="s",
        resource_group="g",
        location="here",
        zone=zone,
        availability_set=group,
        update_domain=update_domain,
        host=host,
    )


class SlowOccupancy:
    """A HostOccupancy that counts all VMs at every call."""

    def __init__(self, vms: Sequence[Vm]) -> None:
        self.vms = vms

    def vm_count(self, host: str) -> int:
        return sum(vm.host == host for vm in self.vms)

    def has_announced_work(self, host: str) -> bool:
        return False

    def arriving_vms(self, host: str) -> list[tuple[str, str]]:
        return []

    def domains_on(self, host: str, scope_id: str) -> set[tuple[int, int]]:
        there = (vm for vm in self.vms if vm.host == host and vm.scope_id == scope_id)
        return {(vm.update_domain, vm.fault_domain) for vm in there}


host_lists = st.lists(
    st.tuples(st.sampled_from(["", "1"]), st.sampled_from([HostHealth.HEALTHY, HostHealth.HEALTHY, HostHealth.FAILED])),
    max_size=6,
)
vm_lists = st.lists(
    st.tuples(st.sampled_from(["", "db", "app"]), st.integers(0, 2), st.sampled_from(["", "1"]), st.integers(0, 9)),
    max_size=30,
)


@given(host_lists, vm_lists)
@settings(max_examples=300, deadline=None)
def test_the_allocator_chooses_the_same_hosts_as_the_single_choice(
    host_facts: list[tuple[str, HostHealth]], vms_to_place: list[tuple[str, int, str, int]]
) -> None:
    hosts = [
        Host(name=f"h{n}", location="here", zone=zone, health=health) for n, (zone, health) in enumerate(host_facts)
    ]
    placed_before = [a_vm(n, g, d, z, f"h{at}") for n, (g, d, z, at) in enumerate(vms_to_place) if at < len(hosts)]
    allocator = HostAllocator(hosts, placed_before)
    placed = list(placed_before)
    for number, (group, domain, zone, at) in enumerate(vms_to_place):
        if at < len(hosts):
            continue
        vm = a_vm(number, group, domain, zone)
        host = allocator.choose_host(vm)
        assert host == choose_destination(vm, hosts, SlowOccupancy(placed))
        if host is not None:
            allocator.assign(vm, host)
            placed.append(a_vm(number, group, domain, zone, host))


def test_update_domains_of_a_set_are_placed_on_different_hosts() -> None:
    hosts = [Host(name=f"h{n}", location="here") for n in range(3)]
    allocator = HostAllocator(hosts)
    chosen: list[str | None] = []
    for number in range(9):
        vm = a_vm(number, "db", number % 3)
        chosen.append(allocator.choose_host(vm))
        allocator.assign(vm, chosen[-1] or "")
    assert chosen == ["h0", "h1", "h2"] * 3
