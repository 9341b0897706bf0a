"""Keeping one VM: in touch with the service for as long as the VM's program runs."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.errors import Refused, Unavailable
from forewarn.vm import message
from forewarn.vm.act import Acts
from forewarn.vm.enclosure import Enclosure, Event, Reply
from forewarn.vm.journal import Journal, Outcome
from forewarn.vm.link import Link
from forewarn.vm.machine import Machine
from forewarn.vm.message import Message, Order, Vm
from forewarn.vm.terminal import Terminal

AGAIN_S = 0.2
_FIRST_TRIES = 10  # to listen in a network that nobody of ours has listened in yet
_NEWS_S = 10.0  # how long a VM that is gone for good waits for a service to hear of it
_TAIL = 4096
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as shells say it
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept, and how."""

    name: str
    program: tuple[str, ...]
    data: Path
    grace_s: float
    first_boot_id: str
    output: Path | None = None  # the file that has what the program writes; None: a terminal or a pipe has it


class Keeper:
    def __init__(
        self, kept: Kept, vm: Vm, *, enclosure: Enclosure, journal: Journal, terminal: Terminal | None, say: Say
    ) -> None:
        self._kept = kept
        self._name = vm.name  # it may be kept under its key
        self._enclosure = enclosure
        self._journal = journal
        self._terminal = terminal
        self._say = say
        self._link: Link | None = None
        self._listening = asyncio.Event()
        self._ended = asyncio.Event()  # by a signal to us
        self._signalled = 0  # the first signal that is to end us
        self._tasks: set[asyncio.Task[None]] = set()
        self._machine = Machine(enclosure, vm, grace_s=kept.grace_s, boot_id=kept.first_boot_id)
        self._acts = Acts(machine=self._machine, journal=journal, tell=self._tell, usual_s=kept.grace_s + 1.0)

    async def run(self, link: Link) -> int:
        """Keep the VM until it is over; the exit code."""
        self._watch_signals()
        self._enclosure.follow(self._told)
        touch = asyncio.create_task(self._stay_in_touch(link))
        try:
            await self._until(self._listening, self._machine.ended_by_itself, self._ended, touch)
            if self._ended.is_set() or self._machine.ended_by_itself.is_set():
                return 128 + (self._signalled or signal.SIGKILL)
            try:
                await self._machine.start()
            except OSError as error:
                return self._tell_of_no_program(error)
            self._acts.may_begin.set()
            await self._until(self._machine.ended_by_itself, self._acts.final, self._ended, touch)
            return await self._take_leave()
        finally:
            touch.cancel()
            await asyncio.gather(touch, return_exceptions=True)

    async def _until(self, *reasons: asyncio.Event | asyncio.Task[None]) -> None:
        """Until the first of these; an error of a task is ours."""
        waits = [r if isinstance(r, asyncio.Task) else asyncio.create_task(_wait(r)) for r in reasons]
        over, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait, reason in zip(waits, reasons, strict=True):
            if wait is not reason:
                wait.cancel()
        for task in over:
            task.result()

    async def _take_leave(self) -> int:
        if self._acts.final.is_set():
            self._say(f"VM {self._name!r} was {self._acts.farewell}: its program was ended")
            await self._until_the_service_knows()
            return 0
        if self._machine.ended_by_itself.is_set():
            if await self._machine.has_company():
                self._say(
                    f"the program of VM {self._name!r} has ended, and what it left in the background ends with it: "
                    "run it in the foreground"
                )
            await self._tell(message.exited(self._machine.last_exit, self._tail()))
        return self._machine.last_exit.status

    async def _until_the_service_knows(self) -> None:
        """It was told, or will hear it with the next hello."""
        try:
            await asyncio.wait_for(self._listening.wait(), _NEWS_S)
        except TimeoutError:
            pass

    def _tell_of_no_program(self, error: OSError) -> int:
        self._say(f"program {self._kept.program[0]!r} cannot be started in VM {self._name!r}: {error.strerror}")
        return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE

    async def _stay_in_touch(self, link: Link) -> None:
        while True:
            self._link = link
            try:
                await self._converse(link)
            except (BrokenPipeError, ConnectionError):
                pass
            finally:
                self._link = None
                self._listening.clear()
                link.close()
            link = await self._return()

    async def _return(self) -> Link:
        """A new link, as soon as there is a service again."""
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                link = Link.open(self._kept.data)
            except Unavailable:
                continue
            try:
                await link.introduce(self.hello())
            except (Unavailable, OSError):
                link.close()
                continue
            except BaseException:
                link.close()
                raise
            return link

    def hello(self) -> Message:
        machine = self._machine
        return hello_of(self._kept, boot_id=machine.boot_id, state=machine.state, known=self._journal.known)

    async def _converse(self, link: Link) -> None:
        handed = await self._hand_over_listener(link)
        try:
            while (told := await link.receive()) is not None:
                if "listening" in told:
                    handed = _close(handed)
                    self._listening.set()
                elif "order" in told:
                    await self._acts.obey(Order.from_message(told["order"]))
                elif "thaw" in told:
                    await self._acts.thaw(str(told["thaw"]))
        finally:
            _close(handed)

    async def _hand_over_listener(self, link: Link) -> int:
        """A new socket each time: the last one died with the service that had it, so that nobody waited in vain."""
        opened = await self._open_listener()
        address, port = opened.value
        (descriptor,) = opened.descriptors
        try:
            await link.send(message.listener(address, port), (descriptor,))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    async def _open_listener(self) -> Reply:
        tries = 0
        while True:
            try:
                return await self._enclosure.call("listen")
            except ConnectionError:
                raise
            except OSError as error:
                tries += 1
                is_first = not self._acts.may_begin.is_set()
                if error.errno != errno.EADDRINUSE or (is_first and tries >= _FIRST_TRIES):
                    raise self._unheard(error) from error
            await asyncio.sleep(AGAIN_S)  # a service that is just ending has it still

    def _unheard(self, error: OSError) -> Refused:
        return Refused(
            f"nobody can listen on the metadata endpoint in the network of VM {self._name!r} ({error.strerror}): "
            "end what else listens there, or leave --netns out for a network of its own"
        )

    async def _tell(self, told: Message) -> None:
        """What cannot be told now is told with the next hello."""
        if self._link is not None:
            try:
                await self._link.send(told)
            except OSError:
                pass

    def _tail(self) -> str:
        if self._kept.output is None:
            return ""
        with self._kept.output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode(errors="replace")

    def _watch_signals(self) -> None:
        for number in _ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self._be_signalled, number)

    def _be_signalled(self, number: int) -> None:
        self._begin(self._end(number))

    async def _end(self, number: int) -> None:
        if self._signalled:
            await self._machine.kill()
            return
        self._signalled = number
        await self._machine.end(number)
        self._ended.set()

    def _told(self, event: Event) -> None:
        if event["event"] == "stopped" and self._terminal is not None:
            self._terminal.suspend()
            self._begin(self._machine.resume())
        else:
            self._machine.take(event)

    def _begin(self, effort: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(effort)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def hello_of(kept: Kept, *, boot_id: str, state: str, known: Mapping[str, Outcome]) -> Message:
    return message.hello(
        vm=kept.name,
        pid=os.getpid(),
        started=_started(),
        boot_id=boot_id,
        program=kept.program,
        state=state,
        known=known,
    )


def _started() -> str:
    """When this process began, so that its pid is not taken for that of a later one."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _close(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1
