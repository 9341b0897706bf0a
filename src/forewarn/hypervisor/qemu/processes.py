"""Starts, reaches and ends the QEMU processes of VMs, with waiting."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from forewarn.errors import Refused
from forewarn.hypervisor.liveness import wait_for_process_exit
from forewarn.hypervisor.machines.driver import HostUnreachable
from forewarn.hypervisor.qemu.instance import QemuInstance
from forewarn.hypervisor.qemu.qmp import Monitor, MonitorNotListening, connect_monitor

_INTERVAL_S = 0.02  # between checks of a process
_QUIT_WAIT_S = 3.0  # for QEMU to end after `quit`, before it is killed
_KILL_WAIT_S = 10.0


class NotRunning(Exception):
    """The VM has no QEMU process."""


class QemuProcesses:
    """The QEMU processes of this machine's VMs, including those that an earlier service started.

    `timeout_s` limits the wait for an answer from QEMU, `start_timeout_s` the time that QEMU needs to come up, in real
    seconds.
    """

    def __init__(self, *, timeout_s: float, start_timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._children: list[subprocess.Popen[bytes]] = []

    @asynccontextmanager
    async def monitor(self, instance: QemuInstance) -> AsyncIterator[Monitor]:
        """Connect to QEMU, waiting for one that has just been started. NotRunning if there is no process.

        An async context manager, which disconnects. HostUnreachable if QEMU does not answer in time, Refused without
        permission.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            is_alive = instance.is_alive()  # before connecting: QEMU may end in between
            connection = connect_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s)
            try:
                found = await connection.__aenter__()
                break
            except MonitorNotListening as error:
                if not is_alive:
                    raise NotRunning from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise HostUnreachable(
                        f"QEMU of {instance.name} runs, but nothing answers on its socket "
                        f"{str(instance.monitor_socket)!r}: end it by hand"
                    ) from error
                await asyncio.sleep(_INTERVAL_S)
        try:
            yield found
        finally:
            await connection.__aexit__(None, None, None)

    async def start(self, instance: QemuInstance, argv: Sequence[str]) -> None:
        """Start QEMU, and return once its monitor answers. Refused with its last message if it ends first.

        Refused also if it runs already. HostUnreachable if it does not answer within `start_timeout_s`; it may come up
        later.
        """
        child = instance.start(argv)
        self._children.append(child)
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while True:
            has_ended = child.poll() is not None and not instance.is_alive()
            try:
                async with connect_monitor(instance.monitor_socket, instance.name, timeout_s=self._start_timeout_s):
                    return
            except MonitorNotListening as error:
                if has_ended:
                    reason = instance.log_tail() or f"exit code {child.returncode}"
                    raise Refused(f"QEMU did not start {instance.name}: {reason}") from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_INTERVAL_S)

    async def end(self, instance: QemuInstance) -> None:
        """End QEMU if it runs: by `quit`, else by SIGKILL. Returns when it is gone.

        HostUnreachable if it does not end, or its process is not known; Refused without permission.
        """
        try:
            async with self.monitor(instance) as monitor:
                await monitor.quit()
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
        """Wait until QEMU has ended, even if a person started it; returns whether it has."""
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
        """Return whether something listens on the VM's monitor, even if it does not answer.

        Refused without permission for its socket.
        """
        try:
            async with connect_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s):
                return True
        except MonitorNotListening:
            return False
        except HostUnreachable:
            return True

    def release(self) -> None:
        """Forget the processes that were started here; they keep running."""
        for child in self._children:
            if child.poll() is None:
                child.returncode = 0  # otherwise Python warns about a process that nobody waits for
        self._children.clear()
