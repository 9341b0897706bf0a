"""Starts, reaches and ends the QEMU processes of VMs, with waiting."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.liveness import wait_for_process_exit
from forewarn.machines.qemu.instance import QemuInstance
from forewarn.machines.qemu.qmp import (
    Monitor,
    MonitorDisconnected,
    MonitorNotListening,
    connect_monitor,
    open_monitor,
)

_INTERVAL_S = 0.02  # between checks of a process
_START_INTERVAL_S = 0.002  # the same, of one that is about to open its monitor
_KEEP_S = 1.0  # how long a connection is kept open for the next operation, which usually follows at once
_QUIT_WAIT_S = 3.0  # for QEMU to end after `quit`, before it is killed
_KILL_WAIT_S = 10.0
_Answer = TypeVar("_Answer")


_TAP_ERROR = re.compile(r"could not configure /dev/net/tun \(([^()]+)\): (.+)")


def _start_failure(message: str) -> str:
    if (found := _TAP_ERROR.search(message)) is None:
        return message
    tap, reason = found.groups()
    if "busy" in reason:
        return f"another process uses tap {tap} of this host: end it, or give the VM a tap of its own"
    if "not permitted" in reason:
        return (
            f"tap {tap} is missing on this host, or belongs to another user, and QEMU may not create it: "
            f"create it with `ip tuntap add dev {tap} mode tap user USER`, for the user who runs QEMU"
        )
    return f"tap {tap} of this host cannot be used: {reason}"


class NotRunning(Exception):
    """The VM has no QEMU process. `QemuProcesses` raises it."""


class _KeptMonitor(NamedTuple):
    """A connection that no operation uses now."""

    monitor: Monitor
    timer: asyncio.TimerHandle  # closes it


class QemuProcesses:
    """Starts, reaches and ends the QEMU processes of VMs, including those that an earlier service started."""

    # A connection is kept open for a second for the next operation. One operation at a time per VM.

    def __init__(self, *, timeout_s: float, start_timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._children: list[subprocess.Popen[bytes]] = []
        self._kept: dict[QemuInstance, _KeptMonitor] = {}
        self._closing: set[asyncio.Task[None]] = set()  # connections that were kept long enough

    @asynccontextmanager
    async def monitor(self, instance: QemuInstance) -> AsyncIterator[Monitor]:
        """Return an async context manager for a connection to QEMU's monitor."""
        monitor = await self._take_kept(instance) or await self._connect(instance)
        try:
            yield monitor
        except BaseException:
            await monitor.close()
            raise
        await self._keep(instance, monitor)

    async def ask(self, instance: QemuInstance, question: Callable[[Monitor], Awaitable[_Answer]]) -> _Answer:
        """Connect to QEMU and return the answer to a question that changes nothing."""
        is_kept = instance in self._kept
        try:
            async with self.monitor(instance) as monitor:
                return await question(monitor)
        except MonitorDisconnected:
            if not is_kept:
                raise
        async with self.monitor(instance) as monitor:
            return await question(monitor)

    async def _keep(self, instance: QemuInstance, monitor: Monitor) -> None:
        if not monitor.is_connected:
            await monitor.close()
            return
        timer = asyncio.get_running_loop().call_later(_KEEP_S, self._begin_to_drop, instance)
        self._kept[instance] = _KeptMonitor(monitor, timer)

    def _begin_to_drop(self, instance: QemuInstance) -> None:
        task = asyncio.create_task(self._drop(instance))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _take_kept(self, instance: QemuInstance) -> Monitor | None:
        kept = self._kept.pop(instance, None)
        if kept is None:
            return None
        kept.timer.cancel()
        if kept.monitor.is_connected and instance.is_alive():
            return kept.monitor
        await kept.monitor.close()
        return None

    async def _drop(self, instance: QemuInstance) -> None:
        if (kept := self._kept.pop(instance, None)) is not None:
            kept.timer.cancel()
            await kept.monitor.close()

    async def close(self) -> None:
        """Close all connections that are kept, and wait until they are closed. The processes keep running."""
        for instance in list(self._kept):
            await self._drop(instance)
        await asyncio.gather(*self._closing)

    async def _connect(self, instance: QemuInstance) -> Monitor:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            is_alive = instance.is_alive()  # before connecting: QEMU may end in between
            if not is_alive and not instance.monitor_socket.exists():
                raise NotRunning
            try:
                return await open_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s)
            except MonitorNotListening as error:
                if not is_alive:
                    raise NotRunning from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise HostUnreachable(
                        f"QEMU of {instance.name} runs, but nothing answers on its socket "
                        f"{str(instance.monitor_socket)!r}: end it by hand"
                    ) from error
                await asyncio.sleep(_START_INTERVAL_S)

    async def start(self, instance: QemuInstance, argv: Sequence[str]) -> None:
        """Start QEMU for this VM, and return once its monitor answers."""
        child = instance.start(argv)
        self._children.append(child)
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while True:
            has_ended = child.poll() is not None and not instance.is_alive()
            try:
                if not has_ended and not instance.monitor_socket.exists():
                    raise MonitorNotListening(f"QEMU of {instance.name} has not opened its monitor yet")
                monitor = await open_monitor(
                    instance.monitor_socket,
                    instance.name,
                    timeout_s=self._timeout_s,
                    connect_timeout_s=self._start_timeout_s,
                )
                await self._keep(instance, monitor)
                return
            except MonitorNotListening as error:
                if has_ended:
                    reason = _start_failure(instance.log_tail()) or f"exit code {child.returncode}"
                    raise Refused(f"QEMU did not start {instance.name}: {reason}") from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_START_INTERVAL_S)

    async def end(self, instance: QemuInstance) -> None:
        """End the VM's QEMU if it runs, by `quit`, else by SIGKILL, and return when it is gone."""
        try:
            async with self.monitor(instance) as monitor:
                await monitor.quit()
            await self._drop(instance)
            is_gone = await self._wait_until_gone(instance, _QUIT_WAIT_S)
        except NotRunning:
            is_gone = True
        except HostUnreachable:
            is_gone = False
        if not is_gone:
            pid, started = instance.kill()
            await wait_for_process_exit(pid, started, within_s=_KILL_WAIT_S)
            if not await self._wait_until_gone(instance, _KILL_WAIT_S):
                raise HostUnreachable(f"QEMU of {instance.name} was killed, but does not end")
        self._children = [child for child in self._children if child.poll() is None]

    async def _wait_until_gone(self, instance: QemuInstance, within_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            for child in self._children:
                child.poll()
            if not instance.is_alive() and not await self.is_listening(instance):
                return True
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_INTERVAL_S)

    async def is_listening(self, instance: QemuInstance) -> bool:
        """Return whether something listens on the VM's monitor socket, even if it does not answer."""
        try:
            async with connect_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s):
                return True
        except MonitorNotListening:
            return False
        except HostUnreachable:
            return True

    def release(self) -> None:
        """Forget the child processes, so that Python does not wait for them. They keep running."""
        for child in self._children:
            if child.poll() is None:
                child.returncode = 0  # otherwise Python warns about a process that nobody waits for
        self._children.clear()
