"""The supervisor of one VM: stays connected to the service for as long as the VM's program runs.

The terminal belongs to the VM's program while it runs, and goes back to the shell when it has ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import termios
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.errors import Refused, Unavailable
from forewarn.namespace_vm import messages
from forewarn.namespace_vm.act_executor import VmActExecutor
from forewarn.namespace_vm.act_journal import VmActJournal, VmActOutcome
from forewarn.namespace_vm.connection import ServiceConnection
from forewarn.namespace_vm.machine import Machine
from forewarn.namespace_vm.messages import JsonMessage, VmActOrder, VmDescription
from forewarn.namespace_vm.namespaces import InitEvent, InitReply, VmNamespaces

_STDIN = 0


def is_in_terminal_foreground() -> bool:
    """Whether we are in the foreground of a terminal, so that we have it to give."""
    try:
        return os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        return False


class Terminal:
    """The terminal as it was when we came."""

    def __init__(self) -> None:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we take it back from the background
        self._modes = termios.tcgetattr(_STDIN)

    def suspend(self) -> None:
        """Stop with the program, as one job of the user's shell; come back to the foreground with it."""
        program, modes = os.tcgetpgrp(_STDIN), termios.tcgetattr(_STDIN)
        self.restore()
        os.killpg(os.getpgrp(), signal.SIGTSTP)  # a shell that knows jobs continues us; without one nothing stops
        if os.tcgetpgrp(_STDIN) == os.getpgrp():
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, modes)
            os.tcsetpgrp(_STDIN, program)

    def restore(self) -> None:
        try:
            os.tcsetpgrp(_STDIN, os.getpgrp())
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._modes)
        except (OSError, termios.error):
            pass  # the terminal has gone


RETRY_S = 0.2
_MAX_FIRST_LISTEN_TRIES = 10  # to listen in a network that nobody of ours has listened in yet
_LAST_MESSAGE_TIMEOUT_S = 10.0  # how long a VM that is gone for good waits for a service to hear of it
_OUTPUT_TAIL_BYTES = 4096
_EXIT_NOT_FOUND, _EXIT_NOT_EXECUTABLE = 127, 126  # as shells say it
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PrintMessage = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """What is kept, and how."""

    name: str
    program: tuple[str, ...]
    data: Path
    grace_s: float
    first_boot_id: str
    output: Path | None = None  # the file that has what the program writes; None: a terminal or a pipe has it


class VmSupervisor:
    def __init__(
        self,
        kept: SupervisorConfig,
        vm: VmDescription,
        *,
        enclosure: VmNamespaces,
        journal: VmActJournal,
        terminal: Terminal | None,
        say: PrintMessage,
    ) -> None:
        self._config = kept
        self._name = vm.name  # it may be kept under its key
        self._namespaces = enclosure
        self._journal = journal
        self._terminal = terminal
        self._print = say
        self._connection: ServiceConnection | None = None
        self._service_listens = asyncio.Event()
        self._stopped = asyncio.Event()  # by a signal to us
        self._stop_signal = 0  # the first signal that is to end us
        self._tasks: set[asyncio.Task[None]] = set()
        self._machine = Machine(enclosure, vm, grace_s=kept.grace_s, boot_id=kept.first_boot_id)
        self._executor = VmActExecutor(
            machine=self._machine, journal=journal, tell=self._send, usual_s=kept.grace_s + 1.0
        )

    async def run(self, link: ServiceConnection) -> int:
        """Keep the VM until it is over; the exit code."""
        self._watch_signals()
        self._namespaces.watch_events(self._on_init_event)
        touch = asyncio.create_task(self._keep_connected(link))
        try:
            await self._wait_for_first(self._service_listens, self._machine.exited_by_itself, self._stopped, touch)
            if self._stopped.is_set() or self._machine.exited_by_itself.is_set():
                return 128 + (self._stop_signal or signal.SIGKILL)
            try:
                await self._machine.start()
            except OSError as error:
                return self._report_start_failure(error)
            self._executor.vm_started.set()
            await self._wait_for_first(self._machine.exited_by_itself, self._executor.vm_removed, self._stopped, touch)
            return await self._finish()
        finally:
            touch.cancel()
            await asyncio.gather(touch, return_exceptions=True)

    async def _wait_for_first(self, *reasons: asyncio.Event | asyncio.Task[None]) -> None:
        """Until the first of these; an error of a task is ours."""
        waits = [r if isinstance(r, asyncio.Task) else asyncio.create_task(_wait_for_event(r)) for r in reasons]
        over, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait, reason in zip(waits, reasons, strict=True):
            if wait is not reason:
                wait.cancel()
        for task in over:
            task.result()

    async def _finish(self) -> int:
        if self._executor.vm_removed.is_set():
            self._print(f"VM {self._name!r} was {self._executor.removal_reason}: its program was ended")
            await self._wait_until_service_informed()
            return 0
        if self._machine.exited_by_itself.is_set():
            if await self._machine.has_background_processes():
                self._print(
                    f"the program of VM {self._name!r} has ended, and what it left in the background ends with it: "
                    "run it in the foreground"
                )
            await self._send(messages.exit_message(self._machine.last_exit, self._output_tail()))
        return self._machine.last_exit.status

    async def _wait_until_service_informed(self) -> None:
        """It was told, or will hear it with the next hello."""
        try:
            await asyncio.wait_for(self._service_listens.wait(), _LAST_MESSAGE_TIMEOUT_S)
        except TimeoutError:
            pass

    def _report_start_failure(self, error: OSError) -> int:
        self._print(f"program {self._config.program[0]!r} cannot be started in VM {self._name!r}: {error.strerror}")
        return _EXIT_NOT_FOUND if error.errno == errno.ENOENT else _EXIT_NOT_EXECUTABLE

    async def _keep_connected(self, link: ServiceConnection) -> None:
        while True:
            self._connection = link
            try:
                await self._serve_connection(link)
            except (BrokenPipeError, ConnectionError):
                pass
            finally:
                self._connection = None
                self._service_listens.clear()
                link.close()
            link = await self._reconnect()

    async def _reconnect(self) -> ServiceConnection:
        """A new link, as soon as there is a service again."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                link = ServiceConnection.open(self._config.data)
            except Unavailable:
                continue
            try:
                await link.send_hello(self.hello())
            except (Unavailable, OSError):
                link.close()
                continue
            except BaseException:
                link.close()
                raise
            return link

    def hello(self) -> JsonMessage:
        machine = self._machine
        return build_hello(self._config, boot_id=machine.boot_id, state=machine.state, known=self._journal.outcomes)

    async def _serve_connection(self, link: ServiceConnection) -> None:
        handed = await self._hand_over_listener(link)
        try:
            while (told := await link.receive()) is not None:
                if "listening" in told:
                    handed = _close_descriptor(handed)
                    self._service_listens.set()
                elif "order" in told:
                    await self._executor.execute(VmActOrder.from_message(told["order"]))
                elif "thaw" in told:
                    await self._executor.thaw(str(told["thaw"]))
        finally:
            _close_descriptor(handed)

    async def _hand_over_listener(self, link: ServiceConnection) -> int:
        """A new socket each time: the last one died with the service that had it, so that nobody waited in vain."""
        opened = await self._open_listener()
        address, port = opened.value
        (descriptor,) = opened.descriptors
        try:
            await link.send(messages.listener_message(address, port), (descriptor,))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    async def _open_listener(self) -> InitReply:
        tries = 0
        while True:
            try:
                return await self._namespaces.call("listen")
            except ConnectionError:
                raise
            except OSError as error:
                tries += 1
                is_first = not self._executor.vm_started.is_set()
                if error.errno != errno.EADDRINUSE or (is_first and tries >= _MAX_FIRST_LISTEN_TRIES):
                    raise self._listen_error(error) from error
            await asyncio.sleep(RETRY_S)  # a service that is just ending has it still

    def _listen_error(self, error: OSError) -> Refused:
        return Refused(
            f"nobody can listen on the metadata endpoint in the network of VM {self._name!r} ({error.strerror}): "
            "end what else listens there, or leave --netns out for a network of its own"
        )

    async def _send(self, told: JsonMessage) -> None:
        """What cannot be told now is told with the next hello."""
        if self._connection is not None:
            try:
                await self._connection.send(told)
            except OSError:
                pass

    def _output_tail(self) -> str:
        if self._config.output is None:
            return ""
        with self._config.output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_TAIL_BYTES))
            return file.read().decode(errors="replace")

    def _watch_signals(self) -> None:
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self._start_task(self._stop(number))

    async def _stop(self, number: int) -> None:
        if self._stop_signal:
            await self._machine.kill()
            return
        self._stop_signal = number
        await self._machine.stop(number)
        self._stopped.set()

    def _on_init_event(self, event: InitEvent) -> None:
        if event["event"] == "stopped" and self._terminal is not None:
            self._terminal.suspend()
            self._start_task(self._machine.resume())
        else:
            self._machine.handle_init_event(event)

    def _start_task(self, effort: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(effort)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_hello(kept: SupervisorConfig, *, boot_id: str, state: str, known: Mapping[str, VmActOutcome]) -> JsonMessage:
    return messages.hello_message(
        vm=kept.name,
        pid=os.getpid(),
        started=_own_start_ticks(),
        boot_id=boot_id,
        program=kept.program,
        state=state,
        known=known,
    )


def _own_start_ticks() -> str:
    """When this process began, so that its pid is not taken for that of a later one."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


async def _wait_for_event(event: asyncio.Event) -> None:
    await event.wait()


def _close_descriptor(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1
