"""The hypervisor of real VMs passes the suite for every hypervisor, over fake machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.conformance.hypervisor import HypervisorConformance
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import MachineState
from forewarn.machines.journal import MachineJournal
from tests.support.machine_acts import MachineSite, machine_act


class TestMachines(HypervisorConformance):
    """Each verb has a VM of its own, because some of them remove it."""

    @pytest.fixture(autouse=True)
    def _make_vms(self, tmp_path: Path) -> None:
        self.site = MachineSite(tmp_path)
        for verb in Verb:
            state = MachineState.OFF if verb is Verb.START else MachineState.RUNNING
            self.site.hosts.add("host-1", f"vm-{verb}", state)

    async def open(self) -> MachineHypervisor:
        return self.site.open()

    def act(self, verb: Verb, event_id: str = "6D9F3C1A-0000-4000-8000-000000000001") -> Act:
        return machine_act(verb, event_id=event_id, vm=f"vm-{verb}")

    def effects(self, act: Act) -> int:
        if act.verb is not Verb.REAPPLY:
            return self.site.effects(act)
        journal = MachineJournal(self.site.directory / "journal.db")  # nothing happens to the VM
        try:
            record = journal.find(act.id)
            return int(record is not None and record.ok is True)
        finally:
            journal.close()
