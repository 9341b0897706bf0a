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
from dataclasses import replace
from typing import Any, NoReturn

from forewarn.machines.namespace_vm import network, syscalls
from forewarn.machines.namespace_vm.private_files import mount_private_files
from forewarn.machines.namespace_vm.vm_spec import NetworkMode, VmSpec

_MAX_MESSAGE_BYTES = 65536
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_NETWORK_SETTINGS = "/proc/sys/net"
_MACHINE_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/sys")
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
_ERRNO_STRUCT = struct.Struct("i")
_MAX_STOP_CHECKS = 200
_STOP_CHECK_S = 0.001
_NOT_RUNNING_STATES = frozenset("TtZX")  # stopped, traced, zombie, dead; see proc(5)


def run_init(control: socket.socket, spec: VmSpec) -> NoReturn:
    """Set up the VM and run as its first process until the supervisor closes `control`; never returns.

    Call it in the new namespaces, as pid 1. It first sends `{"ready": ADDRESS, "notes": MISSING_FEATURES}`, or
    `{"error": [ERRNO, MESSAGE]}`, and exits.
    """
    vm_init = None
    try:
        if spec.network_mode is not NetworkMode.JOINED:  # a joined network must be restored first
            syscalls.die_with_parent(signal.SIGKILL)
        wakeup = _prepare_signals()
        notes = _set_up_vm(spec)
        vm_init = VmInit(control, spec, network.set_up_network(spec.network_mode))
        vm_init.send({"ready": str(vm_init.network.address), "notes": notes})
        vm_init.run(wakeup)
    except OSError as error:
        control.send(_encode_error(error))
    finally:
        if vm_init is not None:
            vm_init.network.restore()
        os._exit(0)


class VmInit:
    """The init process of a VM: executes the supervisor's commands, and reports exits and stops.

    Commands are start, freeze, thaw, signal, continue, listen, run and kill. Events are `exited` (the program, with
    code or signal), `stopped` (the program, not by a freeze), `finished` (a command of run) and `empty` (no process is
    left).
    """

    def __init__(self, control: socket.socket, spec: VmSpec, net: network.VmNetwork) -> None:
        self.network = net
        self._control = control
        self._spec = spec
        self._program = 0
        self._side_commands: set[int] = set()  # pids of commands that run beside the program
        self._stopped_before: frozenset[int] | None = None  # stopped before the freeze; None: not frozen
        self._is_finished = False
        self._commands: dict[str, Callable[[Any], Any]] = {
            "start": self._start,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "signal": self._signal,
            "continue": self._continue,
            "run": self._run_command,
            "kill": self._kill_command,
        }

    def run(self, wakeup: socket.socket) -> None:
        """Handle commands, child exits and DHCP requests until the supervisor closes the control socket."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._handle_command)
            selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_child_signal(wakeup))
            if (dhcp_socket := self.network.dhcp_socket) is not None:
                selector.register(dhcp_socket, selectors.EVENT_READ, lambda: _answer_dhcp(dhcp_socket))
            while not self._is_finished:
                for key, _ in selector.select():
                    key.data()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send a message to the supervisor, with copies of these file descriptors. OSError if it is gone."""
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _handle_command(self) -> None:
        packet = self._control.recv(_MAX_MESSAGE_BYTES)
        if not packet:
            self._is_finished = True
            return
        command, argument = json.loads(packet)
        try:
            if command == "listen":
                self._listen()
            else:
                self.send({"done": self._commands[command](argument)})
        except OSError as error:
            self._control.send(_encode_error(error))

    def _listen(self) -> None:
        sockets = self.network.listen()
        try:
            addresses = [sock.getsockname() for sock in sockets]
            self.send({"done": addresses}, tuple(sock.fileno() for sock in sockets))
        finally:
            for sock in sockets:
                sock.close()

    def _start(self, changes: dict[str, str]) -> int:
        self._program = start_program(self._spec, changes)
        return self._program

    def _run_command(self, argv: list[str]) -> int:
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            pid = start_program(replace(self._spec, argv=tuple(argv), output=nothing, owns_terminal=False), {})
        finally:
            os.close(nothing)
        self._side_commands.add(pid)
        return pid

    def _kill_command(self, pid: int) -> None:
        if pid in self._side_commands:
            os.killpg(pid, signal.SIGKILL)

    def _freeze(self, _: None) -> None:
        if self._stopped_before is None:
            self._stopped_before = frozenset()  # from now on, stopped processes are not reported
            self._stopped_before = _stop_all()

    def _thaw(self, _: None) -> None:
        if self._stopped_before is not None:
            _continue_all(self._stopped_before)
            self._stopped_before = None

    def _signal(self, number: int) -> bool:
        _signal_all(number)
        _signal_all(signal.SIGCONT)
        self._stopped_before = None
        return not self._reap_children()

    def _continue(self, _: None) -> None:
        if self._program and self._stopped_before is None:
            os.killpg(self._program, signal.SIGCONT)

    def _on_child_signal(self, wakeup: socket.socket) -> None:
        wakeup.recv(_MAX_MESSAGE_BYTES)
        self._reap_children()

    def _reap_children(self) -> bool:
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
            elif pid in self._side_commands and not os.WIFSTOPPED(status):
                self._side_commands.discard(pid)
                self.send({"event": "finished", "pid": pid, **_decode_status(status)})

    def _report_program_status(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            if self._stopped_before is None:
                self.send({"event": "stopped"})
            return
        self._program = 0
        self.send({"event": "exited", **_decode_status(status)})


def _decode_status(status: int) -> dict[str, int | None]:
    return {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
    }


def _answer_dhcp(dhcp_socket: socket.socket) -> None:
    try:
        network.answer_dhcp_packet(dhcp_socket)
    except OSError:
        pass  # the client will retry


def _prepare_signals() -> socket.socket:
    """Use an own process group, ignore signals that would end init, and return a socket that signals wake."""
    os.setpgid(0, 0)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    wakeup, write_end = socket.socketpair()
    write_end.setblocking(False)
    signal.set_wakeup_fd(write_end.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup


def _set_up_vm(spec: VmSpec) -> list[str]:
    """Set up hostname, /proc, /sys and boot id; returns the names of features that this kernel refused."""
    syscalls.make_mounts_private()
    syscalls.set_hostname(spec.hostname)
    features: dict[str, Callable[[], None]] = {
        "a /proc of its own": lambda: syscalls.mount_virtual_filesystem("proc", "/proc"),
        "a /sys of its own": _mount_sysfs,
        "its boot id in /proc": lambda: syscalls.bind_mount(str(spec.boot_id_file), _BOOT_ID_FILE),
        "protection of the machine's settings": lambda: _protect_settings(spec.network_mode),
    }
    missing = [feature for feature, set_up in features.items() if not _succeeds(set_up)]
    if spec.files is not None:
        mount_private_files(spec.files)
    return missing


def _mount_sysfs() -> None:
    """Mount a /sys with the VM's network; the limits of control groups stay visible."""
    groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.mount_virtual_filesystem("sysfs", "/sys")
        syscalls.bind_mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup")
    finally:
        os.close(groups)


def _protect_settings(mode: NetworkMode) -> None:
    """Keep a program of root from changing settings of the whole machine by mistake: it could mount them again."""
    if mode is not NetworkMode.JOINED:
        syscalls.bind_mount(_NETWORK_SETTINGS, _NETWORK_SETTINGS)  # the VM's own: they stay writable
    for path in filter(os.path.exists, _MACHINE_SETTINGS):
        syscalls.make_read_only(path)


def _succeeds(set_up: Callable[[], None]) -> bool:
    try:
        set_up()
    except OSError:
        return False
    return True


def _encode_error(error: OSError) -> bytes:
    return json.dumps({"error": [error.errno, str(error.strerror)]}).encode()


def start_program(spec: VmSpec, changes: Mapping[str, str]) -> int:
    """Fork, execute the program in a process group of its own, and return its pid."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exec_program(spec, {**spec.environment, **changes}, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number = _ERRNO_STRUCT.unpack(failure)[0]
        raise OSError(number, os.strerror(number), spec.argv[0])
    return pid


def _exec_program(spec: VmSpec, environment: dict[str, str], write_end: int) -> NoReturn:
    """In the new process: give up everything of init, and execute. The pipe closes if that succeeds."""
    try:
        os.setpgid(0, 0)
        if spec.owns_terminal:
            os.tcsetpgrp(0, os.getpid())  # SIGTTOU is still ignored here, as in init
        if spec.output is not None:
            _redirect_output(spec.output)
        _reset_signals()
        os.execvpe(spec.argv[0], spec.argv, environment)
    except OSError as error:
        os.write(write_end, _ERRNO_STRUCT.pack(error.errno or 1))
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


def _signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def _stop_all() -> frozenset[int]:
    """Stop every process of the VM except init with SIGSTOP; returns the pids that were stopped before."""
    before = frozenset(pid for pid in _list_pids() if _thread_states(pid) == {"T"})
    _signal_all(signal.SIGSTOP)
    _wait_until_stopped()
    return before


def _continue_all(excluded: frozenset[int]) -> None:
    """Continue every process except init and the pids in `excluded`; all if /proc does not list them."""
    # Higher pids come first, so usually children before their parents, and no shell sees stopped jobs.
    try:
        pids = set(_list_pids()) if _is_own_proc_mounted() else None
    except OSError:  # /proc cannot be read: continue all, so that none stays stopped
        pids = None
    if pids is None:
        _signal_all(signal.SIGCONT)
        return
    for pid in sorted(pids - excluded, reverse=True):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def _list_pids() -> Iterator[int]:
    if _is_own_proc_mounted():
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1")


def _is_own_proc_mounted() -> bool:
    return os.readlink("/proc/self") == str(os.getpid())


def _thread_states(pid: int) -> set[str]:
    pids = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                pids.add(file.read().rpartition(")")[2].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return pids


def _wait_until_stopped() -> None:
    """Wait until all processes stopped: on other cores that takes a moment. One in disk wait runs nothing."""
    for _ in range(_MAX_STOP_CHECKS):
        if all(_thread_states(pid) <= _NOT_RUNNING_STATES for pid in _list_pids()):
            return
        time.sleep(_STOP_CHECK_S)
