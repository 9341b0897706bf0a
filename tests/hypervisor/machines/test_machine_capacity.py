"""What is known about real hosts for the choice of destinations: refreshed beside acts, unknown for silent hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import FreeCapacity, MachineState
from forewarn.machines.host_capacity import HostCapacityMonitor
from forewarn.machines.interface import ActDone, CapacityHypervisor, destination_hints
from tests.support.fake_machines import FakeMachines
from tests.support.machine_acts import MachineSite, machine_act

HOSTS = ("host-1", "host-2", "host-3")


@pytest.fixture
def site(tmp_path: Path) -> MachineSite:
    site = MachineSite(tmp_path)
    site.hosts.add("host-1", "web-1")
    site.hosts.add("host-2", "db", MachineState.OFF)
    site.hosts.machines["host-3"] = {}
    site.hosts.disks.add("deallocated")
    return site


async def refreshed(site: MachineSite) -> HostCapacityMonitor:
    """Return a monitor that has looked at everything twice: CPUs are compared once all hosts are known."""
    monitor = HostCapacityMonitor(FakeMachines(site.hosts), interval_s=60)
    for host in ("", *HOSTS, *HOSTS):
        await monitor.refresh(host)
    return monitor


def test_free_memory_and_what_vms_need_are_known_of_all_hosts(site: MachineSite) -> None:
    monitor = asyncio.run(refreshed(site))
    assert monitor.free_mib == {"host-1": 3072, "host-2": 4096, "host-3": 4096}
    assert monitor.vm_mib == {"web-1": 1024, "db": 1024, "deallocated": 1024}
    assert (monitor.incompatible_hosts, monitor.silent_hosts) == ({}, frozenset())


def test_a_silent_host_is_unknown_until_it_answers_and_what_its_vms_need_stays_known(site: MachineSite) -> None:
    async def scenario() -> None:
        monitor = await refreshed(site)
        site.behaviour.unreachable.add("host-1")
        await monitor.refresh("host-1")
        assert monitor.free_mib == {"host-2": 4096, "host-3": 4096}
        assert monitor.silent_hosts == {"host-1"}
        assert monitor.vm_mib["web-1"] == 1024
        site.behaviour.unreachable.clear()
        await monitor.refresh("host-1")
        assert (monitor.free_mib["host-1"], monitor.silent_hosts) == (3072, frozenset())

    asyncio.run(scenario())


def test_hosts_with_another_cpu_are_incompatible_with_running_vms_only(site: MachineSite) -> None:
    site.behaviour.cpus |= {"host-1": "EPYC", "host-2": "Haswell", "host-3": "EPYC"}
    monitor = asyncio.run(refreshed(site))
    assert monitor.incompatible_hosts == {"web-1": {"host-2"}}
    assert monitor.vm_cpus == {"web-1": "EPYC"}
    hosts = ("host-1", "host-2", "unknown")
    assert [asyncio.run(monitor.can_run_cpu(host, "EPYC")) for host in hosts] == [True, False, None]


def test_a_host_that_cannot_compare_cpus_counts_as_compatible(site: MachineSite) -> None:
    site.behaviour.cpus |= {"host-1": "EPYC", "host-2": "Haswell", "host-3": "EPYC"}
    site.behaviour.refused["can_run_cpu on host-2"] = "this libvirt cannot compare CPUs"
    monitor = asyncio.run(refreshed(site))
    assert monitor.incompatible_hosts == {}
    assert asyncio.run(monitor.can_run_cpu("host-2", "EPYC")) is None
    site.behaviour.refused.clear()
    assert asyncio.run(monitor.can_run_cpu("host-2", "EPYC")) is False


def test_a_comparison_that_fails_even_on_the_vms_own_host_excludes_no_host(site: MachineSite) -> None:
    site.behaviour.cpus |= {"host-1": "EPYC", "host-2": "Haswell", "host-3": "EPYC"}

    class WrongComparison(FakeMachines):
        async def can_run_cpu(self, host: str, cpu: str) -> bool:
            return False

    async def scenario() -> None:
        monitor = HostCapacityMonitor(WrongComparison(site.hosts), interval_s=60)
        for host in HOSTS:
            await monitor.refresh(host)
        assert monitor.incompatible_hosts == {}

    asyncio.run(scenario())


def test_a_host_whose_cpu_was_replaced_is_compared_again(site: MachineSite) -> None:
    site.behaviour.cpus |= {"host-1": "EPYC", "host-2": "Haswell", "host-3": "EPYC"}

    async def scenario() -> None:
        monitor = await refreshed(site)
        site.behaviour.cpus["host-2"] = "EPYC"
        await monitor.refresh("host-2")
        assert monitor.incompatible_hosts == {}

    asyncio.run(scenario())


def test_what_is_known_becomes_hints_and_names_of_vms_that_are_gone_are_forgotten(site: MachineSite) -> None:
    async def scenario() -> None:
        hypervisor = site.open()
        assert isinstance(hypervisor, CapacityHypervisor)
        assert destination_hints(hypervisor, frozenset()).free_mib == {}
        watching = asyncio.create_task(hypervisor.watch_capacity())
        await until(lambda: len(hypervisor.free_mib) == len(HOSTS) and "deallocated" in hypervisor.vm_mib)
        site.behaviour.unreachable.add("host-3")
        site.hosts.disks.discard("deallocated")
        done = await perform(hypervisor, site)
        assert done.ok
        await until(lambda: "deallocated" not in hypervisor.vm_mib)  # it looks again after each act
        hints = destination_hints(hypervisor, frozenset({"host-9"}))
        assert hints.needed_mib("web-1", "Standard_D2s_v5") == 1024
        assert hints.unreachable >= {"host-9"}
        watching.cancel()
        await asyncio.wait({watching})
        await hypervisor.close()

    asyncio.run(scenario())


def test_a_silent_host_does_not_delay_what_is_known_of_others(site: MachineSite) -> None:
    async def scenario() -> None:
        driver = HangingMachines(site.hosts)
        monitor = HostCapacityMonitor(driver, interval_s=60)
        watching = asyncio.create_task(monitor.run())
        await until(lambda: set(monitor.free_mib) == {"host-2", "host-3"})
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(scenario())


class HangingMachines(FakeMachines):
    """The first host never says what it has free."""

    async def capacity(self, host: str) -> FreeCapacity:
        """See `MachineDriver`."""
        if host == "host-1":
            await asyncio.Event().wait()
        return await super().capacity(host)


async def perform(hypervisor: MachineHypervisor, site: MachineSite) -> ActDone:
    act = machine_act(Verb.REBOOT)
    async with asyncio.timeout(60):
        while not isinstance(answer := await hypervisor.perform(act, site.now), ActDone):
            site.now = max(site.now, answer.at)
    return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)
