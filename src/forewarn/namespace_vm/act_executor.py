"""Orders become effects, each act once: what is over is answered from the journal, what is under way is not begun
again. Acts wait for each other; whatever ends the program ends a freeze first.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from forewarn.vm import message
from forewarn.vm.journal import Journal, Outcome
from forewarn.vm.machine import DOWN, Machine, empty
from forewarn.vm.message import Message, Order, Vm

FREEZING = frozenset({"freeze", "migrate"})
WIPING = frozenset({"redeploy", "reimage", "evict", "delete", "deallocate"})
FINAL = {"evict": "evicted", "delete": "deleted"}
_STAYS_DOWN = "the VM was down and stays down"
_CAUGHT_UP = "the VM's keeper was gone meanwhile; the VM was started anew"

Tell = Callable[[Message], Awaitable[None]]


def catch_up(journal: Journal, vm: Vm) -> None:
    """Finish what a keeper that was killed left half done: its VM died with it and is about to be started anew."""
    for act, verb in journal.unfinished.items():
        if verb in WIPING:
            empty(vm.ephemeral)
        journal.finish(act, Outcome(ok=True, note=_CAUGHT_UP))


class Acts:
    def __init__(self, *, machine: Machine, journal: Journal, tell: Tell, usual_s: float) -> None:
        self.may_begin = asyncio.Event()  # the VM has come up
        self.final = asyncio.Event()  # the VM is gone for good
        self.farewell = ""
        self._machine = machine
        self._journal = journal
        self._tell = tell
        self._usual_s = usual_s  # what an act takes that has no duration of its own
        self._under_way: dict[str, float] = {}  # until when, by the loop's time
        self._freezes: dict[str, asyncio.Event] = {}  # set: it is to end
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._effects: dict[str, Callable[[Order], Awaitable[str]]] = {
            "freeze": self._freeze,
            "migrate": self._freeze,
            "reboot": self._boot_again,
            "redeploy": self._boot_again,
            "reimage": self._boot_again,
            "evict": self._end,
            "delete": self._end,
            "power-off": self._end,
            "deallocate": self._end,
            "start": self._start,
            "reapply": self._nothing,
        }

    async def obey(self, order: Order) -> None:
        """Answer from what is known, or begin; the outcome is told when it comes."""
        if await self._is_known(order.act):
            return
        takes_s = order.duration_s if order.verb in FREEZING else self._usual_s
        self._under_way[order.act] = asyncio.get_running_loop().time() + takes_s
        await self._tell(message.under_way(order.act, takes_s))
        if order.verb in FREEZING:
            self._freezes[order.act] = asyncio.Event()
        else:
            self._end_freezes()
        task = asyncio.create_task(self._perform(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def thaw(self, act: str) -> None:
        """End the freeze of this act now."""
        if act in self._freezes:
            self._freezes[act].set()
        elif not await self._is_known(act):
            note = f"act {act!r} is not known to the VM's keeper: order it before it is thawed"
            await self._answer(act, Outcome(ok=False, note=note))

    async def _is_known(self, act: str) -> bool:
        outcome = self._journal.known.get(act)
        if outcome is not None:
            await self._answer(act, outcome)
        elif act in self._under_way:
            left_s = self._under_way[act] - asyncio.get_running_loop().time()
            await self._tell(message.under_way(act, left_s))
        return outcome is not None or act in self._under_way

    async def _answer(self, act: str, outcome: Outcome) -> None:
        machine = self._machine
        await self._tell(message.answer(act, outcome, boot_id=machine.boot_id, state=machine.state))

    async def _perform(self, order: Order) -> None:
        await self.may_begin.wait()
        async with self._turn:
            outcome = await self._carry_out(order)
            del self._under_way[order.act]
            self._freezes.pop(order.act, None)
        await self._answer(order.act, outcome)
        if order.verb in FINAL and outcome.ok:
            self.farewell = FINAL[order.verb]
            self.final.set()

    async def _carry_out(self, order: Order) -> Outcome:
        """Nothing is done that was not written down before; what cannot be written down afterwards is still told."""
        try:
            self._journal.begin(order.act, order.verb)
        except OSError as error:
            return Outcome(ok=False, note=f"{order.verb} was not begun: it cannot be written down ({error.strerror})")
        outcome = await self._outcome(order)
        with suppress(OSError):
            self._journal.finish(order.act, outcome)
        return outcome

    async def _outcome(self, order: Order) -> Outcome:
        effect = self._effects.get(order.verb)
        if effect is None:
            return Outcome(ok=False, note=f"a VM of namespaces cannot {order.verb!r}")
        try:
            return Outcome(ok=True, note=await effect(order))
        except OSError as error:
            return Outcome(ok=False, note=f"{order.verb} failed: {error}")

    async def _freeze(self, order: Order) -> str:
        self._machine.host = order.host or self._machine.host
        if self._machine.state == DOWN:
            return _STAYS_DOWN
        self._under_way[order.act] = asyncio.get_running_loop().time() + order.duration_s
        try:
            await self._machine.freeze()
            await asyncio.wait_for(self._freezes[order.act].wait(), order.duration_s)
        except TimeoutError:
            pass
        finally:
            await self._machine.thaw()
        return ""

    def _end_freezes(self) -> None:
        for thawed in self._freezes.values():
            thawed.set()

    async def _boot_again(self, order: Order) -> str:
        was_down = self._machine.state == DOWN
        await self._machine.end(signal.SIGKILL if order.abrupt else signal.SIGTERM)
        if order.verb in WIPING:
            self._machine.wipe()
        if order.verb == "redeploy":
            self._machine.host = order.host or self._machine.host
        if was_down:
            return _STAYS_DOWN
        await self._machine.start()
        return ""

    async def _end(self, order: Order) -> str:
        await self._machine.end()
        if order.verb in WIPING:
            self._machine.wipe()
        return ""

    async def _start(self, _: Order) -> str:
        if self._machine.state != DOWN:
            return "the VM was running already"
        await self._machine.start()
        return ""

    async def _nothing(self, _: Order) -> str:
        return ""
