"""The handler on one VM: starts, kills, freezes and reboots it, and records what it does."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from forewarn.crash_test.case_recorder import CaseRecorder
from forewarn.crash_test.handler_machine import HandlerMachine, StarvationMeter, read_usage
from forewarn.crash_test.timeline import ProgramExited, ProgramOutput, ProgramStarted, ResourcesSampled
from forewarn.errors import Refused
from forewarn.machines.namespace_vm.messages import VmProgramExit

MAX_OUTPUT_LINES = 1000  # of one VM that are recorded
MAX_LINE_CHARACTERS = 1000
_SAMPLE_INTERVAL_S = 1.0  # real time
_CLOSE_S = 10.0
_FILL_FILE = ".filled-by-the-crash-test"
_DISK_COMMAND_S = 20.0


class HandlerProcess:
    """The handler's program on one VM, over all its runs; `recorder` gets its starts, exits and output."""

    def __init__(
        self, machine: HandlerMachine, *, vm: str, recorder: CaseRecorder, restart_after_exit_s: float | None = None
    ) -> None:
        self.count_connections: Callable[[], int] = lambda: 0  # open ones to the endpoint; the proxy's owner sets it
        self._machine = machine
        self._vm = vm
        self._recorder = recorder
        self._restart_after_exit_s = restart_after_exit_s
        self._runs = 0
        self._is_up = False  # the VM has booted, and was neither shut down nor removed
        self._is_frozen = False
        self._is_running = False  # the program
        self._is_ending = False  # the case, or an act of the platform, ends the processes
        self._lock = asyncio.Lock()  # one change of the VM at a time
        self._command_lock = asyncio.Lock()  # a sample must not count the processes of a probe
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines = 0
        self._partial_line = b""
        self._starvation = StarvationMeter()

    @property
    def is_controlled(self) -> bool:
        """Whether the program can be started and ended; False: it runs elsewhere."""
        return self._machine.controls_program

    @property
    def is_up(self) -> bool:
        """Whether the VM is up, so that commands run on it unless it is frozen; the program may have ended."""
        return self._is_up

    async def open(self) -> socket.socket:
        """Return the listening socket of the VM's metadata endpoint, which the caller closes; starts nothing."""
        return await self._machine.open(self._on_output, self._on_exit)

    async def boot(self) -> None:
        """Start the program as at a boot, unless the VM is up."""
        async with self._lock:
            if not self._is_up:
                await self._boot()

    async def kill(self, *, restart_after_s: float | None) -> bool:
        """Kill all processes of the program with SIGKILL, and start it again after `restart_after_s`.

        Returns True when the processes have ended, before the restart; False if the VM is not up. Waits first for a
        freeze, reboot or shutdown under way.
        """
        self._require_control()
        async with self._lock:
            if not self._is_up:
                return False
            await self._end_processes(signal.SIGKILL)
        if restart_after_s is not None:
            self._start_task(self._restart(restart_after_s))
        return True

    async def reboot(self, *, is_abrupt: bool, down_s: float) -> bool:
        """End all processes, wait for `down_s` (real time), and boot; return whether the VM was up."""
        self._require_control()
        async with self._lock:
            if not self._is_up:
                return False
            self._is_up = False
            await self._end_processes(signal.SIGKILL if is_abrupt else signal.SIGTERM)
            await asyncio.sleep(down_s)
            await self._boot()
            return True

    async def freeze(self, seconds: float) -> None:
        """Stop all processes for this many seconds of real time, and return when they continue."""
        async with self._lock:
            if not self._is_up:
                return
            self._is_frozen = True
            try:
                await self._machine.freeze()
                await asyncio.sleep(seconds)
            finally:
                await self._machine.thaw()
                self._is_frozen = False

    async def shut_down(self) -> None:
        """End all processes, with SIGTERM and after two seconds SIGKILL, and return when they have ended."""
        async with self._lock:
            if self._is_up:
                self._is_up = False
                await self._end_processes(signal.SIGTERM)

    async def run_command(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command beside the handler, without output; return its exit status."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._command_lock.acquire()
        except TimeoutError:
            return None
        try:
            if not self._is_up or self._is_frozen:
                return None
            return await self._machine.run(command, max(0.0, deadline - loop.time()))
        except ConnectionError:
            return None  # the VM is gone
        finally:
            self._command_lock.release()

    async def fill_disk(self) -> bool:
        """Fill the VM's disk with a file, until `free_disk`; return whether it is full, after up to 20 s."""
        self._require_control()
        if not self._machine.has_own_disk:
            raise Refused("only a VM of namespaces has a disk that can be filled: run this case without --endpoint-env")
        # `cat` ends by itself, with an error, only when the disk is full.
        return await self.run_command(f"cat /dev/zero > {_FILL_FILE}", _DISK_COMMAND_S) is not None

    async def free_disk(self) -> bool:
        """Remove the file of `fill_disk`, after a freeze or reboot under way; return whether that succeeded."""
        async with self._lock:
            return await self.run_command(f"rm -f {_FILL_FILE}", _DISK_COMMAND_S) == 0

    async def close(self) -> None:
        """Kill all processes of the handler, and cancel restarts that wait; within 10 s. May be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._is_up = False
        self._is_ending = True
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._machine.end_processes(signal.SIGKILL)

    async def sample_forever(self) -> None:
        """Record once a second (real time) what the handler uses, while its program runs, until cancelled."""
        while True:
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            async with self._command_lock:
                if self._is_running:
                    self._sample()

    def _sample(self) -> None:
        pids = self._machine.list_pids()
        usage = read_usage(pids)
        self._recorder.record(
            ResourcesSampled(
                at=self._recorder.now(),
                vm=self._vm,
                cpu_s=usage.cpu_s,
                memory_bytes=usage.memory_bytes,
                connections=self.count_connections(),
                processes=usage.processes,
                starved_s=round(self._starvation.measure(pids), 3),
            )
        )

    def _require_control(self) -> None:
        if not self._machine.controls_program:
            raise Refused("the handler runs elsewhere, and cannot be killed, rebooted or disturbed otherwise")

    async def _boot(self) -> None:
        if self._machine.controls_program:
            await self._start(is_boot=True)
        self._is_up = True

    async def _start(self, *, is_boot: bool) -> None:
        self._runs += 1
        self._is_running = True  # before the start: the end may be reported before this task continues
        at = self._recorder.now()
        self._recorder.record(ProgramStarted(at=at, vm=self._vm, run=self._runs, is_boot=is_boot))
        try:
            await self._machine.start(is_boot=is_boot)
        except OSError as error:
            self._is_running = False
            problem = error.strerror or str(error)
            raise Refused(f"the handler cannot be started on VM {self._vm} ({problem}): check its command") from error

    async def _restart(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with self._lock:
            if not self._is_up or self._is_running:
                return
            try:
                await self._start(is_boot=False)
            except Refused as error:
                self._recorder.report_problem(str(error))

    async def _end_processes(self, number: int) -> None:
        self._is_ending = True
        try:
            await self._machine.end_processes(number)
        finally:
            self._is_ending = False

    def _on_exit(self, program_exit: VmProgramExit) -> None:
        self._is_running = False
        self._flush_partial_line()
        self._recorder.record(
            ProgramExited(
                at=self._recorder.now(),
                vm=self._vm,
                code=program_exit.code,
                signal=program_exit.signal,
                by_case=self._is_ending,
            )
        )
        if not self._is_ending and self._restart_after_exit_s is not None:
            self._start_task(self._restart(self._restart_after_exit_s))

    def _on_output(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._record_line(line)
        if len(self._partial_line) > MAX_LINE_CHARACTERS:
            self._flush_partial_line()

    def _flush_partial_line(self) -> None:
        line, self._partial_line = self._partial_line, b""
        if line:
            self._record_line(line)

    def _record_line(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > MAX_OUTPUT_LINES:
            return
        text = line.decode(errors="replace")[:MAX_LINE_CHARACTERS].rstrip("\r")
        if self._lines == MAX_OUTPUT_LINES:
            text = "(further output is not recorded)"
        self._recorder.record(ProgramOutput(at=self._recorder.now(), vm=self._vm, text=text))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
