"""Opens the hypervisor that the settings choose, on the files of the data directory."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.errors import Rejected
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.command import CommandHypervisor
from forewarn.machines.driver import MachineDriver
from forewarn.machines.interface import Hypervisor
from forewarn.machines.journal import MachineJournal
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import load_libvirt
from forewarn.machines.process.hypervisor import ProcessHypervisor
from forewarn.machines.process.registry import SupervisorRegistry
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import HypervisorKind, Settings


def open_hypervisor(
    settings: Settings,
    directory: DataDirectory,
    supervisors: SupervisorRegistry,
    is_confirmed_down: Callable[[str], bool],
) -> Hypervisor:
    kind = settings.chosen_hypervisor
    if kind is HypervisorKind.NODES:
        raise Rejected("host nodes perform the acts of a service with a bus: it has no hypervisor of its own")
    if kind is HypervisorKind.COMMAND:
        return CommandHypervisor(settings.commands, directory.commands)
    driver = _machine_driver(settings, directory)
    if driver is not None:
        directory.machines.mkdir(mode=0o700, exist_ok=True)
        return MachineHypervisor(
            driver,
            MachineJournal(directory.machines / "acts.db"),
            settings.machines,
            is_confirmed_down=is_confirmed_down,
        )
    simulated = SimulatedHypervisor(
        EffectLedger.open(directory.ledger), SimulatedBehaviour.from_rules(list(settings.simulate))
    )
    return ProcessHypervisor(supervisors, simulated) if kind is HypervisorKind.PROCESS else simulated


def _machine_driver(settings: Settings, directory: DataDirectory) -> MachineDriver | None:
    """The driver of real VMs that the settings choose, or None."""
    definitions = directory.machines / "definitions"
    match settings.hypervisor:
        case HypervisorKind.QEMU:
            return QemuDriver(settings.qemu.hosts, copies=definitions, lock_directories=settings.qemu.lock_directories)
        case HypervisorKind.LIBVIRT:
            load_libvirt()
            return LibvirtDriver(settings.libvirt.hosts, definitions)
        case _:
            return None
