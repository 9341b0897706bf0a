"""Creates the namespaces of a VM and holds them from outside.

They end when `VmNamespaces` is closed or the process that holds it ends.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from forewarn.errors import Refused
from forewarn.machines.namespace_vm import init, syscalls
from forewarn.machines.namespace_vm.vm_spec import NetworkMode, VmSpec

InitEvent = dict[str, Any]  # has a key `event`: empty, exited, finished, stopped or gone
_MAX_MESSAGE_BYTES = 65536
_SETUP_TIMEOUT_S = 30.0
_PRIVATE_NAMESPACES = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWPID


@dataclass(frozen=True, slots=True)
class InitReply:
    """The reply of init to a command, with file descriptors (of `listen`) that the caller must close."""

    value: Any  # decoded JSON, depends on the command
    descriptors: list[int] = field(default_factory=list)  # [] unless the command was `listen`


class VmNamespaces:
    """The namespaces of one VM and its init process, which holds them. Create it outside of an event loop.

    Creating it forks init, but does not yet start the program. This process adopts orphaned descendants from then on.
    The VM ends with `close` or with this process. `missing_features` describes what this kernel refused and the VM runs
    without.
    """

    def __init__(self, spec: VmSpec) -> None:
        self._control, init_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_SETUP_TIMEOUT_S)
        self._pending_replies: deque[asyncio.Future[InitReply]] = deque()
        self._pid = 0
        self.missing_features: list[str] = []  # descriptions of features that this kernel refused
        # In a joined network init is not killed, because it must restore the network first.
        self._kill_on_close = spec.network_mode is not NetworkMode.JOINED
        syscalls.become_subreaper()
        try:
            self._create(spec, init_socket)
        except OSError as error:
            self.close()
            raise _creation_error(error, spec) from error

    @property
    def pid(self) -> int:
        """The pid of the VM's init process, in the pid namespace of this process; 0 after `close`."""
        return self._pid

    def watch_events(self, on_event: Callable[[InitEvent], None]) -> None:
        """Receive from init on the running event loop: replies for `call`, and events for `on_event`."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive, on_event)

    async def call(self, command: str, argument: Any = None) -> InitReply:
        """Send a command to the VM's init process and wait for its reply, however long that takes.

        Without an earlier `watch_events` it never returns; an unknown command ends the VM.
        """
        future: asyncio.Future[InitReply] = asyncio.get_running_loop().create_future()
        self._control.send(json.dumps([command, argument]).encode())
        self._pending_replies.append(future)
        return await future

    def close(self) -> None:
        """End every process in the VM and wait for its init process; may be called twice."""
        self._control.close()
        if self._pid:
            if self._kill_on_close:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _create(self, spec: VmSpec, init_socket: socket.socket) -> None:
        helper_pid = os.fork()
        if helper_pid == 0:
            _start_init(init_socket, spec)
        init_socket.close()
        try:
            if self._receive_setup_message()["unshared"]:
                _write_id_maps(helper_pid)
            self._control.send(b"unshared")
            self._pid = self._receive_setup_message()["first"]
        except OSError:
            self._control.close()  # the helper process then ends
            raise
        finally:
            os.waitpid(helper_pid, 0)  # init is now a child of this process (subreaper)
        self._control.send(b"orphaned")
        self.missing_features = self._receive_setup_message()["notes"]

    def _receive_setup_message(self) -> dict[str, Any]:
        packet = self._control.recv(_MAX_MESSAGE_BYTES)
        if not packet:
            raise OSError(0, "the VM's init process ended unexpectedly")
        message: dict[str, Any] = json.loads(packet)
        if "error" in message:
            raise OSError(*message["error"])
        return message

    def _receive(self, on_event: Callable[[InitEvent], None]) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, 4)
        if not packet:
            asyncio.get_running_loop().remove_reader(self._control)
            while self._pending_replies:
                self._pending_replies.popleft().set_exception(ConnectionResetError(errno.ECONNRESET, "the VM is gone"))
            on_event({"event": "gone"})
            return
        message = json.loads(packet)
        if "event" in message:
            on_event(message)
        elif "error" in message:
            self._pending_replies.popleft().set_exception(OSError(*message["error"]))
        else:
            self._pending_replies.popleft().set_result(InitReply(message["done"], descriptors))


def _start_init(control: socket.socket, spec: VmSpec) -> NoReturn:
    try:
        _close_other_descriptors({0, 1, 2, control.fileno(), spec.output})
        _enter_namespaces(spec)
        control.send(json.dumps({"unshared": spec.joined_netns is None}).encode())
        if not control.recv(_MAX_MESSAGE_BYTES):
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            control.recv(_MAX_MESSAGE_BYTES)
            init.run_init(control, spec)
        control.send(json.dumps({"first": pid}).encode())
    except OSError as error:
        control.send(json.dumps({"error": [error.errno, error.strerror]}).encode())
    finally:
        os._exit(0)


def _enter_namespaces(spec: VmSpec) -> None:
    if spec.joined_netns is None:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET | _PRIVATE_NAMESPACES)
        return
    with open(spec.joined_netns, "rb") as namespace:
        owner = syscalls.owning_user_namespace(namespace.fileno())
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
            syscalls.enter_namespace(owner)
        os.close(owner)
        syscalls.enter_namespace(namespace.fileno())
    syscalls.unshare(_PRIVATE_NAMESPACES)


def _close_other_descriptors(excepted: set[int | None]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in excepted:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


def _write_id_maps(pid: int) -> None:
    """Map user ids to themselves: all of them for root, otherwise only the caller's."""
    proc = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            (proc / name).write_text(_identity_map(Path(f"/proc/self/{name}").read_text()))
        return
    (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
    (proc / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def _identity_map(ranges: str) -> str:
    rows = (row.split() for row in ranges.splitlines())
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _creation_error(error: OSError, spec: VmSpec) -> Refused:
    if spec.joined_netns is not None:
        return Refused(
            f"network namespace {str(spec.joined_netns)!r} cannot be joined ({error.strerror}): name one that "
            "exists and belongs to you, run this as root, or omit --netns for a new one"
        )
    return Refused(
        f"this machine does not allow namespace VMs ({error.strerror}): run this as root, or allow them with "
        "sysctl (kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces above 0), or use the VM's loopback URL, which `forewarn fleet show` lists"
    )
