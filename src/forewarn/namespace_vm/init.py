"""The VM's first process. It sets the VM up from inside, starts its program, and does to its processes what the keeper
says; when it ends, or the keeper does, the kernel ends everything in the VM.

One message per packet on a socket to the keeper. Each question gets one answer, in order; what happens by itself is
told as an event.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from forewarn.vm import kernel, network, process, program
from forewarn.vm.blueprint import Blueprint, Net

_MOST_BYTES = 65536
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
)


def serve(control: socket.socket, plan: Blueprint) -> NoReturn:
    """Be the first process until the keeper goes."""
    inside = None
    try:
        if plan.net is not Net.JOINED:  # that one has to be left as it was first
            kernel.die_with_parent(signal.SIGKILL)
        wakeup = _prepare_signals()
        notes = _set_up(plan)
        inside = Inside(control, plan, network.network_for(plan.net))
        inside.tell({"ready": str(inside.network.address), "notes": notes})
        inside.run(wakeup)
    except OSError as error:
        control.send(_failure(error))
    finally:
        if inside is not None:
            inside.network.undo()
        os._exit(0)


class Inside:
    def __init__(self, control: socket.socket, plan: Blueprint, net: network.Network) -> None:
        self.network = net
        self._control = control
        self._plan = plan
        self._program = 0
        self._stopped_before: frozenset[int] | None = None  # None: nothing is frozen
        self._is_over = False
        self._commands: dict[str, Callable[[Any], Any]] = {
            "start": self._start,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "signal": self._signal,
            "continue": self._continue,
        }

    def run(self, wakeup: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._obey)
            selector.register(wakeup, selectors.EVENT_READ, lambda: self._reap(wakeup))
            if (responder := self.network.responder) is not None:
                selector.register(responder, selectors.EVENT_READ, lambda: _answer(responder))
            while not self._is_over:
                for key, _ in selector.select():
                    key.data()

    def tell(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _obey(self) -> None:
        packet = self._control.recv(_MOST_BYTES)
        if not packet:
            self._is_over = True
            return
        word, argument = json.loads(packet)
        try:
            if word == "listen":
                self._listen()
            else:
                self.tell({"done": self._commands[word](argument)})
        except OSError as error:
            self._control.send(_failure(error))

    def _listen(self) -> None:
        with self.network.listen() as sock:
            self.tell({"done": [str(self.network.address), network.PORT]}, (sock.fileno(),))

    def _start(self, changes: dict[str, str]) -> int:
        self._program = program.start(self._plan, changes)
        return self._program

    def _freeze(self, _: None) -> None:
        if self._stopped_before is None:
            self._stopped_before = frozenset()  # from here on a stop is no news
            self._stopped_before = process.stop_all()

    def _thaw(self, _: None) -> None:
        if self._stopped_before is not None:
            process.continue_all(self._stopped_before)
            self._stopped_before = None

    def _signal(self, number: int) -> bool:
        """Everybody gets it, also those that are stopped; whether there was anybody."""
        process.signal_all(number)
        process.signal_all(signal.SIGCONT)
        self._stopped_before = None
        return not self._reap_children()

    def _continue(self, _: None) -> None:
        if self._program and self._stopped_before is None:
            os.killpg(self._program, signal.SIGCONT)

    def _reap(self, wakeup: socket.socket) -> None:
        wakeup.recv(_MOST_BYTES)
        self._reap_children()

    def _reap_children(self) -> bool:
        """Bury the dead, and tell of the program and of the last one; whether nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.tell({"event": "empty"})
                return True
            if pid == 0:
                return False
            if pid == self._program:
                self._tell_of_program(status)

    def _tell_of_program(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            if self._stopped_before is None:
                self.tell({"event": "stopped"})
            return
        self._program = 0
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        self.tell({"event": "exited", "code": code, "signal": ended_by})


def _answer(responder: socket.socket) -> None:
    try:
        network.answer_discovery(responder)
    except OSError:
        pass  # the client asks again


def _prepare_signals() -> socket.socket:
    """A process group of our own, no signal that could end us, and a socket that tells of children."""
    os.setpgid(0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wakeup, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup


def _set_up(plan: Blueprint) -> list[str]:
    """The VM's own name, processes, devices and boot id; what this kernel would not give, in words."""
    kernel.keep_mounts_private()
    kernel.set_hostname(plan.hostname)
    wishes: dict[str, Callable[[], None]] = {
        "a /proc of its own": lambda: kernel.mount("proc", "/proc"),
        "a /sys of its own": _mount_devices,
        "its boot id in /proc": lambda: kernel.bind(str(plan.boot_id_file), _BOOT_ID),
    }
    return [what for what, fulfil in wishes.items() if not _can(fulfil)]


def _mount_devices() -> None:
    """/sys/class/net shows the network of whoever mounted it; limits of control groups are to stay visible."""
    groups = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.mount("sysfs", "/sys")
        kernel.bind(f"/proc/self/fd/{groups}", "/sys/fs/cgroup")
    finally:
        os.close(groups)


def _can(fulfil: Callable[[], None]) -> bool:
    try:
        fulfil()
    except OSError:
        return False
    return True


def _failure(error: OSError) -> bytes:
    return json.dumps({"error": [error.errno, str(error.strerror)]}).encode()
