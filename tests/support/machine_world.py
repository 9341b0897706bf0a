"""A whole control plane in virtual time over real VMs that are fake: acts take steps, and others may change VMs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.core.unannounced import HostObservation
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.interface import Hypervisor
from tests.support.fake_machines import FakeHosts
from tests.support.machine_acts import MachineSite
from tests.support.world import World, a_host, a_vm

HOSTS = ("h1", "h2", "h3")
_MAX_STEPS = 400


class MachineWorld(World):
    """A world whose VMs run on the fake hosts h1, h2 and h3, with a journal in `directory`."""

    def __init__(self, directory: Path, vms: Sequence[Vm] = (a_vm("web"),), **options: Any) -> None:
        self.site = MachineSite(directory)
        self.machines: MachineHypervisor | None = None
        for host in HOSTS:
            self.fake.machines.setdefault(host, {})
        for vm in vms:
            self.fake.add(vm.host, vm.name)
        super().__init__(vms=vms, hosts=[a_host(name) for name in HOSTS], **options)

    @property
    def fake(self) -> FakeHosts:
        """The hosts, which outlive the service."""
        return self.site.hosts

    def _open_hypervisor(self) -> Hypervisor:
        self.machines = self.site.open()
        return self.machines

    def restart(self) -> None:
        """Replace the service by a new one, as after a crash; the hosts stay as they are."""
        self._close_machines()
        super().restart()

    def close(self) -> None:
        self._close_machines()
        super().close()

    def _close_machines(self) -> None:
        assert self.machines is not None
        self.do(self.machines.close())

    def observe(self, *hosts: str) -> None:
        """Observe these hosts, by default all, one after the other, and compare them with the fleet."""
        for host in hosts or HOSTS:
            self.do(self.control.unannounced_changes.observe_host(host))

    def compare(self) -> list[str]:
        """Observe all hosts until nothing is open; return the texts of what was recorded as unannounced."""
        after = self.store.last_seq()
        for _ in range(3):
            self.observe()
        return [entry.text for entry in self.entries(after=after)]

    def entries(self, kind: EntryKind = EntryKind.UNANNOUNCED, after: int = 0) -> list[HistoryEntry]:
        """Return the history entries of a kind."""
        return [entry for entry in self.store.history(after=after) if entry.kind is kind]

    def list_host(self, host: str) -> HostObservation:
        """Return what a host lists now."""
        assert self.machines is not None
        return self.do(self.machines.observe(host))

    def perform(self, ask: RequestedOperation, vm: str = "web", *, observe: bool = False) -> str:
        """Request an operation, approve it, and let time pass until it is over; return its ending.

        With `observe`, all hosts are observed before and after each step.
        """
        (event,) = self.ask(ask, vm)
        return self._finish(event, vm, observe=observe)

    def roll_out(self, impact: RolloutImpact, host: str, vm: str = "web", *, observe: bool = False) -> str:
        """Maintain a host with one VM, and return the ending of the VM's event, as `perform` does."""
        rollout = Rollout(impact=impact, hosts=(host,))
        request = self.do(self.control.rollout_requests.start(rollout, who="op"))
        self.settle()
        (event,) = self.store.events(request_id=request.id)
        return self._finish(event, vm, observe=observe)

    def _finish(self, event: Event, vm: str, *, observe: bool) -> str:
        if event.status is EventState.SCHEDULED:
            self.approve(vm, event.id)
        for _ in range(_MAX_STEPS):
            found = self.store.event(event.id)
            assert found is not None
            if observe:
                self.observe()
            if found.ending is not None:
                return str(found.ending)
            self.advance(0.25)
        raise AssertionError(f"{event.cause} of {vm} does not end")
