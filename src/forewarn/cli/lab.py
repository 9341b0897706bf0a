"""Commands for a lab with real VMs on this machine: `lab vms` starts it, `lab down` removes it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.background import running_pid, start_detached, stop_service
from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.cli.output import count_noun
from forewarn.cli.service import run_service_command
from forewarn.errors import Refused, Rejected

if TYPE_CHECKING:
    from forewarn.lab.vms.layout import VmLab

_STOP_TIMEOUT_S = 60.0


@click.group()
def lab() -> None:
    """Run a lab with real VMs on this machine."""


@lab.command()
@click.option("--detach", "-d", is_flag=True, help="Run it in the background; `forewarn lab down` ends it.")
@click.option("--slirp", is_flag=True, help="Use QEMU's own network, even as root: no taps, no namespaces.")
@click.option("--api", metavar="ADDRESS:PORT", help="Serve API and portal over HTTPS here.")
@local_command
def vms(call: Invocation, detach: bool, slirp: bool, api: str | None) -> None:
    """Start two hosts and two small real VMs, with a service and its portal.

    The guests, Debian's kernel and BusyBox in QEMU, poll 169.254.169.254, and approve their own events five seconds
    after they see them.

    \b
    forewarn lab vms
    forewarn restart web-0 --wait
    forewarn rollout start --host host-1 --impact migrate --wait
    forewarn vm console web-0
    """
    with require_server_extra("lab vms"):
        from forewarn.lab.vms.image import build_image, check_programs, image_directory
        from forewarn.lab.vms.layout import create_network, start_guests
    check_programs()
    new = _lab(call, taps=os.geteuid() == 0 and not slirp)
    if (pid := running_pid(new.directory)) is not None:
        raise Refused(f"a lab runs in {new.directory} already (process {pid}): `forewarn lab down` ends it")
    _remove(new)
    with call.output.stderr.status("building the guest (once; about half a minute) …"):
        image = build_image(image_directory())
    new.write(image)
    try:
        if new.taps:
            create_network(new)
        with call.output.stderr.status("booting two VMs …"):
            asyncio.run(start_guests(new))
        if detach:
            start_detached(call, new.directory, _options(new, api), wait_ready=True)
            return
        run_service_command(call, "lab vms", _settings(new, api), lab=True)
    except BaseException:
        _remove(new)
        raise
    ended = _remove(new)
    if call.output.is_terminal:
        call.output.print_line(_removed_text(ended))


def _removed_text(ended: int) -> str:
    return f"Nothing is left of the lab: {count_noun(ended, 'guest')} stopped."


@lab.command()
@local_command
def down(call: Invocation) -> None:
    """End the lab with real VMs; its network, disks and history are removed."""
    with require_server_extra("lab down"):
        old = _lab(call, taps=os.geteuid() == 0)
    has_lab = old.marker_file.exists()
    if has_lab and (pid := running_pid(old.directory)) is not None:
        stop_service(call, pid, _STOP_TIMEOUT_S)
    ended = _remove(old)
    if call.output.as_json:
        call.output.print_json({"guests": ended, "data": str(old.directory)})
    elif has_lab:
        call.output.print_line(_removed_text(ended))
    else:
        call.output.print_line(f"{old.directory} has no lab with real VMs: there is nothing to remove.")


def _lab(call: Invocation, *, taps: bool) -> VmLab:
    from forewarn.lab.vms.layout import VmLab
    from forewarn.service.data_directory import DATABASE_FILE

    directory = call.data.absolute()
    if "," in str(directory) or any(map(str.isspace, str(directory))):
        raise Rejected(f"data directory {str(directory)!r} has a comma or a space, which QEMU's options cannot have")
    found = VmLab(directory, taps=taps)
    if (directory / DATABASE_FILE).exists() and not found.marker_file.exists():
        raise Refused(
            f"data directory {str(directory)!r} has another fleet: name an empty directory with --data, "
            "here and in the commands that follow"
        )
    return found


def _remove(lab: VmLab) -> int:
    from forewarn.lab.vms.layout import end_guests, remove_files, remove_network
    from forewarn.service.data_directory import DataDirectory, wipe_lab

    if not lab.marker_file.exists():
        return 0
    ended = asyncio.run(end_guests(lab))
    if os.geteuid() == 0:
        remove_network(lab)
    directory = DataDirectory.acquire(lab.directory)
    try:
        wipe_lab(directory)
        remove_files(lab)
    finally:
        directory.close()
    return ended


def _options(lab: VmLab, api: str | None) -> tuple[str, ...]:
    options = ("--config", str(lab.settings_file), "--fleet", str(lab.fleet_file))
    return (*options, "--api", api) if api is not None else options


def _settings(lab: VmLab, api: str | None) -> dict[str, object]:
    return {
        "config": Path(lab.settings_file),
        "fleet": str(lab.fleet_file),
        "api": api,
        "listen": (),
        "new_store": True,
    }
