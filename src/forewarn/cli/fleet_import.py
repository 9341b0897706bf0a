"""Commands that write a fleet file from what a platform has: `forewarn fleet import libvirt`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.base.times import time_text
from forewarn.cli.formatting import clock_time, count_noun
from forewarn.cli.invocation import Invocation, offline_command, require_server_extra
from forewarn.cli.output import bold, dim, state_text
from forewarn.errors import Refused, Rejected

if TYPE_CHECKING:
    from forewarn.machines.libvirt.connection import LibvirtHost
    from forewarn.machines.libvirt.fleet_import import ImportedFleet, ImportedHost

_DEFAULT_FILE = "fleet.toml"


@click.group("import")
def import_fleet() -> None:
    """Write a fleet file from the hosts and VMs of a platform."""


@import_fleet.command("libvirt")
@click.argument("uris", nargs=-1, required=True, metavar="[NAME=]URI...")
@click.option(
    "--output", metavar="FILE", help=f"Write the fleet file there; - prints only the file.  [default: {_DEFAULT_FILE}]"
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--watch", is_flag=True, help="Print what happens to the VMs, until interrupted; write no file.")
@offline_command
def import_libvirt(call: Invocation, uris: tuple[str, ...], output: str | None, force: bool, watch: bool) -> None:
    """Write a fleet file from the domains of libvirt hosts.

    Examples of a URI: qemu:///system, or kvm-a=qemu+ssh://root@10.0.0.2/system, which also names the host.
    """
    with require_server_extra("fleet import"):
        from forewarn.machines.libvirt.fleet_import import plan_import, render_fleet_file
    path = None if watch or output == "-" else Path(output or _DEFAULT_FILE)
    if path is not None and path.exists() and not force:
        raise Refused(f"the file {str(path)!r} exists: name another with --output, or replace it with --force")
    if watch and output:
        raise Rejected("--watch writes no file: leave --output out, or run the command again without --watch")
    hosts = asyncio.run(_read_hosts(uris))
    found = plan_import(hosts)
    if output == "-":
        click.echo(render_fleet_file(found), nl=False)
        for note in found.notes:
            call.output.print_note(note)
        return
    if path is not None:
        _write_file(path, render_fleet_file(found))
    _print_found(call, found, path)
    if watch:
        asyncio.run(_print_changes(call, found))


async def _read_hosts(uris: tuple[str, ...]) -> list[ImportedHost]:
    from forewarn.machines.libvirt.connection import LibvirtConnection, LibvirtHost
    from forewarn.machines.libvirt.failure import LibvirtFailure
    from forewarn.machines.libvirt.fleet_import import read_host, split_named_uri

    async def read(text: str) -> ImportedHost:
        name, uri = split_named_uri(text)
        connection = LibvirtConnection(name or uri, LibvirtHost(uri=uri))
        try:
            return await connection.call(lambda session: read_host(session, name, uri))
        except LibvirtFailure as failure:
            raise Refused(f"the libvirt at {uri} refuses to list its VMs: {failure}") from failure
        finally:
            await connection.close()

    return await asyncio.gather(*map(read, uris))


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Rejected(f"the fleet file {str(path)!r} cannot be written: {error.strerror}") from error


def _print_found(call: Invocation, found: ImportedFleet, path: Path | None) -> None:
    if call.output.as_json:
        if path is not None:
            call.output.print_json(_view(found, path))
        return
    counts = {host.name: sum(vm.host == host.name for vm in found.vms) for host in found.hosts}
    call.output.print_table(
        ("host", "URI", "CPU", "free memory", "VMs"),
        [
            (bold(host.name), host.uri, host.cpu_model or "-", f"{host.free_memory_mib} MiB", str(counts[host.name]))
            for host in found.hosts
        ],
    )
    call.output.print_line()
    call.output.print_table(
        ("VM", "host", "power", "CPUs", "memory", "disks", "interfaces"),
        [
            (
                bold(vm.name),
                vm.host,
                state_text("running" if vm.is_running else "off"),
                str(vm.definition.cpus),
                f"{vm.definition.memory_mib} MiB",
                " ".join(disk.target for disk in vm.definition.disks) or "-",
                " ".join(nic.tap or nic.network or nic.mac for nic in vm.definition.interfaces) or "-",
            )
            for vm in found.vms
        ],
    )
    for note in found.notes:
        call.output.print_note(note)
    if path is not None:
        _print_next_steps(call, found, path)


def _print_next_steps(call: Invocation, found: ImportedFleet, path: Path) -> None:
    from forewarn.machines.libvirt.fleet_import import render_settings

    counted = f"{count_noun(len(found.vms), 'VM')} on {count_noun(len(found.hosts), 'host')}"
    call.output.print_line()
    call.output.print_line(f"Wrote {path} with {counted}. Apply it with `forewarn fleet apply {path}`.")
    call.output.print_line(dim("With these settings, a service acts on these hosts:"))
    call.output.print_line()
    for line in render_settings(found.hosts).splitlines():
        call.output.print_line(line)


def _view(found: ImportedFleet, path: Path) -> dict[str, object]:
    return {
        "file": str(path),
        "hosts": [{"name": host.name, "uri": host.uri, "cpu_model": host.cpu_model} for host in found.hosts],
        "vms": [{"name": vm.name, "host": vm.host, "is_running": vm.is_running} for vm in found.vms],
        "notes": list(found.notes),
    }


async def _print_changes(call: Invocation, found: ImportedFleet) -> None:
    from forewarn.machines.libvirt.connection import LibvirtHost
    from forewarn.machines.libvirt.driver import LibvirtDriver

    hosts: dict[str, LibvirtHost] = {host.name: LibvirtHost(uri=host.uri) for host in found.hosts}
    driver = LibvirtDriver(hosts, definitions=None)
    try:
        async for change in driver.changes():
            if call.output.as_json:
                call.output.print_json(
                    {"at": time_text(time.time()), "host": change.host, "vm": change.vm, "change": change.kind.value}
                )
            else:
                clock = clock_time(at := time.time(), at)
                call.output.print_line(dim(clock), f"  {change.host}  ", bold(change.vm or "-"), f"  {change.kind}")
    finally:
        await driver.close()
