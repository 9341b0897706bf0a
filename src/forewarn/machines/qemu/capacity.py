"""What a QEMU host can still take, and what its VMs need, from their definitions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from forewarn.errors import Refused
from forewarn.machines.driver import FreeCapacity, HostUnreachable, VmNeeds
from forewarn.machines.qemu.instance import QemuInstance


def host_capacity(instances: Iterable[QemuInstance], *, total_mib: int) -> FreeCapacity:
    """Return what a host with these VMs can still take: its memory less that of VMs with a QEMU process."""
    instances = list(instances)
    used = sum(instance.read_definition()[0].memory_mib for instance in instances if instance.is_alive())
    total = total_mib or _machine_memory_mib()
    return FreeCapacity(memory_mib=max(0, total - used), vms=vm_needs(instances))


def vm_needs(instances: Iterable[QemuInstance]) -> dict[str, VmNeeds]:
    """Return what each of these VMs needs, by name; only memory is known."""
    needs = {}
    for instance in instances:
        with suppress(Refused, HostUnreachable):
            needs[instance.vm] = VmNeeds(memory_mib=instance.read_definition()[0].memory_mib)
    return needs


def _machine_memory_mib() -> int:
    line = Path("/proc/meminfo").read_text(encoding="ascii").partition("\n")[0]  # MemTotal:  16384 kB
    return int(line.split()[1]) // 1024
