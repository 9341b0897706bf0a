"""Fencing of QEMU hosts: the operator's command, and the processes that still use disks afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress

from forewarn.hypervisor.qemu.definition import QemuHost
from forewarn.hypervisor.qemu.disk_users import DiskUser, find_disk_users
from forewarn.hypervisor.qemu.instance import QemuInstance

log = logging.getLogger(__name__)


def foreign_disk_users(instances: Sequence[QemuInstance], others: Sequence[QemuInstance]) -> list[DiskUser]:
    """Return the processes that may write to a disk of these VMs, without QEMU of the others; blocks.

    In no order, one entry per process and disk; without processes that this user may not look at.
    """
    users = find_disk_users([disk for instance in instances for disk in instance.disks()])
    known = {instance.pid() for instance in others if instance.is_alive()}
    return [user for user in users if user.pid not in known]


async def run_fence_command(settings: QemuHost, host: str) -> bool:
    """Run the host's fence command; returns whether it ended with code 0.

    Its environment has FOREWARN_HOST, the host's name. After `fence_timeout_s` of real time it is killed, and has
    failed. False also if it cannot be started; failures are logged. IndexError without such a command.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *settings.fence,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"FOREWARN_HOST": host},
        )
    except OSError as error:
        log.warning("fence command %r of host %s cannot be started: %s", settings.fence[0], host, error.strerror)
        return False
    try:
        code = await asyncio.wait_for(process.wait(), settings.fence_timeout_s)
    except TimeoutError:
        code = None
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code != 0:
        log.warning("fence command %r of host %s failed (exit code %s)", settings.fence[0], host, code)
    return code == 0
