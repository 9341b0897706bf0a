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
from forewarn.namespace_vm import syscalls
from forewarn.namespace_vm.machine import Machine, boot_id_file
from forewarn.namespace_vm.messages import VmDescription, VmProgramExit
from forewarn.namespace_vm.namespaces import InitEvent, VmNamespaces
from forewarn.namespace_vm.private_files import empty_private_tmp
from forewarn.namespace_vm.vm_spec import VmSpec

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
    implementations are a VM of namespaces, a plain child of this process, and a handler that runs elsewhere. The
    methods of a VM of namespaces raise OSError if the VM is gone.
    """

    has_own_disk: bool  # whether its disk can be filled without harm to others
    controls_program: bool  # False: the program runs elsewhere, and all methods that start or end it do nothing

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        """Begin to watch, and return the listening socket of the metadata endpoint; starts nothing.

        `on_output` gets what the program writes (stdout and stderr, in pieces), `on_exit` how it ended, each time, for
        any reason; both are called on the event loop, but neither for a handler that runs elsewhere. The socket is
        non-blocking; the caller closes it. Call it once, before `start`. Raises OSError if it cannot listen.
        """

    async def start(self, *, is_boot: bool) -> None:
        """Start the program, which must not run; does not wait for its end. OSError if it cannot be executed.

        A boot (`is_boot`) empties /tmp (of a plain child: TMPDIR), and gives a VM of namespaces a new boot id; other
        files stay. Does nothing if the program runs elsewhere.
        """

    async def end_processes(self, number: int) -> None:
        """Send signal `number` to all processes of the handler, and return when none is left.

        Frozen processes get it too. Kills with SIGKILL those that are left after two seconds (real time); a plain child
        waits at most ten seconds for that. Does nothing if the program runs elsewhere.
        """

    async def freeze(self) -> None:
        """Stop all processes of the handler (SIGSTOP), until `thaw`; does nothing if it runs elsewhere."""

    async def thaw(self) -> None:
        """Continue all processes of the handler that `freeze` stopped; does nothing if it runs elsewhere."""

    async def run(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command (/bin/sh) beside the program, without output; return its exit status.

        Only a VM of namespaces runs it inside the VM; a plain child runs it on this machine, in the handler's
        directory. If the program runs elsewhere, the command runs on this machine, in the current directory. None if a
        signal ended the command or it took longer than `timeout_s` (real time), after which it is killed. Raises
        OSError if a VM of namespaces is gone.
        """

    def list_pids(self) -> list[int]:
        """Return the pids of all processes of the handler, as this process sees them.

        A VM of namespaces counts commands of `run` too; of a plain child, processes that have left its tree (daemons)
        are missing. The pids are in no particular order; [] if the handler does not run, or runs elsewhere.
        """

    def close(self) -> None:
        """End every process of the handler and release everything; may be called twice.

        Call it after the event loop has ended. Does not wait for the end of a plain child. A handler that runs
        elsewhere goes on.
        """


class NamespaceMachine:
    """A VM of namespaces, whose metadata endpoint is 169.254.169.254.

    Disk, /tmp, hostname and boot id are its own. The constructor creates the VM and does not start the program; it
    raises Refused if this machine does not allow that, OSError if the files cannot be made (see `prepare_vm_files`).
    Create it before the event loop runs, because it forks. All of it ends with this process. Methods raise OSError if
    the VM is gone. `spec` describes the handler's program, VM and directories.
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
        """Watch init and the output, and return the listening socket of 169.254.169.254:80 in the VM.

        `on_output` gets what the program writes, in pieces, `on_exit` how it ended, each time; both are called on the
        event loop. The socket is non-blocking; the caller closes it. Starts nothing. Call it once, before `start`.
        Raises OSError if the VM is gone.
        """
        self._namespaces.watch_events(lambda event: self._on_init_event(event, on_exit))
        _watch_output(self._output, on_output)
        reply = await self._namespaces.call("listen")
        sock = socket.socket(fileno=reply.descriptors[0])
        sock.setblocking(False)
        return sock

    async def start(self, *, is_boot: bool) -> None:
        """Start the program in the VM; OSError if it cannot be executed, or the VM is gone.

        Returns once the program is executed. A boot (`is_boot`) gives a new boot id and an empty /tmp; the first one
        keeps the boot id with which the VM was created.
        """
        if is_boot and not self._is_first_boot:
            empty_private_tmp(self._files)
        self._is_first_boot = False
        await self._machine.start(is_boot=is_boot)

    async def end_processes(self, number: int) -> None:
        """Send signal `number` to all processes, SIGKILL after two seconds, and return when none is left.

        Commands of `run` end too. The VM itself stays. Raises OSError if the VM is gone.
        """
        await self._machine.stop(number)

    async def freeze(self) -> None:
        """Stop every process of the VM, commands of `run` included, until `thaw`. OSError if the VM is gone."""
        await self._namespaces.call("freeze")

    async def thaw(self) -> None:
        """Continue every process of the VM that `freeze` stopped. Raises OSError if the VM is gone."""
        await self._namespaces.call("thaw")

    async def run(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command inside the VM, in the handler's directory; return its exit status.

        The output is discarded. None if a signal ended the command or it took longer than `timeout_s` (real time),
        after which it is killed. Raises OSError if the VM is gone.
        """
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
        """Return the pids, as this process sees them, of all processes of the VM except for init.

        Parents come before children; [] if there is none.
        """
        return list_descendants(self._namespaces.pid)

    def close(self) -> None:
        """End the VM with all its processes; may be called twice. Call it after the event loop has ended."""
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

    It has the network, the files and the hostname of this machine. All processes that the handler started are found by
    an environment variable that they inherit, and ended with it. The constructor makes the directories `disk` (with the
    user's files: see `copy_user_directory`) and `tmp` in `spec.directory`, where they must not exist; it starts
    nothing. Call `open` before `start`. `spec` describes the handler's program, environment and directories; its
    `endpoint_env`, not "", names the variable.
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
        """Watch the output, and return a listening socket on a free port of 127.0.0.1.

        The program gets the socket's URL when it starts, and also FOREWARN_VM, PWD, TMPDIR and no_proxy; so call this
        first. `on_output` gets what the program writes, in pieces, `on_exit` how it ended, each time; both are called
        on the event loop. The socket is non-blocking; the caller closes it. Starts nothing.
        """
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
        """Start the program in its own session and directory; a boot (`is_boot`) empties TMPDIR first.

        Await `open` first: it makes the environment. The program must not be running. Returns once it is executed. The
        program dies with this process. Raises OSError if it cannot be executed.
        """
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
        """Send signal `number` to all processes, SIGKILL after two seconds, and return when none is left.

        Processes that the handler started and that have left its tree end too, and frozen ones are continued. After
        SIGKILL it waits at most ten seconds for them, but without a limit for the program.
        """
        if await self._signal_until_gone(number, STOP_GRACE_S):
            await self._signal_until_gone(signal.SIGKILL, _MAX_END_S)
        if self._exit_task is not None:
            await self._exit_task

    async def freeze(self) -> None:
        """Stop all processes of the handler (SIGSTOP), until `thaw`."""
        _send_signal(self._list_all_pids(), signal.SIGSTOP)

    async def thaw(self) -> None:
        """Continue all processes of the handler (SIGCONT)."""
        _send_signal(self._list_all_pids(), signal.SIGCONT)

    async def run(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command in the handler's directory, with its environment; return its exit status.

        The output is discarded. None if a signal ended the command or it took longer than `timeout_s` (real time). At
        the end, processes that the command left running are killed.
        """
        environment = {name: value for name, value in self._environment.items() if name != _MARK}
        return await _run_shell_command(command, timeout_s, directory=self._disk, environment=environment)

    def list_pids(self) -> list[int]:
        """Return the pids of the program and its descendants; [] if the program is not running.

        Processes that have left the program's tree, as daemons do, are not found.
        """
        if self._program is None or self._program.returncode is not None:
            return []
        return [self._program.pid, *list_descendants(self._program.pid)]

    def close(self) -> None:
        """Kill all processes of the handler, and close the pipe of its output; does not wait for their end.

        Call it after the event loop has ended, because that still watches the pipe; the end of the program is not
        reported then. May be called twice.
        """
        if self._is_open:
            self._is_open = False
            _send_signal(self._list_all_pids(), signal.SIGKILL)
            os.close(self._output)
            os.close(self._write_end)

    def _list_all_pids(self) -> list[int]:
        return sorted({*self.list_pids(), *list_pids_with_variable(_MARK, self._mark)})

    async def _signal_until_gone(self, number: int, within_s: float) -> bool:
        """Signal all processes and wait until they have ended; returns whether some are left after this time."""
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
    """The endpoint of a handler that runs elsewhere already, whose processes are out of reach.

    The handler calls `listener`, which the caller closes. Commands of `run` run on this machine, in the current
    directory.
    """

    has_own_disk = False
    controls_program = False

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    async def open(self, on_output: OnOutput, on_exit: OnExit) -> socket.socket:
        """Return a duplicate of the listening socket, non-blocking, which the caller closes.

        The socket listens again if an earlier user had stopped that. `on_output` and `on_exit` are never called.
        """
        sock = self._listener.dup()
        sock.setblocking(False)
        sock.listen(_BACKLOG)  # an earlier user may have stopped it, to refuse connections
        return sock

    async def start(self, *, is_boot: bool) -> None:
        """Do nothing, also for a boot: the program runs elsewhere."""

    async def end_processes(self, number: int) -> None:
        """Do nothing: the program runs elsewhere, and signal `number` is not sent."""

    async def freeze(self) -> None:
        """Do nothing: the program runs elsewhere."""

    async def thaw(self) -> None:
        """Do nothing: the program runs elsewhere."""

    async def run(self, command: str, timeout_s: float) -> int | None:
        """Run a shell command on this machine, in the current directory, and return its exit status.

        The command does not run where the handler runs, which is out of reach. Its output is discarded. None if a
        signal ended it or it took longer than `timeout_s` (real time). At the end, processes that it left running are
        killed.
        """
        return await _run_shell_command(command, timeout_s, directory=Path.cwd(), environment=dict(os.environ))

    def list_pids(self) -> list[int]:
        """Return []: the handler's processes are out of reach."""
        return []

    def close(self) -> None:
        """Do nothing: the caller closes the listening socket, and the handler goes on elsewhere."""


async def _run_shell_command(
    command: str, timeout_s: float, *, directory: Path, environment: Mapping[str, str]
) -> int | None:
    """Run a shell command without output and return its exit status; None if it was ended or took longer."""
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
