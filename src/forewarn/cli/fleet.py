"""Commands for the fleet: show it, add and remove VMs and hosts, import, check and apply a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from rich.text import Text

from forewarn.base.times import time_text
from forewarn.base.wording import scope_name_from_id
from forewarn.cli.api_client import JsonObject, ServiceNotRunning
from forewarn.cli.completion import host_names, scope_ids, vm_names
from forewarn.cli.invocation import Invocation, offline_command, require_server_extra, service_command
from forewarn.cli.invocation import non_empty_name as name_of_vm
from forewarn.cli.output import (
    EVENT_HEADERS,
    Cell,
    bold,
    clock_time,
    count_noun,
    dim,
    event_row,
    join_names,
    join_text,
    relative_time,
    state_text,
    without_control_characters,
)
from forewarn.cli.request_output import preview_options, show_preview
from forewarn.errors import FileProblem, InvalidFile, Refused, Rejected

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
    from forewarn.machines.libvirt.fleet_import import read_host, split_named_uri
    from forewarn.machines.libvirt.session import LibvirtFailure

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


file_argument = click.argument("file", type=click.File("rb"), metavar="FILE")
_DIFF_STYLES = {"+": "green", "-": "red", "~": "yellow"}


@click.group()
def fleet() -> None:
    """Show and change the fleet."""


fleet.add_command(import_fleet)


@fleet.command()
@click.argument("vm", metavar="[VM]", required=False, shell_complete=vm_names)
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Show only this scope.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Show only this host and its VMs.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Show at most N VMs.")
@service_command
def show(call: Invocation, vm: str | None, scope: str | None, host: str | None, limit: int | None) -> None:
    """Show hosts and VMs, or one VM in detail."""
    if vm is not None:
        view = call.api.get("vms", vm)
    else:
        view = call.api.get("fleet", query={"scope": scope, "host": host, "limit": limit})
    if call.output.as_json:
        call.output.print_json(view)
    elif vm is not None:
        _print_vm(call, view)
    else:
        _print_fleet(call, view)


@fleet.command()
@click.argument("name", type=name_of_vm)
@click.option("--group", "resource_group", metavar="GROUP", help="Put it in this resource group.")
@click.option("--location", metavar="LOCATION", help="Put it in this location.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Run it on this host.  [default: any]")
@click.option("--availability-set", metavar="SET", help="Put it in this availability set, created if new.")
@click.option("--scale-set", metavar="SET", help="Put it in this scale set, created if new.")
@click.option("--zone", metavar="ZONE", help="Put it in this zone.")
@click.option("--spot", "priority", flag_value="Spot", help="Make it a Spot VM, which can be evicted.")
@service_command
def add(call: Invocation, name: str, **facts: Any) -> None:
    """Add one VM."""
    given = {fact: value for fact, value in facts.items() if value is not None}
    _print_changed_vm(call, call.api.post("fleet", "vms", body={"name": name, **given}), "added")


@fleet.command()
@click.argument("vm", metavar="VM", shell_complete=vm_names)
@preview_options
@service_command
def remove(call: Invocation, vm: str, dry_run: bool) -> None:
    """Remove one VM from the fleet at once, with no event.

    `forewarn delete VM` deletes it with notice.
    """
    if dry_run:
        show_preview(call, call.api.post("fleet", "vms", vm, "preview"))
        return
    _print_changed_vm(call, call.api.delete("fleet", "vms", vm), "removed from the fleet")


def _print_changed_vm(call: Invocation, view: JsonObject, what: str) -> None:
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line(f"VM {view['name']} is {what}.")
        call.output.print_line()
        _print_vm(call, view)


@fleet.command("add-host")
@click.argument("name")
@click.option("--location", required=True, metavar="LOCATION", help="Put it in this location.")
@click.option("--zone", metavar="ZONE", help="Put it in this zone.")
@service_command
def add_host(call: Invocation, name: str, location: str, zone: str | None) -> None:
    """Add one host."""
    body = {"name": name, "location": location, **({"zone": zone} if zone else {})}
    _print_host(call, call.api.post("fleet", "hosts", body=body), "added")


@fleet.command("remove-host")
@click.argument("host", metavar="HOST", shell_complete=host_names)
@preview_options
@service_command
def remove_host(call: Invocation, host: str, dry_run: bool) -> None:
    """Remove one host from the fleet; it must have no VMs."""
    if dry_run:
        show_preview(call, call.api.post("fleet", "hosts", host, "preview"))
        return
    _print_host(call, call.api.delete("fleet", "hosts", host), "removed from the fleet")


@fleet.command()
@file_argument
@service_command
def check(call: Invocation, file: IO[bytes]) -> None:
    """Check a fleet file, and show what it would change."""
    proposal = _read_proposal(file)
    try:
        answer = _send_proposal(call, proposal, "check")
    except ServiceNotRunning:
        _check_without_service(call, proposal)
        return
    if call.output.as_json:
        call.output.print_json(answer)
        return
    call.output.print_line(f"Compared with the fleet of the service {call.api.location}; nothing is changed:")
    _print_difference(call, answer, _file_name(file))


def _check_without_service(call: Invocation, proposal: dict[str, object]) -> None:
    """Check the file itself; only a running service knows what it would change."""
    with require_server_extra("fleet check"):
        from forewarn.core.fleetfile.problems import InvalidFleetFile
        from forewarn.core.fleetfile.reader import read_fleet_file
    source = str(proposal["source"])
    try:
        found = read_fleet_file(str(proposal["text"]), source=source)
    except InvalidFleetFile as error:
        problems = [FileProblem(line=p.line, message=p.message, remedy=p.remedy) for p in error.problems]
        message = f"{source} has {count_noun(len(problems), 'problem')}"
        raise InvalidFile(problems, source=source, message=message) from error
    if call.output.as_json:
        call.output.print_json({"difference": None, "vms": len(found.vms), "hosts": len(found.hosts)})
    else:
        call.output.print_line(f"Compared with nothing, because no service answers in {call.data}:")
        call.output.print_line(
            f"{source} is valid: {count_noun(len(found.vms), 'VM')} on {count_noun(len(found.hosts), 'host')}."
        )


@fleet.command()
@file_argument
@preview_options
@click.option("--resurrect", is_flag=True, help="Restore deleted VMs that are still in the file.")
@service_command
def apply(call: Invocation, file: IO[bytes], dry_run: bool, resurrect: bool) -> None:
    """Make the fleet what a file describes.

    Shows the difference. A production service asks before it removes VMs or hosts.
    """
    answer = _send_proposal(call, {**_read_proposal(file), "resurrect": resurrect, "dry_run": dry_run}, "apply")
    if call.output.as_json:
        call.output.print_json(answer)
        return
    _print_difference(call, answer, _file_name(file))
    if answer["applied"]:
        call.output.print_line("Applied.")


def _read_proposal(file: IO[bytes]) -> dict[str, object]:
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(
            f"the fleet file {_file_name(file)!r} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    return {"text": text, "source": _file_name(file)}


def _file_name(file: IO[bytes]) -> str:
    name = getattr(file, "name", "<stdin>")
    return "standard input" if name == "<stdin>" else str(name)


def _send_proposal(call: Invocation, proposal: dict[str, object], verb: str) -> JsonObject:
    try:
        return call.api.post("fleet", verb, body=proposal)
    except InvalidFile as error:
        error.source = str(proposal["source"])
        raise


def _print_difference(call: Invocation, answer: JsonObject, source: str) -> None:
    difference, left_out = answer["difference"], answer["difference"]["stay_deleted"]
    if difference["is_empty"] and not left_out:
        call.output.print_line(f"The fleet already matches {source}: nothing to change.")
        return
    for line in difference["lines"]:
        call.output.print_line(Text(without_control_characters(line), style=_DIFF_STYLES.get(line.lstrip()[:1], "")))
    if left_out:
        only = ", and nothing else differs" if difference["is_empty"] else ""
        left = f"{count_noun(len(left_out), 'VM')} of {source} {'was' if len(left_out) == 1 else 'were'} deleted before"
        call.output.print_line(f"{left} and left out{only}: `fleet apply --resurrect` adds such VMs again.")


_EMPTY_FLEET = (
    "The fleet is empty. Apply a fleet file with `forewarn fleet apply FILE`, or add VMs with `forewarn fleet add`."
)


def _print_fleet(call: Invocation, view: JsonObject) -> None:
    hosts, vms = view["hosts"], view["vms"]
    if not hosts and not vms:
        call.output.print_line(_EMPTY_FLEET)
        return
    if hosts:
        call.output.print_table(("host", "location", "zone", "health", "VMs"), map(_host_row, hosts))
    if hosts and vms:
        call.output.print_line()
    if vms:
        lab = any(vm["url"] for vm in vms)
        headers = ("VM", "scope", "UD", "host", "power", "events", "polled", *(["endpoint"] if lab else []))
        call.output.print_table(headers, [_vm_row(vm, lab) for vm in vms])
    summary = (count_noun(len(vms), "VM"), count_noun(len(view["scopes"]), "scope"), count_noun(len(hosts), "host"))
    if call.output.is_terminal:
        call.output.print_line()
        call.output.print_line(dim(" · ".join(summary)))


def _host_row(host: JsonObject) -> list[Cell]:
    return [
        bold(host["name"]),
        host["location"],
        host["zone"] or "-",
        join_text(state_text(host["health"]), _host_remarks(host)),
        str(len(host["vms"])),
    ]


def _host_remarks(host: JsonObject) -> str:
    """What else is known about the host: `, unreachable`, `, confirmed down`; "" for nothing."""
    remarks = {"unreachable": host["unreachable"], "confirmed down": host["confirmed_down"]}
    return "".join(f", {remark}" for remark, holds in remarks.items() if holds)


def _vm_row(vm: JsonObject, lab: bool) -> list[Cell]:
    row: list[Cell] = [
        bold(vm["name"]),
        _scope_text(vm),
        str(vm["update_domain"]),
        vm["host"] or "-",
        state_text(vm["power"]),
        str(vm["pending"] or "-"),
        _silence_text(vm),
    ]
    return [*row, _endpoint_text(vm)] if lab else row


def _scope_text(vm: JsonObject) -> str:
    """The scope in the short form that `--scope` accepts; "alone" for a VM that is in no set."""
    return "alone" if vm["scope"].startswith("vm:") else scope_name_from_id(vm["scope"])


def _endpoint_text(vm: JsonObject) -> str:
    """Address and port in the short form that `guest --endpoint` accepts."""
    return str(vm["url"] or "-").removeprefix("http://").partition("/")[0]


def _print_vm(call: Invocation, vm: JsonObject) -> None:
    now = call.api.now()
    call.output.print_line(bold(vm["name"]))
    call.output.print_facts((name, value) for name, value in _vm_facts(vm, now) if str(value))
    if vm.get("events"):
        call.output.print_line()
        call.output.print_table(EVENT_HEADERS, [event_row(e, now, call.output.short_id(e["id"])) for e in vm["events"]])


def _vm_facts(vm: JsonObject, now: float) -> Iterator[tuple[str, Cell]]:
    yield "resource group", vm["resource_group"]
    yield "location", f"{vm['location']}, zone {vm['zone']}" if vm["zone"] else vm["location"]
    yield "scope", scope_name_from_id(vm["scope"])
    yield "domains", f"update domain {vm['update_domain']}, fault domain {vm['fault_domain']}"
    yield "host", vm["host"] or ""
    yield "power", state_text(vm["power"])
    yield "size", vm["size"] or ""
    if vm["priority"] == "Spot":
        yield "priority", f"Spot, {vm['eviction_policy']} on eviction"
    if vm["terminate_notice_min"]:
        yield "notice of deletion", f"{vm['terminate_notice_min']} minutes"
    if vm.get("narrow_delivery"):
        yield "delivery", "only the events that affect it"
    yield "last poll", _polling_text(vm, now)
    yield "endpoint", vm["url"] or vm["address"] or ""
    yield "tags", join_names([f"{name}={value}" for name, value in vm["tags"].items()]) if vm["tags"] else ""


def _silence_text(vm: JsonObject) -> str:
    """How long ago the VM last polled, in real time, which `forewarn clock advance` does not move."""
    return "never" if vm["silent_s"] is None else relative_time(-vm["silent_s"], 0.0, units=1)


def _polling_text(vm: JsonObject, now: float) -> str:
    if vm["last_polled_at"] is None:
        return "never"
    return (
        f"{clock_time(vm['last_polled_at'], now)} ({_silence_text(vm)}), api-version {vm['polled_version']}, "
        f"{count_noun(vm['polls'], 'time')}"
    )


def _print_host(call: Invocation, host: JsonObject, what: str) -> None:
    if call.output.as_json:
        call.output.print_json(host)
    else:
        call.output.print_line(f"Host {host['name']} in {host['location']} is {what}.")
