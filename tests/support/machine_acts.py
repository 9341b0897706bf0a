"""A hypervisor of real VMs over fake machines, for tests: opened, killed and opened again on the same files."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.event import Act, act_id
from forewarn.machines.acts import MachineHypervisor, MachinePolicy
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.steps import Enter, MachineActRecord
from tests.support.disturbed_calls import DisturbedCalls, ServiceKilled
from tests.support.fake_machines import FakeBehaviour, FakeHosts, FakeMachines

POLICY = MachinePolicy(
    acpi_timeout_s=2, migration_deadline_s=4, clean_up_timeout_s=3, fence_interval_s=3, poll_interval_s=0.5
)
START = 1_700_000_000.0  # lab time
_MAX_PERFORMS = 200
_MOVES = (Verb.MIGRATE, Verb.REDEPLOY)
_EFFECT_OF_VERB = {  # what the log of the fake machines says when the verb has taken effect
    Verb.FREEZE: "resumed",
    Verb.MIGRATE: "arrived",
    Verb.REBOOT: "booted",
    Verb.REDEPLOY: "booted",
    Verb.EVICT: "removed",
    Verb.DELETE: "removed",
    Verb.POWER_OFF: "off",
    Verb.START: "booted",
    Verb.DEALLOCATE: "removed",
    Verb.REIMAGE: "booted",
}


def machine_act(verb: Verb, *, event_id: str = "EVENT-1", vm: str = "web-1", **fields: Any) -> Act:
    """Return an act on a VM of host-1, which a move brings to host-2."""
    values: dict[str, Any] = {
        "from_host": "host-1",
        "to_host": "host-2" if verb in _MOVES else "",
        "duration_s": 9,
    } | fields
    return Act(id=act_id(event_id, vm), vm=f"s/g/{vm}", name=vm, verb=verb, event_id=event_id, **values)


@cache
def _empty_journal() -> bytes:
    """Return the file of a new journal: to copy it is much faster than to create one."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        MachineJournal(path).close()
        return path.read_bytes()


class DisturbedJournal(MachineJournal):
    """A journal whose writes can be killed before and after they are durable."""

    def __init__(self, path: Path, calls: DisturbedCalls) -> None:
        super().__init__(path)
        self._connection.execute("PRAGMA synchronous = OFF")  # these tests kill the service, not the machine
        self._calls = calls

    def begin(self, record: MachineActRecord) -> None:
        """See `MachineJournal`."""
        is_disturbed = self._calls.before(is_journal=True)
        super().begin(record)
        self._calls.after(is_disturbed, is_journal=True)

    def enter(self, act_id: str, decision: Enter, *, lab_at: float, real_at: float) -> None:
        """See `MachineJournal`."""
        is_disturbed = self._calls.before(is_journal=True)
        super().enter(act_id, decision, lab_at=lab_at, real_at=real_at)
        self._calls.after(is_disturbed, is_journal=True)

    def end(self, act_id: str, *, ok: bool, note: str) -> None:
        """See `MachineJournal`."""
        is_disturbed = self._calls.before(is_journal=True)
        super().end(act_id, ok=ok, note=note)
        self._calls.after(is_disturbed, is_journal=True)


class MachineSite:
    """Hosts with VMs, and a service with its journal in a directory, which can be killed and opened again."""

    def __init__(self, directory: Path, behaviour: FakeBehaviour | None = None) -> None:
        self.directory = directory
        self.hosts = FakeHosts(behaviour=behaviour or FakeBehaviour())
        self.behaviour = self.hosts.behaviour
        self.confirmed_down: set[str] = set()
        self.loses_journal = False  # True: the journal is gone whenever the service was killed
        self.now = START
        self.policy = POLICY

    def lose_journal(self) -> None:
        """Delete the journal, as if its disk had been replaced."""
        for path in self.directory.glob("journal.db*"):
            path.unlink()

    def open(self, calls: DisturbedCalls | None = None) -> MachineHypervisor:
        """Open the hypervisor on the files as they are."""
        calls = calls or DisturbedCalls()
        journal_path = self.directory / "journal.db"
        if not journal_path.exists():
            journal_path.write_bytes(_empty_journal())
        driver = FakeMachines(self.hosts, calls)
        journal = DisturbedJournal(journal_path, calls)
        return MachineHypervisor(
            driver,
            journal,
            self.policy,
            is_confirmed_down=self.confirmed_down.__contains__,
            real_clock=self.hosts.clock,
        )

    def perform(
        self, act: Act, *, calls: DisturbedCalls | None = None, times: int = _MAX_PERFORMS
    ) -> ActDone | ActUnderWay:
        """Perform the act until it is done, at most `times` times; a killed service is opened again."""

        async def run() -> ActDone | ActUnderWay:
            hypervisor = self.open(calls)
            answer: ActDone | ActUnderWay = ActUnderWay(at=self.now, note="the service was killed")
            try:
                for _ in range(times):
                    try:
                        answer = await hypervisor.perform(act, self.now)
                    except ServiceKilled:
                        await hypervisor.close()
                        if self.loses_journal:
                            self.lose_journal()
                        hypervisor = self.open()
                        continue
                    if isinstance(answer, ActDone):
                        return answer
                    self.now = max(self.now, answer.at)
                return answer
            finally:
                await hypervisor.close()

        return asyncio.run(run())

    def perform_until_done(self, act: Act, *, calls: DisturbedCalls | None = None) -> ActDone:
        """Perform the act until it is done; AssertionError if it does not end."""
        answer = self.perform(act, calls=calls)
        assert isinstance(answer, ActDone), answer
        return answer

    def effects(self, act: Act) -> int:
        """Return how often the act took effect on its VM, by what its guest noticed."""
        what = _EFFECT_OF_VERB[act.verb]
        host = act.to_host if act.verb in _MOVES else act.to_host or act.from_host
        return sum(
            e.what == what and e.vm == act.name and e.host == host and e.act_id == act.id for e in self.hosts.log
        )
