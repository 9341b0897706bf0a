"""The supervisor of one VM: stays connected to the service for as long as the VM's program runs.

The terminal belongs to the VM's program while it runs, and goes back to the shell when it has ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import termios
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.errors import Refused, Unavailable
from forewarn.machines.namespace_vm import messages
from forewarn.machines.namespace_vm.act_executor import VmActExecutor
from forewarn.machines.namespace_vm.act_journal import VmActJournal, VmActOutcome
from forewarn.machines.namespace_vm.connection import ServiceConnection
from forewarn.machines.namespace_vm.machine import Machine
from forewarn.machines.namespace_vm.messages import JsonMessage, VmActOrder, VmDescription
from forewarn.machines.namespace_vm.namespaces import InitEvent, InitReply, VmNamespaces

# The log of a detached program: output from a pipe, kept in two files of bounded size.
#
# The program does not write to the file itself, because then nothing could limit it. When `output.log` is full it
# becomes `output.log.1`, in place of an older one.

MAX_LOG_BYTES = 8 * 1024 * 1024  # of each of the two files
_PIPE_BYTES = 64 * 1024  # what a pipe of Linux holds
_TAIL_BYTES = 4096


class OutputLog:
    """Copies the output of a VM's program from a pipe to a file, and keeps the end of it in memory."""

    # Output that cannot be written, as on a full disk, is dropped: the program must not wait for it.

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = _open_for_appending(path)
        self._read_end, self.write_end = os.pipe()  # `write_end` is for the program
        os.set_blocking(self._read_end, False)
        self._is_write_end_open = True
        self._tail = b""

    def close_write_end(self) -> None:
        """Close this process's copy of `write_end`, once the VM has its own; may be called twice."""
        if self._is_write_end_open:
            self._is_write_end_open = False
            os.close(self.write_end)

    def watch(self) -> None:
        """Have the running event loop copy output to the file, until nobody can write any more."""
        asyncio.get_running_loop().add_reader(self._read_end, self._on_readable)

    def tail(self) -> str:
        """Copy what is in the pipe to the file, and return the last 4096 bytes of the output as text."""
        self._copy_available()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Copy what is in the pipe, and close everything. Call it once, after the event loop and the VM ended."""
        self.close_write_end()
        self._copy_available()
        os.close(self._read_end)
        os.close(self._file)

    def _on_readable(self) -> None:
        if not self._copy_available():
            asyncio.get_running_loop().remove_reader(self._read_end)  # nobody can write any more

    def _copy_available(self) -> bool:
        try:
            data = os.read(self._read_end, _PIPE_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        with suppress(OSError):
            self._write(data)
        return bool(data)

    def _write(self, data: bytes) -> None:
        if os.fstat(self._file).st_size + len(data) > self._max_bytes:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            full, self._file = self._file, _open_for_appending(self._path)
            os.close(full)
        os.write(self._file, data)


def _open_for_appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


_STDIN = 0
RETRY_S = 0.2  # between attempts to connect or to listen
_MAX_FIRST_LISTEN_TRIES = 10  # before the VM started, another program may hold the address for good
_LAST_MESSAGE_TIMEOUT_S = 10.0  # how long a removed VM waits for a service to send the outcome to
_EXIT_NOT_FOUND, _EXIT_NOT_EXECUTABLE = 127, 126  # as in shells
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PrintMessage = Callable[[str], None]  # prints a line for the user


def is_in_terminal_foreground() -> bool:
    """Whether stdin is a terminal and this process is in its foreground process group; False if unknown."""
    try:
        return os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        return False


class Terminal:
    """The terminal on stdin, and its modes at the time this object was made, which `restore` sets again."""

    def __init__(self) -> None:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # `restore` is called from the background
        self._modes = termios.tcgetattr(_STDIN)

    def suspend(self) -> None:
        """Stop together with the program, as one job of the user's shell, until the shell continues the job."""
        program, modes = os.tcgetpgrp(_STDIN), termios.tcgetattr(_STDIN)
        self.restore()
        os.killpg(os.getpgrp(), signal.SIGTSTP)  # a shell with job control continues it; without one nothing stops
        if os.tcgetpgrp(_STDIN) == os.getpgrp():
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, modes)
            os.tcsetpgrp(_STDIN, program)

    def restore(self) -> None:
        """Take the terminal back from the program, and set the modes that it had when this object was made."""
        try:
            os.tcsetpgrp(_STDIN, os.getpgrp())
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._modes)
        except (OSError, termios.error):
            pass  # the terminal has gone


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    name: str  # the VM's name, `group/name` or key, ignoring letter case
    program: tuple[str, ...]  # with its arguments
    data: Path  # the service's data directory
    grace_s: float  # real time between SIGTERM and SIGKILL, in seconds
    first_boot_id: str  # later boots have new ones


class VmSupervisor:
    """Runs the program of one VM, keeps it connected to the service, and executes the service's acts."""

    def __init__(
        self,
        config: SupervisorConfig,
        vm: VmDescription,
        *,
        namespaces: VmNamespaces,
        journal: VmActJournal,
        terminal: Terminal | None,
        output: OutputLog | None,
        print_message: PrintMessage,
    ) -> None:
        self._config = config
        self._name = vm.name  # the configured name may be the VM's key
        self._namespaces = namespaces
        self._journal = journal
        self._terminal = terminal
        self._output = output
        self._print = print_message
        self._connection: ServiceConnection | None = None
        self._service_listens = asyncio.Event()
        self._stopped = asyncio.Event()  # by a signal to the supervisor
        self._stop_signal = 0  # the first signal to stop the supervisor
        self._tasks: set[asyncio.Task[None]] = set()
        self._machine = Machine(namespaces, vm, grace_s=config.grace_s, boot_id=config.first_boot_id)
        self._executor = VmActExecutor(
            machine=self._machine, journal=journal, send=self._send, default_duration_s=config.grace_s + 1.0
        )

    async def run(self, connection: ServiceConnection) -> int:
        """Run the VM until its program ends, the VM is removed or a signal arrives; return the exit code.

        Starts the program once the service listens in the VM, and reconnects whenever the service is gone. SIGINT,
        SIGTERM and SIGHUP go to all processes of the VM; a second one kills them.
        """
        self._watch_signals()
        self._namespaces.watch_events(self._on_init_event)
        if self._output is not None:
            self._output.watch()
        connection_task = asyncio.create_task(self._keep_connected(connection))
        try:
            await self._wait_for_first(
                self._service_listens, self._machine.exited_by_itself, self._stopped, connection_task
            )
            if self._stopped.is_set() or self._machine.exited_by_itself.is_set():
                return 128 + (self._stop_signal or signal.SIGKILL)
            try:
                await self._machine.start()
            except OSError as error:
                return self._report_start_failure(error)
            self._executor.vm_started.set()
            await self._wait_for_first(
                self._machine.exited_by_itself, self._executor.vm_removed, self._stopped, connection_task
            )
            return await self._finish()
        finally:
            connection_task.cancel()
            await asyncio.gather(connection_task, return_exceptions=True)

    async def _wait_for_first(self, *reasons: asyncio.Event | asyncio.Task[None]) -> None:
        waits = [r if isinstance(r, asyncio.Task) else asyncio.create_task(_wait_for_event(r)) for r in reasons]
        finished, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait, reason in zip(waits, reasons, strict=True):
            if wait is not reason:
                wait.cancel()
        for task in finished:
            task.result()

    async def _finish(self) -> int:
        if self._executor.vm_removed.is_set():
            self._print(f"VM {self._name!r} was {self._executor.removal_reason}: its program was ended")
            await self._wait_until_service_informed()
            return 0
        if self._machine.exited_by_itself.is_set():
            if await self._machine.has_background_processes():
                self._print(
                    f"the program of VM {self._name!r} has ended, and its background processes end with it: "
                    "run it in the foreground"
                )
            await self._send(
                messages.exit_message(self._machine.last_exit, self._output.tail() if self._output else "")
            )
        return self._machine.last_exit.status

    async def _wait_until_service_informed(self) -> None:
        """Wait a while for a connection: the outcome is sent on it, or with its hello."""
        try:
            await asyncio.wait_for(self._service_listens.wait(), _LAST_MESSAGE_TIMEOUT_S)
        except TimeoutError:
            pass

    def _report_start_failure(self, error: OSError) -> int:
        self._print(f"program {self._config.program[0]!r} cannot be started in VM {self._name!r}: {error.strerror}")
        return _EXIT_NOT_FOUND if error.errno == errno.ENOENT else _EXIT_NOT_EXECUTABLE

    async def _keep_connected(self, connection: ServiceConnection) -> None:
        while True:
            self._connection = connection
            try:
                await self._serve_connection(connection)
            except (BrokenPipeError, ConnectionError):
                pass
            finally:
                self._connection = None
                self._service_listens.clear()
                connection.close()
            connection = await self._reconnect()

    async def _reconnect(self) -> ServiceConnection:
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                connection = ServiceConnection.open(self._config.data)
            except Unavailable:
                continue
            try:
                await connection.send_hello(self.hello())
            except (Unavailable, OSError):
                connection.close()
                continue
            except BaseException:
                connection.close()
                raise
            return connection

    def hello(self) -> JsonMessage:
        """Return the hello message with the current state of the VM and all outcomes of its journal."""
        machine = self._machine
        return build_hello(self._config, boot_id=machine.boot_id, state=machine.state, known=self._journal.outcomes)

    async def _serve_connection(self, connection: ServiceConnection) -> None:
        descriptors = await self._hand_over_listeners(connection)
        try:
            while (message := await connection.receive()) is not None:
                if "listening" in message and descriptors:
                    os.close(descriptors.popleft())  # the service confirms them in the order sent
                    if not descriptors:
                        self._service_listens.set()
                elif "order" in message:
                    await self._executor.execute(VmActOrder.from_message(message["order"]))
                elif "thaw" in message:
                    await self._executor.thaw(str(message["thaw"]))
        finally:
            _close_descriptors(descriptors)

    async def _hand_over_listeners(self, connection: ServiceConnection) -> deque[int]:
        """Send new listening sockets; the old ones were closed when their service ended, so no client hangs."""
        reply = await self._open_listeners()
        descriptors = deque(reply.descriptors)
        try:
            for (address, port), descriptor in zip(reply.value, reply.descriptors, strict=True):
                await connection.send(messages.listener_message(address, port), (descriptor,))
        except OSError:
            _close_descriptors(descriptors)
            raise
        return descriptors

    async def _open_listeners(self) -> InitReply:
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
            await asyncio.sleep(RETRY_S)  # a service that is shutting down may still hold it

    def _listen_error(self, error: OSError) -> Refused:
        return Refused(
            f"the metadata endpoint in the network of VM {self._name!r} cannot be opened ({error.strerror}): "
            "stop the program that listens there, or omit --netns for a network of its own"
        )

    async def _send(self, message: JsonMessage) -> None:
        """Send a message, if connected; otherwise the next hello contains the outcome."""
        if self._connection is not None:
            try:
                await self._connection.send(message)
            except OSError:
                pass

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

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def build_hello(
    config: SupervisorConfig, *, boot_id: str, state: str, known: Mapping[str, VmActOutcome]
) -> JsonMessage:
    """Return the hello message with which this process introduces itself as a VM's supervisor."""
    return messages.hello_message(
        vm=config.name,
        pid=os.getpid(),
        started=_own_start_ticks(),
        boot_id=boot_id,
        program=config.program,
        state=state,
        known=known,
    )


def _own_start_ticks() -> str:
    """The start time of this process, which tells it from a later one with the same pid."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


async def _wait_for_event(event: asyncio.Event) -> None:
    await event.wait()


def _close_descriptors(descriptors: deque[int]) -> None:
    while descriptors:
        os.close(descriptors.popleft())
