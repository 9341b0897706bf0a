"""Carries out one schedule in virtual time, and returns which rules did not hold.

    result = simulate(schedule_for_seed(7))
    for violation in result.violations: print(violation.rule, violation.text)

The same schedule always gives the same result, in every process with the same PYTHONHASHSEED.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Verb
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.projection import document_for
from forewarn.machines.simulated import SimulatedBehaviour
from forewarn.protocol.document import NoticeStatus
from forewarn.store import sqlite_file
from forewarn.store.interface import AppliedCommit, Store
from tests.properties.commit_checks import CommitChecker
from tests.simulation.guest import Machine, SimulatedGuest, simulated_reactions
from tests.simulation.invariants import (
    HostChecker,
    Violation,
    check_notice,
    idle_scopes,
    lost_requests,
    unfinished_business,
    withdrawn_without_reason,
)
from tests.simulation.operations import Operations
from tests.simulation.process import ProcessDied, create_task_in_process
from tests.simulation.schedule import Schedule, describe_operation
from tests.simulation.service import SimulatedService
from tests.simulation.virtual_loop import START_TIME, NeverAtRest, NothingLeft, VirtualTimeLoop
from tests.support.world import sequential_ids

MAX_OPERATION_S = 4 * 3600.0  # loop time
MAX_SETTLING_ROUNDS = 80
DAY = 24 * 3600.0
BOOT_VERBS = frozenset({Verb.REBOOT, Verb.REDEPLOY, Verb.START, Verb.REIMAGE})


@dataclass
class SimulationResult:
    """What happened in one simulation."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # for the summary: operations, commits, crashes, …
    trace: list[str] = field(default_factory=list)  # lines for people, in order

    @property
    def digest(self) -> str:
        """A hash of the trace: equal runs have equal digests."""
        return sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(schedule: Schedule) -> SimulationResult:
    """Carry out the schedule from an empty store to a state in which everything has ended."""
    loop = VirtualTimeLoop()
    loop.set_task_factory(create_task_in_process)  # type: ignore[arg-type]
    result = SimulationResult()
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=_fast_folder()))
    handler = _ErrorLog(result)
    logger, level = logging.getLogger("forewarn"), logging.getLogger("forewarn").level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        with simulated_reactions():
            simulation = Simulation(schedule, folder, result, loop)
            loop.set_exception_handler(simulation.on_loop_error)
            loop.network = simulation
            try:
                loop.run_until_complete(simulation.run())
            except (NeverAtRest, NothingLeft) as error:
                simulation.report("the service comes to rest", f"{error}")
            finally:
                loop.run_until_complete(simulation.close())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)
    return result


class Simulation:
    """The state of one simulation."""

    def __init__(
        self, schedule: Schedule, folder: Path, result: SimulationResult, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        settings = schedule.settings
        self._schedule, self._folder, self._result = schedule, folder, result
        self.chance = Random(schedule.seed)
        self.policy = Policy(
            enablement=EnablementMode.ALWAYS if settings.always_enabled else EnablementMode.ON_REQUEST,
            max_user_operations=settings.max_user_operations,
            settle_s=settings.settle_s,
        )
        self._ids = sequential_ids()
        self.commit_checker = CommitChecker(self.policy)
        self.guests: dict[str, SimulatedGuest] = {}  # by the id of the VM: one that is added again is another
        self.down_s, self.more_crashes, self.points = 1.0, 0, 0  # of the next deaths of the service
        self.may_mislead = False  # a fault may have shown VMs something else than their document
        self._latest = 0.0
        self._background: list[asyncio.Task[Any]] = []
        self._operation_tasks: list[asyncio.Task[None]] = []
        self._operations = Operations(self)
        self.service: SimulatedService

    # --- life of the processes ---

    async def run(self) -> None:
        """Start the service, apply the fleet, carry out the operations, let everything end, and check."""
        self.service = SimulatedService(
            policy=self.policy,
            chance=self.chance,
            new_id=lambda: next(self._ids),
            on_perform=self._on_perform,
            on_open=self._on_open,
            database=_empty_database(self._folder) if self._schedule.settings.sqlite else None,
        )
        self.host_checker = HostChecker(
            self.report, lambda: self.service.ledger, lambda: self.service.control.clock.now()
        )
        await self.service.start()
        self._background.append(asyncio.create_task(self._keep_service_running()))
        change = FleetChange(hosts=self._schedule.hosts, vms=self._schedule.vms)
        await self.service.process.call(self.service.control.fleet.apply_change(change, who="test"))
        for number, operation in enumerate(self._schedule.operations, 1):
            await self._carry_out(number, operation)
        await self._let_everything_end()
        self._check_end()

    async def close(self) -> None:
        """End all processes."""
        for task in self._background:
            task.cancel()
        for guest in self.guests.values():
            guest.close()
        if hasattr(self, "service"):
            await self.service.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def connect(self, protocol: asyncio.Protocol, host: str) -> asyncio.Transport:
        """Connect a VM with the service."""
        return await self.service.connect(protocol, host)

    async def _keep_service_running(self) -> None:
        while True:
            await self.service.died.wait()
            self.note(f"the service was killed at crash point {self.service.process.points}")
            self._result.counts["service crashes"] += 1
            await asyncio.sleep(self.down_s)
            starting = asyncio.create_task(self._start_service())
            await asyncio.gather(starting, return_exceptions=True)
            if isinstance(error := starting.exception(), Exception):
                self.report("the service starts again after a crash", repr(error))

    async def _start_service(self) -> None:
        dies_after = self.points if self.more_crashes > 0 else None
        self.more_crashes -= 1
        try:
            await self.service.start(dies_after)
        except ProcessDied:
            return
        self.note("the service runs again")

    def start_agent(self, vm: Vm) -> None:
        """Start an agent in this VM, now or again."""
        guest = self.guests.get(vm.vm_id)
        if guest is None:
            machine = Machine(
                name=vm.name,
                settings=self._schedule.settings,
                chance=Random(f"{self._schedule.seed} {vm.name}"),
                report=self.report,
                is_gone=lambda event_id: self._is_gone(vm, event_id),
            )
            folder = self._folder / f"agent-{len(self.guests)}"
            guest = self.guests[vm.vm_id] = SimulatedGuest(
                vm, machine, folder=folder, lab_time=lambda: self.service.control.clock.now()
            )
            self._background.append(asyncio.create_task(self._keep_agent_running(guest)))
        guest.start()

    async def _keep_agent_running(self, guest: SimulatedGuest) -> None:
        while True:
            await guest.died.wait()
            guest.died.clear()
            self.note(f"the {guest.process.name} was killed")
            self._result.counts["agent crashes"] += 1
            await asyncio.sleep(guest.restarts_in_s)
            if self._is_running(guest.vm):
                guest.start()

    def _is_running(self, vm: Vm) -> bool:
        now = self.service.store.vm(vm.key)
        return now is not None and (now.vm_id, now.removed_at, now.power) == (vm.vm_id, None, PowerState.RUNNING)

    # --- observing ---

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self._result.trace.append(f"{self._loop.time() - START_TIME:12.3f}  {line}")

    def report(self, rule: str, text: str) -> None:
        """Record that a rule does not hold."""
        self._result.violations.append(Violation(rule, text))
        self.note(f"VIOLATION {rule}: {text}")

    def count(self, what: str) -> None:
        """Count something for the summary."""
        self._result.counts[what] += 1

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an error that no task handled; the death of a process is none."""
        error = context.get("exception")
        if not _is_death(error):
            self.report("no error is left unhandled", f"{context.get('message')}: {error!r}")

    def _on_open(self, store: Store, now: float) -> None:
        self.commit_checker.follow(store, now if store.scope_ids() else None)
        store.subscribe(self._on_commit)
        self.host_checker.follow(store)
        self._check_time(now)

    def _check_time(self, now: float) -> None:
        if now < self._latest:
            self.report("§12 lab time never moves back", f"{now} after {self._latest}")
        self._latest = max(self._latest, now)

    def _on_commit(self, applied: AppliedCommit) -> None:
        self.count("commits")
        self._check_time(self.service.control.clock.now())
        for event in applied.commit.events:
            if event.id not in self._operations.known_events:
                self._operations.known_events[event.id] = event.request_id
                if (wrong := check_notice(event, self.service.store)) is not None:
                    self.report("§6.3 the minimum notice", wrong)
        for entry in applied.commit.entries:
            self.note(f"{entry.kind:<10} {entry.text}")
        violations, self.commit_checker.violations = self.commit_checker.violations, []
        for violation in violations:
            rule, _, text = violation.partition(":")
            self.report(rule, text)

    def _on_perform(self, act: Act, now: float) -> None:
        self.count("acts")
        self.note(f"act        {act.verb} of {act.name} from {act.from_host or '-'} to {act.to_host or '-'}")
        self.host_checker.on_perform(act, now)
        for guest in self.guests.values():
            if act.verb in BOOT_VERBS and guest.vm.key == act.vm:
                guest.reboot()

    def _is_gone(self, vm: Vm, event_id: str) -> bool:
        event = self.service.store.event(event_id)
        scope = self.service.store.scope(vm.scope_id)
        if event is None or scope is None or not scope.is_enabled or self.may_mislead:
            return True
        document = document_for(scope).narrowed_to(vm.name) if scope.is_narrow else document_for(scope)
        return event_id not in {notice.id for notice in document.notices}

    # --- running ---

    async def _carry_out(self, number: int, operation: Any) -> None:
        self.note(f"--- {number}. {describe_operation(operation)}")
        self.count("operations")
        task = asyncio.create_task(self._operations.carry_out(operation), name=describe_operation(operation))
        self._operation_tasks.append(task)
        await (asyncio.sleep(0) if operation.together else self._await_operation(task))

    async def _await_operation(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task}, timeout=MAX_OPERATION_S)
        if not task.done():
            self.report("an operation ends", task.get_name())
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            self.report("an operation ends with an answer or a clear error", f"{task.get_name()}: {error!r}")

    async def _let_everything_end(self) -> None:
        """No more crashes, a working hypervisor, no faults, and enough time."""
        self.note("--- no more operations")
        self.more_crashes = 0
        service = self.service
        service.process.live_on()
        while not service.is_serving:
            await asyncio.sleep(1.0)
            service.process.live_on()
        service.crashing_store.fails_in = None
        service.set_behaviour(SimulatedBehaviour())
        for guest in self.guests.values():
            guest.process.live_on()
        for task in self._operation_tasks:
            await self._await_operation(task)
        await service.process.call(service.control.faults.clear(lambda fault: True, who="test"))
        await asyncio.sleep(130.0)
        await service.process.call(service.control.lab_clock.advance(61.0))
        await service.process.call(service.control.lab_clock.advance(30 * DAY))
        await asyncio.sleep(30.0)
        for _ in range(MAX_SETTLING_ROUNDS):
            if not any(self._unfinished_agents()):
                break
            await asyncio.sleep(30.0)

    def _unfinished_agents(self) -> list[SimulatedGuest]:
        """The running agents that have open records, or steps in effect that should be undone.

        An undo that a kill interrupted, and of which the check knows nothing, is left to the operator.
        """
        running = (g for g in self.guests.values() if self._is_running(g.vm) and not g.process.is_dead)
        return [guest for guest in running if guest.open_records() or guest.machine.must_be_undone()]

    def _check_end(self) -> None:
        store, now = self.service.store, self.service.control.clock.now()
        for rule, text in unfinished_business(store, self.service.ledger):
            self.report(rule, text)
        for lost in lost_requests(store, self._operations.accepted):
            self.report("nothing accepted is lost", lost)
        for event_id in self._operations.approved:
            event = store.event(event_id)
            if event is None or (event.approved_at is None and event.status is EventState.SCHEDULED):
                self.report("§5.3 an approval is never lost", f"{event_id}: {event}")
        for scope_id in idle_scopes(store, self.policy, now):
            self.report("§8.2 a scope without polls is disabled", scope_id)
        for event_id in withdrawn_without_reason(store):
            self.report("an event that is withdrawn says why", event_id)
        for guest in self._unfinished_agents():
            self.report(
                "an agent undoes everything once its events are gone",
                f"{guest.machine.name}: in effect {guest.machine.in_effect}, open {guest.open_records()}",
            )
        self._result.counts["events"] += len(store.events())
        self._result.counts["effects"] += len(self.service.ledger.effects())

    def check_document(self, vm: Vm, incarnation: int, events: list[tuple[str, NoticeStatus]]) -> None:
        """Check what a VM received: it is the document of a commit with this incarnation (spec §4.2, §14.6)."""
        if self.may_mislead:
            return
        shown = [
            document.narrowed_to(vm.name) if vm.narrow_delivery else document
            for (scope_id, _, number), document in self.commit_checker.shown.items()
            if scope_id == vm.scope_id and number == incarnation
        ]
        if not any([(notice.id, notice.status) for notice in each.notices] == events for each in shown):
            self.report("§4.2 a VM sees a committed document", f"{vm.name} got {incarnation} {events}, not {shown}")

    def live_events(self) -> list[Event]:
        """Return the events that are not over, oldest first."""
        return self.service.store.events(statuses=(EventState.SCHEDULED, EventState.STARTED))


def _is_death(error: object) -> bool:
    """Whether this is the death of a process, perhaps in a group of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_death(each) for each in error.exceptions)
    return isinstance(error, ProcessDied | asyncio.CancelledError)


class _ErrorLog(logging.Handler):
    """Turns errors that the service or an agent only logs into violations."""

    def __init__(self, result: SimulationResult) -> None:
        super().__init__(logging.ERROR)
        self._result = result

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not _is_death(error):
            self._result.violations.append(Violation("no error is only logged", f"{record.getMessage()}: {error!r}"))


@cache
def _fast_folder() -> str | None:
    """A folder in memory, if the system has one: journals sync every write."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@cache
def _database_template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        sqlite_file.prepare_store_file(path)
        return path.read_bytes()


def _empty_database(folder: Path) -> Path:
    path = folder / "store.db"
    path.write_bytes(_database_template())
    return path
