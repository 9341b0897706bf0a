"""Fencing of QEMU hosts: the processes that still use disks after the fence command."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from forewarn.machines.qemu.disk_users import find_disk_users
from forewarn.machines.qemu.instance import QemuInstance

log = logging.getLogger(__name__)


def has_foreign_disk_user(host: str, instances: Sequence[QemuInstance], others: Sequence[QemuInstance]) -> bool:
    """Return whether a process, other than QEMU of `others`, has a disk of these VMs open for writing."""
    users = find_disk_users([disk for instance in instances for disk in instance.disks()])
    known = {instance.pid() for instance in others if instance.is_alive()}
    for user in users:
        if user.pid not in known:
            log.warning("host %s is not fenced: process %d still writes to disk %s", host, user.pid, user.disk)
            return True
    return False
