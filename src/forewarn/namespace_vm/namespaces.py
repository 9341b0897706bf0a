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
from forewarn.namespace_vm import init, syscalls
from forewarn.namespace_vm.vm_spec import NetworkMode, VmSpec

InitEvent = dict[str, Any]
_MAX_MESSAGE_BYTES = 65536
_SETUP_TIMEOUT_S = 30.0
_PRIVATE_NAMESPACES = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWPID


@dataclass(frozen=True, slots=True)
class InitReply:
    value: Any
    descriptors: list[int] = field(default_factory=list)


class VmNamespaces:
    """An open VM. Made outside of any event loop, because it forks; used inside of one."""

    def __init__(self, plan: VmSpec) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_SETUP_TIMEOUT_S)
        self._pending_replies: deque[asyncio.Future[InitReply]] = deque()
        self._pid = 0
        self.missing_features: list[str] = []  # what this kernel would not give, in words
        self._kill_on_close = plan.network_mode is not NetworkMode.JOINED  # that one is left as it was first
        syscalls.become_subreaper()
        try:
            self._create(plan, theirs)
        except OSError as error:
            self.close()
            raise _creation_error(error, plan) from error

    @property
    def pid(self) -> int:
        """Of the VM's first process, as it is called outside."""
        return self._pid

    def watch_events(self, told: Callable[[InitEvent], None]) -> None:
        """From now on events go there."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive, told)

    async def call(self, word: str, argument: Any = None) -> InitReply:
        answer: asyncio.Future[InitReply] = asyncio.get_running_loop().create_future()
        self._control.send(json.dumps([word, argument]).encode())
        self._pending_replies.append(answer)
        return await answer

    def close(self) -> None:
        """End everything in the VM, at once."""
        self._control.close()
        if self._pid:
            if self._kill_on_close:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _create(self, plan: VmSpec, theirs: socket.socket) -> None:
        forerunner = os.fork()
        if forerunner == 0:
            _start_init(theirs, plan)
        theirs.close()
        try:
            if self._receive_setup_message()["unshared"]:
                _write_id_maps(forerunner)
            self._control.send(b"unshared")
            self._pid = self._receive_setup_message()["first"]
        except OSError:
            self._control.close()  # it waits for no further word, and ends
            raise
        finally:
            os.waitpid(forerunner, 0)  # the first process is our child from here on
        self._control.send(b"orphaned")
        self.missing_features = self._receive_setup_message()["notes"]

    def _receive_setup_message(self) -> dict[str, Any]:
        packet = self._control.recv(_MAX_MESSAGE_BYTES)
        if not packet:
            raise OSError(0, "the VM's first process ended unexpectedly")
        message: dict[str, Any] = json.loads(packet)
        if "error" in message:
            raise OSError(*message["error"])
        return message

    def _receive(self, told: Callable[[InitEvent], None]) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, 4)
        if not packet:
            asyncio.get_running_loop().remove_reader(self._control)
            while self._pending_replies:
                self._pending_replies.popleft().set_exception(ConnectionResetError(errno.ECONNRESET, "the VM is gone"))
            told({"event": "gone"})
            return
        message = json.loads(packet)
        if "event" in message:
            told(message)
        elif "error" in message:
            self._pending_replies.popleft().set_exception(OSError(*message["error"]))
        else:
            self._pending_replies.popleft().set_result(InitReply(message["done"], descriptors))


def _start_init(control: socket.socket, plan: VmSpec) -> NoReturn:
    """In a first child: leave for the new namespaces, and start the VM's first process, which is born in them."""
    try:
        _close_other_descriptors({0, 1, 2, control.fileno(), plan.output})
        _enter_namespaces(plan)
        control.send(json.dumps({"unshared": plan.joined_netns is None}).encode())
        if not control.recv(_MAX_MESSAGE_BYTES):
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            control.recv(_MAX_MESSAGE_BYTES)
            init.run_init(control, plan)
        control.send(json.dumps({"first": pid}).encode())
    except OSError as error:
        control.send(json.dumps({"error": [error.errno, error.strerror]}).encode())
    finally:
        os._exit(0)


def _enter_namespaces(plan: VmSpec) -> None:
    if plan.joined_netns is None:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET | _PRIVATE_NAMESPACES)
        return
    with open(plan.joined_netns, "rb") as namespace:
        owner = syscalls.owning_user_namespace(namespace.fileno())
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
            syscalls.enter_namespace(owner)
        os.close(owner)
        syscalls.enter_namespace(namespace.fileno())
    syscalls.unshare(_PRIVATE_NAMESPACES)


def _close_other_descriptors(kept: set[int | None]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # it was that of the listing


def _write_id_maps(pid: int) -> None:
    """Everybody is who they were: all users for root, otherwise the caller alone."""
    place = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            (place / name).write_text(_identity_map(Path(f"/proc/self/{name}").read_text()))
        return
    (place / "setgroups").write_text("deny")
    (place / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
    (place / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def _identity_map(ranges: str) -> str:
    rows = (row.split() for row in ranges.splitlines())
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _creation_error(error: OSError, plan: VmSpec) -> Refused:
    if plan.joined_netns is not None:
        return Refused(
            f"network namespace {str(plan.joined_netns)!r} cannot be joined ({error.strerror}): give one that "
            "exists and is "
            "yours, run this as root, or leave --netns out for a new one"
        )
    return Refused(
        f"this machine does not let a VM be made of namespaces ({error.strerror}): run this as root, or allow it with "
        "sysctl (kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces above 0), or use the VM's loopback URL that `forewarn fleet show` tells"
    )
