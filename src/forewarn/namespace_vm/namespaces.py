"""A VM's namespaces, held from outside: made here, and gone when this is closed or the process that holds it ends."""

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
from forewarn.vm import inside, kernel
from forewarn.vm.blueprint import Blueprint, Net

Event = dict[str, Any]
_MOST_BYTES = 65536
_PATIENCE_S = 30.0
_OTHERS = kernel.NEW_MOUNT | kernel.NEW_UTS | kernel.NEW_PID


@dataclass(frozen=True, slots=True)
class Reply:
    value: Any
    descriptors: list[int] = field(default_factory=list)


class Enclosure:
    """An open VM. Made outside of any event loop, because it forks; used inside of one."""

    def __init__(self, plan: Blueprint) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_PATIENCE_S)
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._pid = 0
        self.notes: list[str] = []  # what this kernel would not give, in words
        self._ends_by_force = plan.net is not Net.JOINED  # that one is left as it was first
        kernel.adopt_orphans()
        try:
            self._make(plan, theirs)
        except OSError as error:
            self.close()
            raise _refusal(error, plan) from error

    @property
    def pid(self) -> int:
        """Of the VM's first process, as it is called outside."""
        return self._pid

    def follow(self, told: Callable[[Event], None]) -> None:
        """From now on events go there."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive, told)

    async def call(self, word: str, argument: Any = None) -> Reply:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._control.send(json.dumps([word, argument]).encode())
        self._waiting.append(answer)
        return await answer

    def close(self) -> None:
        """End everything in the VM, at once."""
        self._control.close()
        if self._pid:
            if self._ends_by_force:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _make(self, plan: Blueprint, theirs: socket.socket) -> None:
        forerunner = os.fork()
        if forerunner == 0:
            _forerun(theirs, plan)
        theirs.close()
        try:
            if self._first_word()["unshared"]:
                _map_identities(forerunner)
            self._control.send(b"unshared")
            self._pid = self._first_word()["first"]
        except OSError:
            self._control.close()  # it waits for no further word, and ends
            raise
        finally:
            os.waitpid(forerunner, 0)  # the first process is our child from here on
        self._control.send(b"orphaned")
        self.notes = self._first_word()["notes"]

    def _first_word(self) -> dict[str, Any]:
        packet = self._control.recv(_MOST_BYTES)
        if not packet:
            raise OSError(0, "the VM's first process ended unexpectedly")
        message: dict[str, Any] = json.loads(packet)
        if "error" in message:
            raise OSError(*message["error"])
        return message

    def _receive(self, told: Callable[[Event], None]) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MOST_BYTES, 4)
        if not packet:
            asyncio.get_running_loop().remove_reader(self._control)
            while self._waiting:
                self._waiting.popleft().set_exception(ConnectionResetError(errno.ECONNRESET, "the VM is gone"))
            told({"event": "gone"})
            return
        message = json.loads(packet)
        if "event" in message:
            told(message)
        elif "error" in message:
            self._waiting.popleft().set_exception(OSError(*message["error"]))
        else:
            self._waiting.popleft().set_result(Reply(message["done"], descriptors))


def _forerun(control: socket.socket, plan: Blueprint) -> NoReturn:
    """In a first child: leave for the new namespaces, and start the VM's first process, which is born in them."""
    try:
        _close_all_but({0, 1, 2, control.fileno(), plan.output})
        _leave(plan)
        control.send(json.dumps({"unshared": plan.joins is None}).encode())
        if not control.recv(_MOST_BYTES):
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            control.recv(_MOST_BYTES)
            inside.serve(control, plan)
        control.send(json.dumps({"first": pid}).encode())
    except OSError as error:
        control.send(json.dumps({"error": [error.errno, error.strerror]}).encode())
    finally:
        os._exit(0)


def _leave(plan: Blueprint) -> None:
    if plan.joins is None:
        kernel.unshare(kernel.NEW_USER | kernel.NEW_NET | _OTHERS)
        return
    with open(plan.joins, "rb") as namespace:
        owner = kernel.owner_of(namespace.fileno())
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
            kernel.enter(owner)
        os.close(owner)
        kernel.enter(namespace.fileno())
    kernel.unshare(_OTHERS)


def _close_all_but(kept: set[int | None]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # it was that of the listing


def _map_identities(pid: int) -> None:
    """Everybody is who they were: all users for root, otherwise the caller alone."""
    place = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            (place / name).write_text(_identity(Path(f"/proc/self/{name}").read_text()))
        return
    (place / "setgroups").write_text("deny")
    (place / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
    (place / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def _identity(ranges: str) -> str:
    rows = (row.split() for row in ranges.splitlines())
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _refusal(error: OSError, plan: Blueprint) -> Refused:
    if plan.joins is not None:
        return Refused(
            f"network namespace {str(plan.joins)!r} cannot be joined ({error.strerror}): give one that exists and is "
            "yours, run this as root, or leave --netns out for a new one"
        )
    return Refused(
        f"this machine does not let a VM be made of namespaces ({error.strerror}): run this as root, or allow it with "
        "sysctl (kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces above 0), or use the VM's loopback URL that `forewarn fleet show` tells"
    )
