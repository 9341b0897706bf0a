"""Executes the service's acts on the VM, each act once and one at a time.

An act that is over is answered from the journal; an act in progress is not started again. A shutdown by an earlier
supervisor is executed again, because the VM has started since. An act that ends the program ends a freeze first.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from forewarn.machines.namespace_vm import messages
from forewarn.machines.namespace_vm.act_journal import SHUT_DOWN, VmActJournal, VmActOutcome, VmActStart
from forewarn.machines.namespace_vm.machine import DOWN, Machine, empty_directory
from forewarn.machines.namespace_vm.messages import JsonMessage, VmActOrder, VmDescription

_PAUSE = "pause"
_STAYS_DOWN_NOTE = "the VM was down and stays down"
_RESTARTED_NOTE = "the VM's supervisor died during the act; the VM was started again"

SendMessage = Callable[[JsonMessage], Awaitable[None]]  # to the service; drops it while there is none


def finish_interrupted_acts(journal: VmActJournal, vm: VmDescription) -> None:
    """Record every act that a killed supervisor left unfinished as over, so that none stays unfinished."""
    # The VM died with that supervisor and is about to start again. So most acts count as successes and are not
    # repeated, but the outcome of a shutdown is forgotten: if the service repeats the order, the VM is shut down.
    for act, start in journal.unfinished.items():
        if start.wipes_disk:
            empty_directory(vm.ephemeral)
        journal.finish(act, VmActOutcome(ok=True, note=_RESTARTED_NOTE))
        if start.effect == SHUT_DOWN:
            journal.forget_outcome(act)


class VmActExecutor:
    """Executes the service's orders on one VM, one at a time in their order, and sends the outcomes.

    `send` drops a message if no service is connected: the next hello has the outcomes. Acts wait until the supervisor
    sets `vm_started`. After the outcome of an eviction or deletion has been sent, it sets `removal_reason` and
    `vm_removed`.
    """

    def __init__(
        self, *, machine: Machine, journal: VmActJournal, send: SendMessage, default_duration_s: float
    ) -> None:
        self.vm_started = asyncio.Event()  # acts wait for it
        self.vm_removed = asyncio.Event()  # the VM was evicted or deleted
        self.removal_reason = ""  # "evicted" or "deleted" once `vm_removed` is set
        self._machine = machine
        self._journal = journal
        self._send = send
        self._default_duration_s = default_duration_s
        self._expected_end: dict[str, float] = {}  # act id → loop time
        self._freeze_ends: dict[str, asyncio.Event] = {}  # act id → set when the freeze must end
        self._act_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._effects: dict[str, Callable[[VmActOrder], Awaitable[str]]] = {
            _PAUSE: self._freeze,
            "reboot": self._reboot,
            SHUT_DOWN: self._shut_down,
            "boot": self._start,
            "none": self._do_nothing,
        }

    async def execute(self, order: VmActOrder) -> None:
        """Start an act in a task and send its progress; the outcome is sent when the act is over."""
        # An act of a known id is not started again: if it is over, its recorded outcome is sent. An act that does not
        # freeze ends all freezes at once. Its beginning is in the journal before it takes effect. An outcome that
        # cannot be journalled is sent all the same.
        if await self._answer_if_known(order.act):
            return
        expected_s = order.duration_s if order.effect == _PAUSE else self._default_duration_s
        self._expected_end[order.act] = asyncio.get_running_loop().time() + expected_s
        await self._send(messages.progress_message(order.act, expected_s))
        if order.effect == _PAUSE:
            self._freeze_ends[order.act] = asyncio.Event()
        else:
            self._end_freezes()
        task = asyncio.create_task(self._run_in_turn(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def thaw(self, act: str) -> None:
        """End the freeze of the act with this id now, or as soon as it begins; its outcome is sent then."""
        if act in self._freeze_ends:
            self._freeze_ends[act].set()
        elif not await self._answer_if_known(act):
            note = f"act {act!r} is unknown to the VM's supervisor: order it before it is thawed"
            await self._send_outcome(act, VmActOutcome(ok=False, note=note))

    async def _answer_if_known(self, act: str) -> bool:
        outcome = self._journal.outcomes.get(act)
        if outcome is not None:
            await self._send_outcome(act, outcome)
        elif act in self._expected_end:
            left_s = self._expected_end[act] - asyncio.get_running_loop().time()
            await self._send(messages.progress_message(act, left_s))
        return outcome is not None or act in self._expected_end

    async def _send_outcome(self, act: str, outcome: VmActOutcome) -> None:
        machine = self._machine
        await self._send(messages.outcome_message(act, outcome, boot_id=machine.boot_id, state=machine.state))

    async def _run_in_turn(self, order: VmActOrder) -> None:
        await self.vm_started.wait()
        async with self._act_lock:
            outcome = await self._run_journalled(order)
            del self._expected_end[order.act]
            self._freeze_ends.pop(order.act, None)
        await self._send_outcome(order.act, outcome)
        if order.removed_as and outcome.ok:
            self.removal_reason = order.removed_as
            self.vm_removed.set()

    async def _run_journalled(self, order: VmActOrder) -> VmActOutcome:
        """Execute an act only after its beginning is on disk; its outcome counts even if it cannot be written."""
        try:
            self._journal.begin(order.act, VmActStart(effect=order.effect, wipes_disk=order.wipes_disk))
        except OSError as error:
            return VmActOutcome(
                ok=False, note=f"{order.verb} was not started: the journal cannot be written ({error.strerror})"
            )
        outcome = await self._run_effect(order)
        with suppress(OSError):
            self._journal.finish(order.act, outcome)
        return outcome

    async def _run_effect(self, order: VmActOrder) -> VmActOutcome:
        effect = self._effects.get(order.effect)
        if effect is None:
            return VmActOutcome(ok=False, note=f"a namespace VM cannot {order.verb!r}")
        try:
            return VmActOutcome(ok=True, note=await effect(order))
        except OSError as error:
            return VmActOutcome(ok=False, note=f"{order.verb} failed: {error}")

    async def _freeze(self, order: VmActOrder) -> str:
        self._machine.host = order.host or self._machine.host
        if self._machine.state == DOWN:
            return _STAYS_DOWN_NOTE
        self._expected_end[order.act] = asyncio.get_running_loop().time() + order.duration_s
        try:
            await self._machine.freeze()
            await asyncio.wait_for(self._freeze_ends[order.act].wait(), order.duration_s)
        except TimeoutError:
            pass
        finally:
            await self._machine.thaw()
        return ""

    def _end_freezes(self) -> None:
        for thaw_event in self._freeze_ends.values():
            thaw_event.set()

    async def _reboot(self, order: VmActOrder) -> str:
        was_down = self._machine.state == DOWN
        await self._machine.stop(signal.SIGKILL if order.abrupt else signal.SIGTERM)
        if order.wipes_disk:
            self._machine.wipe_ephemeral_disk()
        self._machine.host = order.host or self._machine.host
        if was_down:
            return _STAYS_DOWN_NOTE
        await self._machine.start()
        return ""

    async def _shut_down(self, order: VmActOrder) -> str:
        await self._machine.stop()
        if order.wipes_disk:
            self._machine.wipe_ephemeral_disk()
        return ""

    async def _start(self, order: VmActOrder) -> str:
        self._machine.host = order.host or self._machine.host  # a deallocated VM may start on another one
        if self._machine.state != DOWN:
            return "the VM was already running"
        await self._machine.start()
        return ""

    async def _do_nothing(self, _: VmActOrder) -> str:
        return ""
