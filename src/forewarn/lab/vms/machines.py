"""Starts and ends the guests of a lab, wherever maintenance has brought them."""

from __future__ import annotations

import shutil
from contextlib import suppress

from forewarn.lab.vms.layout import GUESTS, HOSTS, VmLab, first_host
from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.driver import QemuDriver

# What the service of a lab leaves beside its keys in tls; two of them if it ran in the background.
_SERVICE_FILES = ("admin.secret", "detached.json", "lock", "new-store", "service.log")


async def start_guests(lab: VmLab) -> None:
    """Boot every guest of a new lab on its first host, in a QEMU process that outlives this one."""
    driver = _driver(lab)
    try:
        for number, vm in enumerate(GUESTS):
            await driver.power_on(first_host(number), vm)
    finally:
        await driver.close()


async def end_guests(lab: VmLab) -> int:
    """End every guest at once, on every host, without asking it to shut down; return how many ran."""
    driver = _driver(lab)
    ended = 0
    try:
        for host in filter(lambda host: lab.host_directory(host).exists(), HOSTS):
            for vm in GUESTS:
                if await driver.state(host, vm) not in (MachineState.OFF, MachineState.ABSENT):  # ends one that is off
                    await driver.power_off(host, vm)
                    ended += 1
    finally:
        await driver.close()
    return ended


def remove_files(lab: VmLab) -> None:
    """Remove hosts, disks, settings, fleet and marker of a lab whose guests have ended; none need exist.

    Call it while you hold the lock of the data directory.
    """
    is_new = lab.is_in_new_directory()
    for directory in ("hosts", "disks", "definitions"):
        shutil.rmtree(lab.directory / directory, ignore_errors=True)
    for file in (lab.settings_file, lab.fleet_file, lab.marker_file):
        file.unlink(missing_ok=True)
    if is_new:
        shutil.rmtree(lab.directory / "tls", ignore_errors=True)
        for name in _SERVICE_FILES:
            (lab.directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # somebody has put something there
            lab.directory.rmdir()


def _driver(lab: VmLab) -> QemuDriver:
    return QemuDriver(lab.hosts(), copies=lab.directory / "definitions")
