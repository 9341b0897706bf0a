"""Where a handler's processes run: in a VM of namespaces, as children of this process, or elsewhere.

The first two start the command in a directory of its own, which begins with the files of the user's directory.
Files there outlive a kill and a reboot; those in `/tmp` (of a child: in TMPDIR) outlive a kill only.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from forewarn.crash_test.handler_files import (
    HandlerSpec,
    copy_user_directory,
    prepare_vm_files,
    resolve_command,
    vm_environment,
)
from forewarn.crash_test.process_usage import is_running, list_descendants, list_pids_with_variable
from forewarn.machines.namespace_vm import syscalls
from forewarn.machines.namespace_vm.machine import Machine, boot_id_file
from forewarn.machines.namespace_vm.messages import VmDescription, VmProgramExit
from forewarn.machines.namespace_vm.namespaces import InitEvent, VmNamespaces
from forewarn.machines.namespace_vm.private_files import empty_private_tmp
from forewarn.machines.namespace_vm.vm_spec import VmSpec

STOP_GRACE_S = 2.0  # between SIGTERM and SIGKILL when a VM shuts down
_READ_BYTES = 65536
_BACKLOG = 1024
_END_CHECK_S, _MAX_END_S = 0.02, 10.0
_MARK = "FOREWARN_CRASH_TEST"  # the environment variable by which processes of a plain child are found

OnOutput = Callable[[bytes], None]  # gets what the program wrote
OnExit = Callable[[VmProgramExit], None]  # is called when the program ended, for any reason


class HandlerMachine(Protocol):
    """Where a handler's processes run: starts, freezes and ends them; one object per VM of a case.

    Call `open` first, on the event loop, then `start` and the others, one operation at a time, and `close` last. The
    methods of a VM of namespaces raise OSError if the VM is gone.
    """

    has_own_disk: bool  # whether its disk can be filled without harm to others
    controls_program: bool  # False: the program runs elsewhere, and all methods that start or end it do nothing

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        """Begin to watch, and return the listening socket of the metadata endpoint; starts nothing.

        `on_output` gets what the program writes, `on_exit` how it ended, each time; neither for a handler that runs
        elsewhere. The caller closes the socket.
        """

    async def start(self, *, is_boot: bool) -> None:
        """Start the program, which must not run; does not wait for its end. OSError if it cannot be executed."""

    async def end_processes(self, number: int) -> None:
        """Send signal `number` to all processes of the handler, and return when none is left."""

    async def freeze(self) -> None:
        """Stop all processes of the handler (SIGSTOP), until `thaw`; does nothing if it runs elsewhere."""

    async def thaw(self) -> None:
        """Continue all processes of the handler that `freeze` stopped; does nothing if it runs elsewhere."""

    async def run(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command (/bin/sh) beside the program, without output; return its exit status."""

    def list_pids(self) -> list[int]:
        """Return the pids of all processes of the handler, as this process sees them."""

    def close(self) -> None:
        """End every process of the handler and release everything. Call it after the event loop has ended."""


class NamespaceMachine:
    """A VM of namespaces, whose metadata endpoint is 169.254.169.254. Disk, /tmp, hostname and boot id are its own.

    Create it before the event loop runs, because it forks. All of it ends with this process.
    """

    has_own_disk = True
    controls_program = True

    def __init__(self, spec: HandlerSpec) -> None:
        self._files = prepare_vm_files(spec)
        vm = VmDescription(
            name=spec.vm,
            computer_name=spec.hostname,
            ephemeral=spec.directory / "ephemeral",
            directory=spec.directory,
        )
        boot_id = str(uuid4())
        boot_id_file(vm).write_text(f"{boot_id}\n")
        self._output, write_end = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._namespaces = VmNamespaces(
                VmSpec(
                    hostname=spec.hostname,
                    argv=resolve_command(spec),
                    environment=vm_environment(spec, self._files),
                    boot_id_file=boot_id_file(vm),
                    output=write_end,
                    files=self._files,
                )
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(write_end)
        self._machine = Machine(self._namespaces, vm, grace_s=STOP_GRACE_S, boot_id=boot_id)
        self._waiting_runs: dict[int, asyncio.Future[int | None]] = {}
        self._finished_runs: dict[int, int | None] = {}  # that ended before anyone waited
        self._is_first_boot = True
        self._is_open = True

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        self._namespaces.watch_events(lambda event: self._on_init_event(event, on_exit))
        _watch_output(self._output, on_output)
        reply = await self._namespaces.call("listen")
        sock = socket.socket(fileno=reply.descriptors[0])
        sock.setblocking(False)
        return sock

    async def start(self, *, is_boot: bool) -> None:
        if is_boot and not self._is_first_boot:
            empty_private_tmp(self._files)
        self._is_first_boot = False
        await self._machine.start(is_boot=is_boot)

    async def end_processes(self, number: int) -> None:
        await self._machine.stop(number)

    async def freeze(self) -> None:
        await self._namespaces.call("freeze")

    async def thaw(self) -> None:
        await self._namespaces.call("thaw")

    async def run(self, command: str, timeout_s: float) -> int | None:
        pid: int = (await self._namespaces.call("run", ["/bin/sh", "-c", command])).value
        if pid in self._finished_runs:
            return self._finished_runs.pop(pid)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting_runs[pid] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            await self._namespaces.call("kill", pid)
            return None
        finally:
            del self._waiting_runs[pid]

    def list_pids(self) -> list[int]:
        return list_descendants(self._namespaces.pid)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._namespaces.close()
            os.close(self._output)

    def _on_init_event(self, event: InitEvent, on_exit: OnExit) -> None:
        if event["event"] == "finished":
            waiting = self._waiting_runs.get(event["pid"])
            if waiting is None:
                self._finished_runs[event["pid"]] = event["code"]
            elif not waiting.done():
                waiting.set_result(event["code"])
            return
        self._machine.handle_init_event(event)
        if event["event"] in ("exited", "gone"):
            on_exit(self._machine.last_exit)


class ChildMachine:
    """Runs the handler as a plain child, with the endpoint's URL in an environment variable.

    All processes that the handler started are found by an environment variable that they inherit, and ended with it.
    """

    has_own_disk = False
    controls_program = True

    def __init__(self, spec: HandlerSpec) -> None:
        self._spec = spec
        self._disk, self._tmp = spec.directory / "disk", spec.directory / "tmp"
        for directory in (self._disk, self._tmp):
            directory.mkdir()
        copy_user_directory(spec.user_directory, self._disk)
        self._mark = str(uuid4())
        self._environment: dict[str, str] = {}
        self._output, self._write_end = os.pipe()
        os.set_blocking(self._output, False)
        self._program: asyncio.subprocess.Process | None = None
        self._exit_task: asyncio.Task[None] | None = None
        self._on_exit: OnExit = lambda program_exit: None
        self._is_open = True

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        self._on_exit = on_exit
        _watch_output(self._output, on_output)
        sock = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        sock.setblocking(False)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._environment = {
            **self._spec.environment,
            self._spec.endpoint_env: url,
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
            "PWD": str(self._disk),
            "TMPDIR": str(self._tmp),
            "FOREWARN_VM": self._spec.vm,
            _MARK: self._mark,
        }
        return sock

    async def start(self, *, is_boot: bool) -> None:
        if is_boot:
            shutil.rmtree(self._tmp, ignore_errors=True)
            self._tmp.mkdir(exist_ok=True)
        self._program = await asyncio.create_subprocess_exec(
            *resolve_command(self._spec),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._write_end,
            stderr=self._write_end,
            cwd=self._disk,
            env=self._environment,
            start_new_session=True,
            preexec_fn=_die_with_this_process,
        )
        self._exit_task = asyncio.create_task(self._report_exit(self._program))

    async def end_processes(self, number: int) -> None:
        if await self._signal_until_gone(number, STOP_GRACE_S):
            await self._signal_until_gone(signal.SIGKILL, _MAX_END_S)
        if self._exit_task is not None:
            await self._exit_task

    async def freeze(self) -> None:
        _send_signal(self._list_all_pids(), signal.SIGSTOP)

    async def thaw(self) -> None:
        _send_signal(self._list_all_pids(), signal.SIGCONT)

    async def run(self, command: str, timeout_s: float) -> int | None:
        environment = {name: value for name, value in self._environment.items() if name != _MARK}
        return await _run_shell_command(command, timeout_s, directory=self._disk, environment=environment)

    def list_pids(self) -> list[int]:
        if self._program is None or self._program.returncode is not None:
            return []
        return [self._program.pid, *list_descendants(self._program.pid)]

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _send_signal(self._list_all_pids(), signal.SIGKILL)
            os.close(self._output)
            os.close(self._write_end)

    def _list_all_pids(self) -> list[int]:
        return sorted({*self.list_pids(), *list_pids_with_variable(_MARK, self._mark)})

    async def _signal_until_gone(self, number: int, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        pids = self._list_all_pids()
        _send_signal(pids, number)
        _send_signal(pids, signal.SIGCONT)
        while left := [pid for pid in self._list_all_pids() if is_running(pid)]:
            if loop.time() >= deadline:
                return True
            if number == signal.SIGKILL:
                _send_signal(left, number)  # also those that were forked meanwhile
            await asyncio.sleep(_END_CHECK_S)
        return False

    async def _report_exit(self, program: asyncio.subprocess.Process) -> None:
        code = await program.wait()
        self._on_exit(VmProgramExit(code=code) if code >= 0 else VmProgramExit(signal=-code))


class AttachedMachine:
    """The endpoint of a handler that runs elsewhere, out of reach; commands run on this machine."""

    has_own_disk = False
    controls_program = False

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        sock = self._listener.dup()
        sock.setblocking(False)
        sock.listen(_BACKLOG)  # an earlier user may have stopped it, to refuse connections
        return sock

    async def start(self, *, is_boot: bool) -> None: ...

    async def end_processes(self, number: int) -> None: ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def run(self, command: str, timeout_s: float) -> int | None:
        return await _run_shell_command(command, timeout_s, directory=Path.cwd(), environment=dict(os.environ))

    def list_pids(self) -> list[int]:
        return []

    def close(self) -> None: ...


async def _run_shell_command(
    command: str, timeout_s: float, *, directory: Path, environment: Mapping[str, str]
) -> int | None:
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        start_new_session=True,
        preexec_fn=_die_with_this_process,
    )
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        code = -1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return code if code >= 0 else None


def _watch_output(descriptor: int, on_output: OnOutput) -> None:
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            on_output(data)
        else:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, on_readable)


def _send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _die_with_this_process() -> None:
    syscalls.die_with_parent(signal.SIGKILL)
