"""The connection to one host's libvirt, opened when it is first needed, and again after it was lost.

Blocking calls run in threads. A call that the daemon does not answer in time raises HostUnreachable; its thread ends
when libvirt gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from forewarn.base.threads import in_daemon_thread
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.libvirt.domain_state import ChangeKind, change_kind
from forewarn.machines.libvirt.session import (
    ACCESS_DENIED,
    NO_DOMAIN,
    OPERATION_TIMEOUT,
    UNSAFE_MIGRATION,
    LibvirtFailure,
    LibvirtSession,
    open_session,
)

log = logging.getLogger(__name__)
_MAX_UNANSWERED = 32  # calls to one host; more would only add threads
_CLOSE_TIMEOUT_S = 2.0
_RECONNECT_INTERVAL_S = 5.0  # while changes are read
T = TypeVar("T")


class LibvirtHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the libvirt of one host, and how to fence it: `[libvirt.hosts.NAME]` of the settings."""

    uri: str  # of its libvirt, as the service reaches it, such as qemu+ssh://kvm-a/system
    peer_uri: str = ""  # of its libvirt, as other hosts reach it: they then migrate without the service; "": through it
    migrate_uri: str = ""  # where its QEMU receives VMs: tcp://10.0.0.2; {vm} is the VM's name; "": libvirt chooses
    timeout_s: float = 30  # for each answer, in seconds of real time
    fence: tuple[str, ...] = ()  # program and arguments that cut the host off: exit code 0 says that it is off; () none
    fence_timeout_s: float = 60  # seconds of real time; after it the command is killed, and has failed


class LibvirtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[libvirt]` of the settings: the hosts whose VMs libvirt runs."""

    hosts: dict[str, LibvirtHost] = {}  # by the fleet's name of the host
    lock_directories: tuple[str, ...] = ()  # must be empty: `check_libvirt` refuses others


def check_libvirt(settings: LibvirtSettings) -> None:
    """Raise Rejected if the settings of a host are wrong; the message names the setting."""
    if settings.lock_directories:
        raise Rejected(
            "setting 'libvirt.lock_directories' cannot be used, because libvirt does not say which host holds the lock "
            "of a disk: remove it, and give each host a 'fence' command"
        )
    uris: dict[str, str] = {}
    for name, host in settings.hosts.items():
        where = f"setting 'libvirt.hosts.{name}"
        if "://" not in host.uri:
            raise Rejected(f"{where}.uri' is {host.uri!r}: give a libvirt URI, such as qemu+ssh://{name}/system")
        if host.uri in uris:
            raise Rejected(f"{where}.uri' is also that of host {uris[host.uri]!r}: give each host its own")
        uris[host.uri] = name
        for option in ("timeout_s", "fence_timeout_s"):
            if (value := getattr(host, option)) <= 0:
                raise Rejected(f"{where}.{option}' is {value:g}: give more than 0 seconds")
        if "" in host.fence[:1]:
            raise Rejected(f"{where}.fence' begins with an empty string: name a program and its arguments")


class DomainChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a libvirt host reported, of a domain or of itself; it does not say who caused it."""

    host: str  # its name, as the settings spell it
    vm: str  # the domain's name; "": about the host itself
    kind: ChangeKind  # what has changed


class LibvirtConnection:
    """The connection to one host's libvirt, opened by the first call, and again after it was lost.

    `on_change` is called in the event loop for each change that the host reports, and when the connection is lost or
    found again. `on_open` is called in a thread for each new connection, which is closed again if it raises.
    """

    def __init__(
        self,
        name: str,
        host: LibvirtHost,
        *,
        on_change: Callable[[DomainChange], None] = lambda _: None,
        on_open: Callable[[LibvirtSession], None] = lambda _: None,
        connect: Callable[[str], LibvirtSession] = open_session,
    ) -> None:
        self.name = name
        self.host = host
        self._connect = connect
        self._on_change = on_change
        self._on_open = on_open
        self._session: LibvirtSession | None = None
        self._opening: asyncio.Task[LibvirtSession] | None = None
        self._unanswered = 0
        self._exclusive: dict[str, asyncio.Future[object]] = {}  # VM → the call that changes its disks
        self._was_lost = False
        self._is_closed = False

    async def call(self, work: Callable[[LibvirtSession], T], *, waits: bool = False, exclusive: str = "") -> T:
        """Run `work` in a thread with the connection, which is opened if needed, and return its result.

        `work` must be safe to repeat: it runs again, once, if the connection has ended meanwhile. With `waits` there is
        no timeout and no repetition. `exclusive` names a VM whose disks `work` changes or uses: such calls for one VM
        never overlap, even if an earlier one has timed out. After HostUnreachable, `work` may still go on.
        """
        try:
            return await self._call_once(work, waits=waits, exclusive=exclusive)
        except LibvirtFailure as failure:
            if not failure.is_connection_lost or waits:
                raise
            self._forget_session()
        try:
            return await self._call_once(work, waits=waits, exclusive=exclusive)
        except LibvirtFailure as failure:
            if not failure.is_connection_lost:
                raise
            self._forget_session()
            raise HostUnreachable(f"the libvirt of host {self.name} ended the connection: {failure}") from failure

    async def session(self) -> LibvirtSession:
        """Return the open connection, which is opened if needed. Do not close it."""
        if self._is_closed:
            raise HostUnreachable(f"the connection to host {self.name} is closed")
        if self._session is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
                self._opening.add_done_callback(_mark_seen)
            return await self._within_timeout(self._opening)
        return self._session

    async def close(self) -> None:
        """Close the connection; may be called twice. Waits two seconds for calls that change disks."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._exclusive:
            await asyncio.wait(self._exclusive.values(), timeout=_CLOSE_TIMEOUT_S)
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(LibvirtFailure, TimeoutError):
                await asyncio.wait_for(in_daemon_thread(session.close), _CLOSE_TIMEOUT_S)

    async def _open(self) -> LibvirtSession:
        loop = asyncio.get_running_loop()

        def report(change: DomainChange) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._on_change, change)

        def lifecycle(vm: str, event: int, detail: int) -> None:
            if (kind := change_kind(event, detail)) is not None:
                report(DomainChange(host=self.name, vm=vm, kind=kind))

        def closed() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._forget_session)

        def work() -> LibvirtSession:
            session = self._connect(self.host.uri)
            try:
                session.watch(lifecycle, closed)
                self._on_open(session)
                if self._is_closed:  # the event loop may have ended, so this thread closes it
                    raise HostUnreachable(f"the connection to host {self.name} is closed")
            except BaseException:
                _close_quietly(session)
                raise
            return session

        opening = in_daemon_thread(work)
        try:
            session = self._session = await asyncio.shield(opening)  # kept even if its first caller has given up
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        except LibvirtFailure as failure:
            raise _open_error(self.name, self.host.uri, failure) from failure
        finally:
            self._opening = None
        if self._was_lost:
            self._was_lost = False
            self._on_change(DomainChange(host=self.name, vm="", kind=ChangeKind.HOST_FOUND))
        return session

    def _forget_session(self) -> None:
        """The daemon has ended the connection: the next call opens a new one."""
        if self._session is None or self._is_closed:
            return
        session, self._session = self._session, None
        threading.Thread(target=_close_quietly, args=(session,), daemon=True).start()
        self._was_lost = True
        self._on_change(DomainChange(host=self.name, vm="", kind=ChangeKind.HOST_LOST))

    async def _call_once(self, work: Callable[[LibvirtSession], T], *, waits: bool, exclusive: str) -> T:
        session = await self.session()
        if exclusive in self._exclusive:
            raise HostUnreachable(f"host {self.name} has not finished an earlier call for VM {exclusive!r}")
        if self._unanswered >= _MAX_UNANSWERED:
            raise HostUnreachable(f"the libvirt of host {self.name} has not answered {self._unanswered} calls")
        self._unanswered += 1
        future = in_daemon_thread(lambda: work(session))
        future.add_done_callback(self._answered)
        if exclusive:
            self._exclusive[exclusive] = cast("asyncio.Future[object]", future)
            future.add_done_callback(lambda _: self._exclusive.pop(exclusive))
        return await (future if waits else self._within_timeout(future))

    def _answered(self, future: asyncio.Future[T]) -> None:
        self._unanswered -= 1
        _mark_seen(future)

    async def _within_timeout(self, future: asyncio.Future[T]) -> T:
        """Wait for it as long as the host may take; after that it continues by itself."""
        await asyncio.wait({future}, timeout=self.host.timeout_s)
        if not future.done():
            raise HostUnreachable(
                f"the libvirt of host {self.name} at {self.host.uri} did not answer within {self.host.timeout_s:g} s"
            )
        return future.result()


def _mark_seen(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()  # after a timeout nobody else asks for it


def _close_opened(opening: asyncio.Future[LibvirtSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=_close_quietly, args=(opening.result(),), daemon=True).start()


def _close_quietly(session: LibvirtSession) -> None:
    with contextlib.suppress(LibvirtFailure):
        session.close()


def _open_error(host: str, uri: str, failure: LibvirtFailure) -> ForewarnError:
    if failure.code in ACCESS_DENIED or "Permission denied" in str(failure):
        return Refused(
            f"host {host} does not let this user use its libvirt at {uri}: add the user to the group libvirt there "
            f"({failure})"
        )
    return HostUnreachable(f"the libvirt of host {host} cannot be reached at {uri}: {failure}")


def operation_error(host: str, vm: str, what: str, failure: LibvirtFailure) -> Refused | HostUnreachable:
    """Return (not raise) the error for an operation on a VM that failed in libvirt."""
    if failure.code == NO_DOMAIN:
        return Refused(f"host {host} has no VM {vm!r}, so it cannot {what} it: define it there, or correct the fleet")
    if failure.code in ACCESS_DENIED:
        return Refused(f"host {host} does not let this user {what} VM {vm!r}: {failure}")
    if failure.code == UNSAFE_MIGRATION:
        return Refused(
            f"VM {vm!r} cannot move from host {host}, because its disks are not on shared storage or their cache "
            f"could lose data: use storage that both hosts reach, with cache='none' ({failure})"
        )
    if failure.code == OPERATION_TIMEOUT:
        return HostUnreachable(f"VM {vm!r} on host {host} is busy, so its state is not known: {failure}")
    return Refused(f"host {host} refused to {what} VM {vm!r}: {failure}")


async def keep_open(connection: LibvirtConnection) -> None:
    """Keep the connection open until cancelled: try every five seconds to open it if it has ended."""
    while True:
        with contextlib.suppress(ForewarnError):
            await connection.session()
        await asyncio.sleep(_RECONNECT_INTERVAL_S)
