"""The VM's init process: sets up the VM from inside, starts its program, and signals its processes.

When it or the supervisor ends, the kernel ends everything in the VM. It talks to the supervisor with one message per
packet: each command gets one reply, in order; anything else is sent as an event. `kill(-1)` reaches every other
process of the pid namespace in one step, so that none can escape by forking.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from forewarn.namespace_vm import network, syscalls
from forewarn.namespace_vm.vm_spec import NetworkMode, VmSpec

_MAX_MESSAGE_BYTES = 65536
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_IGNORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
)


def run_init(control: socket.socket, plan: VmSpec) -> NoReturn:
    """Be the first process until the keeper goes."""
    inside = None
    try:
        if plan.network_mode is not NetworkMode.JOINED:  # that one has to be left as it was first
            syscalls.die_with_parent(signal.SIGKILL)
        wakeup = _prepare_signals()
        notes = _set_up_vm(plan)
        inside = VmInit(control, plan, network.set_up_network(plan.network_mode))
        inside.send({"ready": str(inside.network.address), "notes": notes})
        inside.run(wakeup)
    except OSError as error:
        control.send(_encode_error(error))
    finally:
        if inside is not None:
            inside.network.restore()
        os._exit(0)


class VmInit:
    def __init__(self, control: socket.socket, plan: VmSpec, net: network.VmNetwork) -> None:
        self.network = net
        self._control = control
        self._spec = plan
        self._program = 0
        self._stopped_before: frozenset[int] | None = None  # None: nothing is frozen
        self._is_finished = False
        self._commands: dict[str, Callable[[Any], Any]] = {
            "start": self._start,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "signal": self._signal,
            "continue": self._continue,
        }

    def run(self, wakeup: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._handle_command)
            selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_child_signal(wakeup))
            if (responder := self.network.dhcp_socket) is not None:
                selector.register(responder, selectors.EVENT_READ, lambda: _answer_dhcp(responder))
            while not self._is_finished:
                for key, _ in selector.select():
                    key.data()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _handle_command(self) -> None:
        packet = self._control.recv(_MAX_MESSAGE_BYTES)
        if not packet:
            self._is_finished = True
            return
        word, argument = json.loads(packet)
        try:
            if word == "listen":
                self._listen()
            else:
                self.send({"done": self._commands[word](argument)})
        except OSError as error:
            self._control.send(_encode_error(error))

    def _listen(self) -> None:
        with self.network.listen() as sock:
            self.send({"done": [str(self.network.address), network.METADATA_PORT]}, (sock.fileno(),))

    def _start(self, changes: dict[str, str]) -> int:
        self._program = start_program(self._spec, changes)
        return self._program

    def _freeze(self, _: None) -> None:
        if self._stopped_before is None:
            self._stopped_before = frozenset()  # from here on a stop is no news
            self._stopped_before = stop_all()

    def _thaw(self, _: None) -> None:
        if self._stopped_before is not None:
            continue_all(self._stopped_before)
            self._stopped_before = None

    def _signal(self, number: int) -> bool:
        """Everybody gets it, also those that are stopped; whether there was anybody."""
        signal_all(number)
        signal_all(signal.SIGCONT)
        self._stopped_before = None
        return not self._reap_children()

    def _continue(self, _: None) -> None:
        if self._program and self._stopped_before is None:
            os.killpg(self._program, signal.SIGCONT)

    def _on_child_signal(self, wakeup: socket.socket) -> None:
        wakeup.recv(_MAX_MESSAGE_BYTES)
        self._reap_children()

    def _reap_children(self) -> bool:
        """Bury the dead, and tell of the program and of the last one; whether nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.send({"event": "empty"})
                return True
            if pid == 0:
                return False
            if pid == self._program:
                self._report_program_status(status)

    def _report_program_status(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            if self._stopped_before is None:
                self.send({"event": "stopped"})
            return
        self._program = 0
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        self.send({"event": "exited", "code": code, "signal": ended_by})


def _answer_dhcp(responder: socket.socket) -> None:
    try:
        network.answer_dhcp_packet(responder)
    except OSError:
        pass  # the client asks again


def _prepare_signals() -> socket.socket:
    """A process group of our own, no signal that could end us, and a socket that tells of children."""
    os.setpgid(0, 0)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    wakeup, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup


def _set_up_vm(plan: VmSpec) -> list[str]:
    """The VM's own name, processes, devices and boot id; what this kernel would not give, in words."""
    syscalls.make_mounts_private()
    syscalls.set_hostname(plan.hostname)
    wishes: dict[str, Callable[[], None]] = {
        "a /proc of its own": lambda: syscalls.mount_virtual_filesystem("proc", "/proc"),
        "a /sys of its own": _mount_sysfs,
        "its boot id in /proc": lambda: syscalls.bind_mount(str(plan.boot_id_file), _BOOT_ID_FILE),
    }
    return [what for what, fulfil in wishes.items() if not _succeeds(fulfil)]


def _mount_sysfs() -> None:
    """/sys/class/net shows the network of whoever mounted it; limits of control groups are to stay visible."""
    groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.mount_virtual_filesystem("sysfs", "/sys")
        syscalls.bind_mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup")
    finally:
        os.close(groups)


def _succeeds(fulfil: Callable[[], None]) -> bool:
    try:
        fulfil()
    except OSError:
        return False
    return True


def _encode_error(error: OSError) -> bytes:
    return json.dumps({"error": [error.errno, str(error.strerror)]}).encode()


_ERRNO_STRUCT = struct.Struct("i")


def start_program(plan: VmSpec, changes: Mapping[str, str]) -> int:
    """The pid of the program once it really runs; OSError where it cannot be executed."""
    report, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exec_program(plan, {**plan.environment, **changes}, tell)
    os.close(tell)
    with os.fdopen(report, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number = _ERRNO_STRUCT.unpack(failure)[0]
        raise OSError(number, os.strerror(number), plan.argv[0])
    return pid


def _exec_program(plan: VmSpec, environment: dict[str, str], tell: int) -> NoReturn:
    """In the new process: give up everything of ours, and execute. The pipe closes itself when that works."""
    try:
        os.setpgid(0, 0)
        if plan.owns_terminal:
            os.tcsetpgrp(0, os.getpid())  # the first process ignores SIGTTOU, and so do we still
        if plan.output is not None:
            _redirect_output(plan.output)
        _reset_signals()
        os.execvpe(plan.argv[0], plan.argv, environment)
    except OSError as error:
        os.write(tell, _ERRNO_STRUCT.pack(error.errno or 1))
    finally:
        os._exit(127)


def _redirect_output(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_MAX_STOP_CHECKS = 200
_STOP_CHECK_S = 0.001
_NOT_RUNNING_STATES = frozenset("TtZX")  # stopped, traced, dead


def signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def stop_all() -> frozenset[int]:
    """Stop everything; those that somebody had stopped before."""
    before = frozenset(pid for pid in list_pids() if thread_states(pid) == {"T"})
    signal_all(signal.SIGSTOP)
    _wait_until_stopped()
    return before


def continue_all(but: frozenset[int]) -> None:
    """Children before their parents, so that no shell sees its jobs stopped."""
    try:
        found = set(list_pids()) if is_own_proc_mounted() else None
    except OSError:  # /proc cannot be read now, and nobody may stay stopped for that
        found = None
    if found is None:
        signal_all(signal.SIGCONT)
        return
    for pid in sorted(found - but, reverse=True):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def list_pids() -> Iterator[int]:
    """Every process but the first; none where /proc shows those of another namespace."""
    if is_own_proc_mounted():
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1")


def is_own_proc_mounted() -> bool:
    return os.readlink("/proc/self") == str(os.getpid())


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, as letters; empty when it has gone."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                found.add(file.read().rpartition(")")[2].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def _wait_until_stopped() -> None:
    """A process on another core stops a moment later; one that waits for a disk runs nothing meanwhile."""
    for _ in range(_MAX_STOP_CHECKS):
        if all(thread_states(pid) <= _NOT_RUNNING_STATES for pid in list_pids()):
            return
        time.sleep(_STOP_CHECK_S)
