"""Keeps in memory what real hosts have free and what their VMs need, for the choice of destinations.

Each host is looked at again and again beside the acts, and after each act on it. Decisions read what is known then, and
never wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from forewarn.errors import ForewarnError, full_message
from forewarn.machines.driver import MachineDriver, VmNeeds

log = logging.getLogger(__name__)


class HostCapacityMonitor:
    """Keeps in memory what is known about the free memory of a driver's hosts, and what VMs need."""

    def __init__(self, driver: MachineDriver, *, interval_s: float) -> None:
        self.free_mib: dict[str, int] = {}
        self.vm_mib: dict[str, int] = {}
        self.incompatible_hosts: dict[str, frozenset[str]] = {}
        self.vm_cpus: dict[str, str] = {}
        self._driver = driver
        self._interval_s = interval_s
        self._silent: set[str] = set()  # also "" while the VMs on no host are not known
        self._memory: dict[str, dict[str, int]] = {}  # host ("": none) → memory of each VM there
        self._cpus: dict[str, dict[str, str]] = {}  # host → CPU of each VM there that needs a fitting one
        self._can_run: dict[tuple[str, str, str], bool] = {}  # host, its CPU model, CPU of a VM
        self._cpu_models: dict[str, str] = {}
        self._is_due = {host: asyncio.Event() for host in ("", *driver.hosts)}

    @property
    def silent_hosts(self) -> frozenset[str]:
        """Names of the hosts that did not answer, or refused, when they were last looked at."""
        return frozenset(self._silent - {""})

    async def run(self) -> None:
        """Look at all hosts until cancelled, each on its own, so that a silent one delays no other."""
        async with asyncio.TaskGroup() as tasks:
            for host in self._is_due:
                tasks.create_task(self._watch(host))

    def look_again(self, *hosts: str) -> None:
        """Make `run` look at these hosts, and at VMs on no host, at once; does not wait for that."""
        for host in ("", *hosts):
            if (due := self._is_due.get(host)) is not None:
                due.set()

    async def refresh(self, host: str) -> None:
        """Look at one host now, and compare CPUs; "": at the VMs on no host. Raises nothing."""
        try:
            if not host:
                self._set_memory("", await self._driver.kept_vms())
                self._silent.discard("")
                return
            found = await self._driver.capacity(host)
        except ForewarnError as error:
            if host not in self._silent:
                subject = f"what host {host} has free" if host else "what VMs on no host need"
                log.warning("%s is not known: %s", subject, full_message(error))
            self._silent.add(host)
            self.free_mib.pop(host, None)
            return
        self._silent.discard(host)
        self.free_mib[host] = found.memory_mib
        self._cpu_models[host] = found.cpu_model
        self._set_memory(host, found.vms)
        self._cpus[host] = {vm: needs.cpu for vm, needs in found.vms.items() if needs.cpu}
        await self._compare_cpus()

    def _set_memory(self, host: str, vms: Mapping[str, VmNeeds]) -> None:
        self._memory[host] = {vm: needs.memory_mib for vm, needs in vms.items()}
        known: dict[str, int] = {}
        for name in sorted(self._memory):  # VMs on no host first, so that a host's definition counts more
            known |= self._memory[name]
        self.vm_mib = known

    async def _watch(self, host: str) -> None:
        due = self._is_due[host]
        while True:
            due.clear()
            await self.refresh(host)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await due.wait()

    async def _compare_cpus(self) -> None:
        """Find the hosts that cannot run the CPU of each VM; a host that cannot say so counts as one that can."""
        found: dict[str, frozenset[str]] = {}
        comparable: dict[str, str] = {}
        for host, cpus in list(self._cpus.items()):
            for vm, cpu in cpus.items():
                if host not in self._silent and await self._fits(host, cpu) is False:
                    continue
                comparable[vm] = cpu
                others = [other for other in self._cpu_models if other != host and other not in self._silent]
                unfit = [other for other in others if await self._fits(other, cpu) is False]
                if unfit:
                    found[vm] = frozenset(unfit)
        self.incompatible_hosts, self.vm_cpus = found, comparable

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        """Return whether the host can run a VM with this CPU; None if that is not known now."""
        return await self._fits(host, cpu) if host in self._cpu_models else None

    async def _fits(self, host: str, cpu: str) -> bool | None:
        key = (host, self._cpu_models[host], cpu)
        if key not in self._can_run:
            try:
                self._can_run[key] = await self._driver.can_run_cpu(host, cpu)
            except ForewarnError:
                return None
        return self._can_run[key]
