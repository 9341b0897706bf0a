"""Which hypervisor performs acts, as the settings say."""

from __future__ import annotations

from forewarn.assembly.directory import DataDirectory
from forewarn.assembly.settings import Hands, Settings
from forewarn.hypervisor.behaviour import Behaviour
from forewarn.hypervisor.command import Command
from forewarn.hypervisor.keepers import Keepers
from forewarn.hypervisor.ledger import Ledger
from forewarn.hypervisor.process import Process
from forewarn.hypervisor.seam import Hypervisor
from forewarn.hypervisor.simulated import Simulated


def open_hypervisor(settings: Settings, directory: DataDirectory, keepers: Keepers) -> Hypervisor:
    if settings.hypervisor is Hands.COMMAND:
        return Command(settings.commands, directory.commands)
    simulated = Simulated(Ledger.open(directory.ledger), Behaviour.from_rules(list(settings.simulate)))
    return Process(keepers, simulated) if settings.hypervisor is Hands.PROCESS else simulated
