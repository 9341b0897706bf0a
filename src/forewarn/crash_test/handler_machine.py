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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from forewarn.machines.namespace_vm import syscalls
from forewarn.machines.namespace_vm.machine import Machine, boot_id_file
from forewarn.machines.namespace_vm.messages import VmDescription, VmProgramExit
from forewarn.machines.namespace_vm.namespaces import InitEvent, VmNamespaces
from forewarn.machines.namespace_vm.private_files import TMP, VmFiles, empty_private_tmp
from forewarn.machines.namespace_vm.vm_spec import VmSpec

# The files of a handler on its VM: a copy of the user's directory, and what it sees of the machine.

_DISK_BYTES = 32 * 1024 * 1024
_MAX_COPIED_BYTES = 256 * 1024  # of one file of the user's directory; larger ones become links
_MAX_COPIED_TOTAL = 8 * 1024 * 1024
_MAX_ENTRIES = 5000  # of the user's directory
_PATH_VARIABLES = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "NODE_PATH", "GOPATH", "HOME")
_PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")  # the metadata endpoint is never behind one


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """Which handler program runs on which VM, and where its files are.

    The handler starts with copies of the files of `user_directory`. Only directories, and files over 256 KiB or beyond
    8 MiB in all, are links to the user's own, which the handler can change.
    """

    vm: str  # the VM's name
    hostname: str  # of the VM; a plain child has that of this machine
    command: tuple[str, ...]  # the handler and its arguments
    directory: Path  # an existing, empty directory for the files of this VM; its creator removes it
    user_directory: Path  # where the user started the crash test: the handler starts with its files
    environment: Mapping[str, str]  # all that the handler gets, beside the variables of its machine
    endpoint_env: str = ""  # a plain child needs it: the variable that gets the endpoint's URL; "": a VM of namespaces


def copy_user_directory(source: Path, target: Path) -> None:
    """Make the files of `source` visible in the directory `target`: small ones as copies, others as links."""
    left = _MAX_COPIED_TOTAL
    for entry in sorted(source.iterdir())[:_MAX_ENTRIES]:
        with suppress(OSError):
            if entry.is_file() and not entry.is_symlink() and entry.stat().st_size <= min(left, _MAX_COPIED_BYTES):
                left -= entry.stat().st_size
                shutil.copy2(entry, target / entry.name)
            elif entry.is_file() or entry.is_dir():
                (target / entry.name).symlink_to(entry.resolve())


def prepare_vm_files(spec: HandlerSpec) -> VmFiles:
    """Create the directories for the private files of a VM of namespaces, and return what to mount in it."""
    names = ("disk", "contents", "tmp", "ephemeral")
    disk, contents, tmp, _ = directories = [spec.directory / name for name in names]
    for directory in directories:
        directory.mkdir()
    tmp.chmod(0o1777)
    copy_user_directory(spec.user_directory, contents)
    return VmFiles(
        disk=disk,
        disk_bytes=_DISK_BYTES,
        disk_contents=contents,
        tmp=tmp,
        shared_tmp_entries=_shared_tmp_entries(spec),
    )


def _shared_tmp_entries(spec: HandlerSpec) -> tuple[str, ...]:
    variables = (spec.environment.get(name, "").split(os.pathsep) for name in _PATH_VARIABLES)
    texts = [text for values in variables for text in values if text]
    paths = [spec.directory, spec.user_directory, *map(Path, texts)]
    paths += [spec.user_directory / argument for argument in spec.command]
    inside = (Path(os.path.abspath(path)) for path in paths)
    names = {path.relative_to(TMP).parts[0] for path in inside if TMP in path.parents}
    return tuple(sorted(name for name in names if os.path.lexists(TMP / name)))


def vm_environment(spec: HandlerSpec, files: VmFiles) -> dict[str, str]:
    """Return the environment of a handler in a VM of namespaces: that of `spec`, with its PWD and TMPDIR."""
    kept = {name: value for name, value in spec.environment.items() if name not in _PROXY_VARIABLES}
    return {**kept, "PWD": str(files.disk), "TMPDIR": str(TMP)}


def resolve_command(spec: HandlerSpec) -> tuple[str, ...]:
    """Return the command of `spec`, the program first, for another working directory than the user's."""
    program, *arguments = spec.command
    if "/" in program:
        program = os.path.abspath(spec.user_directory / program)
    return (program, *(_resolve_argument(argument, spec.user_directory) for argument in arguments))


def _resolve_argument(argument: str, user_directory: Path) -> str:
    if ".." in argument.split("/") and os.path.exists(user_directory / argument):
        return os.path.abspath(user_directory / argument)
    return argument


# Reads from /proc which processes a program has, and what they use. Linux only.

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ZOMBIE = "Z"
_MAX_SHARE_RUNNING = 0.25  # of the time that a thread wants a CPU: one that gets more is not starved


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What some processes use together, at one moment; zombies do not count."""

    cpu_s: float  # CPU time since their start, with that of children that they have waited for
    memory_bytes: int  # resident memory; pages that processes share count for each of them
    processes: int  # how many


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    """What the kernel has counted for one thread since the thread's start."""

    id: int  # the thread id of the kernel
    ran_ns: int  # nanoseconds on a CPU
    waited_ns: int  # nanoseconds in which it was ready to run, and had no CPU


class StarvationMeter:
    """Measures how long a program could not go on because other programs had taken the CPUs."""

    # The kernel counts for each thread how long it ran, and how long it was ready to run and had to wait. Waits of
    # processes that start and end between two measurements are not seen.

    def __init__(self, read_threads: Callable[[int], Iterable[ThreadTimes]] | None = None) -> None:
        self._read_threads = read_threads or _read_threads
        self._measured: dict[int, ThreadTimes] = {}  # by thread id

    def measure(self, pids: Iterable[int]) -> float:
        """Return how many seconds the thread that waited longest has waited for a CPU since the last call."""
        # Counts only threads that ran for less than a quarter of the time in which they could run: one that computes
        # without a pause always waits, but goes on. Waits for the program's own threads do not count: the time that all
        # of them ran is subtracted.
        before, self._measured = self._measured, {}
        longest = total = 0
        for pid in pids:
            for thread in self._read_threads(pid):
                self._measured[thread.id] = thread
                earlier = before.get(thread.id, ThreadTimes(id=thread.id, ran_ns=0, waited_ns=0))
                ran = max(0, thread.ran_ns - earlier.ran_ns)
                waited = max(0, thread.waited_ns - earlier.waited_ns)
                total += ran
                if ran < _MAX_SHARE_RUNNING * (ran + waited):
                    longest = max(longest, waited)
        return max(0, longest - total) / 1e9


def list_descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, without itself, parents before children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def list_pids_with_variable(name: str, value: str) -> list[int]:
    """Return the pids of all other processes that were started with this environment variable and value."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                variables = (_PROC / entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or belongs to another user
            if wanted in variables:
                found.append(int(entry))
    return found


def is_running(pid: int) -> bool:
    """Return whether this process exists and is no zombie."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] != _ZOMBIE


def read_usage(pids: Iterable[int]) -> ProcessUsage:
    """Return the CPU time, memory and number of these processes together, without those that have ended."""
    ticks = pages = processes = 0
    for pid in pids:
        fields = _stat_fields(pid)
        if fields is None or fields[0] == _ZOMBIE:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime; see proc(5)
        pages += int(fields[21])
        processes += 1
    return ProcessUsage(cpu_s=ticks / _TICKS_PER_S, memory_bytes=pages * _PAGE_BYTES, processes=processes)


def _read_threads(pid: int) -> Iterator[ThreadTimes]:
    """Yield the threads of a process, without those of low priority (with a positive nice value)."""
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):
            ran, waited, _ = (_PROC / str(pid) / "task" / thread / "schedstat").read_text().split()
            fields = _stat_fields(int(thread))
            if fields is not None and int(fields[16]) <= 0:
                yield ThreadTimes(id=int(thread), ran_ns=int(ran), waited_ns=int(waited))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return  # it has ended, or this kernel does not count


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):
            text = (_PROC / str(pid) / "task" / thread / "children").read_text()
            children += map(int, text.split())
    except FileNotFoundError:
        if (_PROC / str(pid)).exists() and not (_PROC / "self/task" / str(os.getpid()) / "children").exists():
            return _children_by_parent(pid)  # this kernel has no lists of children
    except ProcessLookupError:
        pass
    return children


def _children_by_parent(pid: int) -> list[int]:
    pids = (int(entry) for entry in os.listdir(_PROC) if entry.isdecimal())
    stats = ((other, _stat_fields(other)) for other in pids)
    return [other for other, fields in stats if fields is not None and fields[1] == str(pid)]


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


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
