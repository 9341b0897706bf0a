"""Carries out single operations of an act on real VMs, observes its hosts, and fences hosts.

Before an operation that the guest notices, the act and its step are stored with the VM (its mark), for a service that
has lost its journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from forewarn.base.clock import Clock
from forewarn.core.cause import Verb
from forewarn.errors import ForewarnError, Rejected, Unavailable, full_message
from forewarn.machines.driver import (
    HostUnreachable,
    MachineDriver,
    MachineMark,
    MachineState,
    MigrationProgress,
)
from forewarn.machines.steps import MachineActRecord, Observation, Operation, Release, Step

log = logging.getLogger(__name__)
_FENCE_VALID_S = 10.0  # real time: how long a fenced host counts as down without being fenced again
_STEPS_WITH_PROGRESS = (Step.SEND, Step.ABORT, Step.UNDO)
# Steps of cold moves and starts. The source of a live migration gives its locks up before it has released the VM.
_STEPS_WITH_LOCKS = {
    Verb.REDEPLOY: (Step.PREPARE, Step.SHUT_DOWN, Step.POWER_OFF),
    Verb.START: (Step.UNDO,),
}
_VISIBLE_OPERATIONS = frozenset(
    {
        Operation.PAUSE,
        Operation.RESUME,
        Operation.RESET,
        Operation.PRESS_POWER_BUTTON,
        Operation.POWER_ON,
        Operation.POWER_OFF,
        Operation.SEND,
    }
)


class FoundMark(msgspec.Struct, frozen=True, kw_only=True):
    """Where an act continues, by its marks on hosts, after the service has lost its journal."""

    step: Step  # the one with which the act continues
    release: Release | None = None  # why the VM does not run on the source of its move; None: it may run there


class HostFencer:
    """Runs the operator's fence commands of hosts through the driver; a success counts for ten seconds."""

    # Callers check `may_try` first: `interval_s` is the shortest time between two attempts at one host.

    def __init__(self, driver: MachineDriver, clock: Clock, *, interval_s: float) -> None:
        self._driver = driver
        self._clock = clock
        self._interval_s = interval_s
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        self._tried_at: dict[str, float] = {}  # real time
        self._fenced_at: dict[str, float] = {}  # real time

    def is_fenced(self, host: str) -> bool:
        """Return whether the fence command of the host succeeded within the last ten seconds of real time."""
        fenced_at = self._fenced_at.get(host)
        return fenced_at is not None and self._clock.now() - fenced_at <= _FENCE_VALID_S

    def may_try(self, host: str) -> bool:
        """Return whether the fence command of this host may run now, or is already running."""
        tried_at = self._tried_at.get(host)
        return host in self._tasks or tried_at is None or self._clock.now() - tried_at >= self._interval_s

    async def fence(self, host: str, *, wait_s: float) -> None:
        """Run the fence command of the host, and wait for it for `wait_s` seconds of real time at most."""
        # If it takes longer, it goes on in the background, and its result counts for all callers (`is_fenced`).
        task = self._tasks.get(host)
        if task is None:
            self._tried_at[host] = self._clock.now()
            task = self._tasks[host] = asyncio.create_task(self._run(host))
        await asyncio.wait({task}, timeout=wait_s)

    async def _run(self, host: str) -> bool:
        try:
            is_fenced = await self._driver.fence(host)
        except ForewarnError as error:
            log.warning("host %s could not be fenced: %s", host, full_message(error))
            is_fenced = False
        finally:
            self._tasks.pop(host, None)
        if is_fenced:
            self._fenced_at[host] = self._clock.now()
        return is_fenced

    async def close(self) -> None:
        """Cancel fence commands that still run, which kills them, and wait until they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class MachineOperations:
    """Observes the hosts of an act on a real VM, and carries out the operations that were decided."""

    def __init__(self, driver: MachineDriver, fencer: HostFencer, is_confirmed_down: Callable[[str], bool]) -> None:
        self._driver = driver
        self._fencer = fencer
        self._is_confirmed_down = is_confirmed_down
        self._marked: dict[str, tuple[str, Step]] = {}  # by act id: the host and step of its latest mark
        self._activated: set[str] = set()  # ids of the acts whose mark on the destination says so

    async def observe(
        self,
        act: MachineActRecord,
        *,
        is_overdue: bool,
        done: Operation | None,
        now: float,
        source: MachineState | None = None,
    ) -> Observation:
        """Ask the hosts of the act about its VM, and return what they report now.

        A host that does not answer has the state None; so has the destination while it receives a guest, since it would
        not answer soon. A given `source` counts as the state on the source, which is not asked.
        """
        needs_progress = act.is_live and act.step in _STEPS_WITH_PROGRESS
        progress = await self._progress(act) if needs_progress else None
        is_known = progress is not None or not needs_progress  # a state alone does not show whether it is sending
        is_receiving = progress is not None and progress.is_active
        asked = act.source if is_known and source is None else None
        answer, destination = await asyncio.gather(
            self._state(asked, act.name), self._destination_state(act, is_receiving=is_receiving)
        )
        source = source or answer
        if source is MachineState.SENT and is_receiving:  # it ended in between, and has a downtime now
            known = progress
            progress, destination = await asyncio.gather(
                self._progress(act), self._destination_state(act, is_receiving=False)
            )
            progress = progress or known
        is_silent = source is None
        halted_on = act.source if source is MachineState.HALTED else ""
        if destination is MachineState.HALTED:
            halted_on = act.destination
        return Observation(
            source=source,
            destination=destination,
            progress=progress,
            is_source_down=is_silent and self._is_down(act.source),
            is_destination_down=destination is None and self._is_down(act.destination),
            stop_reason=await self._stop_reason(halted_on, act.name) if halted_on else "",
            can_lock_disks=is_silent and await self._can_lock_disks(act),
            may_fence=is_silent and self._fencer.may_try(act.source),
            is_overdue=is_overdue,
            done=done,
            now=now,
        )

    async def _stop_reason(self, host: str, name: str) -> str:
        try:
            return await self._driver.stop_reason(host, name)
        except HostUnreachable:
            return ""

    async def _can_lock_disks(self, act: MachineActRecord) -> bool:
        if act.step not in _STEPS_WITH_LOCKS.get(act.verb, ()):
            return False
        try:
            return await self._driver.can_lock_disks(act.source, act.name)
        except HostUnreachable:
            return False

    def _is_down(self, host: str) -> bool:
        return self._fencer.is_fenced(host) or self._is_confirmed_down(host)

    async def _destination_state(self, act: MachineActRecord, *, is_receiving: bool) -> MachineState | None:
        if not act.is_move:
            return MachineState.ABSENT
        return None if is_receiving else await self._state(act.destination, act.name)

    async def _state(self, host: str | None, name: str) -> MachineState | None:
        """Return the state on this host; None if it does not answer, or must not be asked (None)."""
        if not host:
            return MachineState.ABSENT if host is not None else None
        try:
            return await self._driver.state(host, name)
        except HostUnreachable:
            return None

    async def _progress(self, act: MachineActRecord) -> MigrationProgress | None:
        try:
            return await self._driver.migration(act.source, act.name)
        except HostUnreachable:
            return None

    async def wait_for_change(self, host: str, name: str, *, within_s: float, clock: Clock) -> None:
        """Wait until the host reports a change of the VM, or for `within_s` seconds of real time."""
        until = clock.now() + within_s
        try:
            if host and await self._driver.wait_for_change(host, name, within_s=within_s):
                return
        except (Rejected, Unavailable) as error:
            log.debug("%s reports no changes of %s: %s", host, name, full_message(error))
        await clock.sleep_until(until)

    async def find_mark(self, act: MachineActRecord, *, is_final: bool) -> FoundMark | None:
        """Return where the act continues, as its marks say; None if its hosts have no mark of this act.

        On the destination of a move only a mark of ACTIVATE counts; on the source, any but ACTIVATE and CLEAN_UP. With
        `is_final`, and for a source that has failed or is confirmed down, a silent host counts as one without a mark.
        """
        if act.is_move:
            mark = await self._read_mark(act, act.destination, may_skip=is_final)
            if mark is not None and mark.step == Step.ACTIVATE:
                return FoundMark(step=Step.ACTIVATE, release=Release.SENT if act.is_live else Release.STOPPED)
        may_skip = is_final or act.is_abrupt or self._is_confirmed_down(act.source)
        mark = await self._read_mark(act, act.source, may_skip=may_skip) if act.source else None
        if mark is None or mark.step not in list(Step) or mark.step in (Step.ACTIVATE, Step.CLEAN_UP):
            return None
        return FoundMark(step=Step(mark.step))

    async def _read_mark(self, act: MachineActRecord, host: str, *, may_skip: bool) -> MachineMark | None:
        try:
            mark = await self._driver.read_mark(host, act.name)
        except HostUnreachable:
            if may_skip:
                return None
            raise
        return mark if mark is not None and mark.act_id == act.act_id else None

    async def carry_out(self, act: MachineActRecord, operation: Operation, host: str, *, wait_s: float) -> None:
        """Perform one operation of the act's current step on a host, and store the act's mark with the VM."""
        # The mark is stored before an operation that the guest notices. But a VM that was sent is resumed first,
        # because its guest is paused meanwhile; its mark on the destination follows, at the latest in CLEAN_UP. FENCE
        # raises nothing: `HostFencer.is_fenced` has its result.
        if operation is Operation.FENCE:
            await self._fencer.fence(host, wait_s=wait_s)
        elif operation is Operation.PREPARE_TO_RECEIVE:
            await self._prepare_to_receive(act, host)
        elif operation is Operation.RESUME and act.step is Step.ACTIVATE and act.release is Release.SENT:
            await self._call_driver(act, operation, host)
            await self._mark_activation(act)
        else:
            if act.step is Step.CLEAN_UP and act.release is Release.SENT:
                await self._mark_activation(act)
            if operation in _VISIBLE_OPERATIONS and (host == act.source or act.step is Step.ACTIVATE):
                await self.write_mark(act, host)
            await self._call_driver(act, operation, host)

    async def _prepare_to_receive(self, act: MachineActRecord, host: str) -> None:
        """Let the destination get ready, and store meanwhile on the source the mark of the step that follows."""
        marking = asyncio.create_task(self._write_mark(act, act.source, Step.SEND))
        try:
            await self._call_driver(act, Operation.PREPARE_TO_RECEIVE, host)
        finally:
            try:
                await marking
            except ForewarnError as error:
                log.debug("%s has no mark on %s yet: %s", act.name, act.source, full_message(error))

    async def _mark_activation(self, act: MachineActRecord) -> None:
        """Store on the destination that the VM was released to it, unless this process has done so already."""
        # Only a service that loses its journal needs it, so a host that does not answer now delays nothing.
        if act.act_id in self._activated:
            return
        try:
            await self._write_mark(act, act.destination, Step.ACTIVATE)
        except ForewarnError as error:
            log.info("%s has no mark on %s: %s", act.name, act.destination, full_message(error))
        self._activated.add(act.act_id)

    async def write_mark(self, act: MachineActRecord, host: str) -> None:
        """Store the act's id and step with the VM on this host, unless that was the last mark of the act."""
        await self._write_mark(act, host, act.step)

    async def _write_mark(self, act: MachineActRecord, host: str, step: Step) -> None:
        if self._marked.get(act.act_id) != (host, step):
            await self._driver.write_mark(host, act.name, MachineMark(act_id=act.act_id, step=step))
            self._marked[act.act_id] = (host, step)

    def forget(self, act_id: str) -> None:
        """Forget which marks were stored for an act that has ended; only memory, no host is asked."""
        self._marked.pop(act_id, None)
        self._activated.discard(act_id)

    async def _call_driver(self, act: MachineActRecord, operation: Operation, host: str) -> None:
        driver, name = self._driver, act.name
        match operation:
            case Operation.PAUSE:
                await driver.pause(host, name)
            case Operation.RESUME:
                await driver.resume(host, name)
            case Operation.RESET:
                await driver.reset(host, name)
                await driver.resume(host, name)
            case Operation.PRESS_POWER_BUTTON:
                await driver.press_power_button(host, name)
            case Operation.POWER_ON:
                await driver.power_on(host, name, fresh_ephemeral_disk=act.boots_with_fresh_disk)
            case Operation.POWER_OFF:
                await driver.power_off(host, name)
            case Operation.REMOVE:
                await driver.remove(host, name, delete_disks=not act.keeps_disks)
            case Operation.REIMAGE:
                await driver.reimage(host, name)
            case Operation.COPY_DEFINITION:
                source = "" if act.verb is Verb.START else act.source
                needs_fresh_disk = act.boots_with_fresh_disk and not act.is_live
                then_receives = act.is_live and act.step in (Step.PREPARE, Step.SEND)
                await driver.copy_definition(
                    source, name, host, fresh_ephemeral_disk=needs_fresh_disk, then_receives=then_receives
                )
            case Operation.PREPARE_TO_RECEIVE:
                await driver.prepare_to_receive(host, name)
            case Operation.SEND:
                await driver.send(host, name, act.destination)
            case _:
                await driver.cancel_send(host, name)
