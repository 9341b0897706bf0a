"""Commands that give the VMs of this host the metadata address: `network plan`, `apply` and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.invocation import CommandFunction, Invocation, service_command
from forewarn.cli.output import bold, count_noun, dim
from forewarn.errors import ForewarnError, Unavailable

if TYPE_CHECKING:
    from forewarn.machines.guest_network.apply import ApplyOutcome, ReadInterfaces
    from forewarn.machines.guest_network.plan import NetworkPlan
    from forewarn.machines.guest_network.sources import InterfaceSources, NamedInterfaces

_FLEET_TIMEOUT_S = 5.0
_STATE_OPTION = click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Record what was changed in this file.  [default: /run/forewarn/network.json]",
)


@click.group()
def network() -> None:
    """Give the VMs of this host 169.254.169.254."""


def _source_options(function: CommandFunction) -> CommandFunction:
    options = (
        click.option("--tap", "taps", multiple=True, metavar="VM=DEVICE", help="Name a VM's routed tap; repeatable."),
        click.option(
            "--port",
            "ports",
            multiple=True,
            metavar="VM=DEVICE,mac=MAC,ip=ADDRESS",
            help="Name a VM's bridge port; repeatable.",
        ),
        click.option(
            "--libvirt", "uris", multiple=True, metavar="URI", help="Add the running domains of this libvirt."
        ),
        click.option(
            "--file", type=click.Path(path_type=Path), metavar="FILE", help="Add the [[interfaces]] of a TOML file."
        ),
        _STATE_OPTION,
    )
    for option in reversed(options):
        function = option(function)
    return function


@network.command()
@_source_options
@click.option("--listeners", is_flag=True, help="Print only the [[listeners]] for the settings file.")
@click.option("--ruleset", is_flag=True, help="Print only the nftables rules.")
@service_command
def plan(call: Invocation, listeners: bool, ruleset: bool, **options: Any) -> None:
    """Show what apply would set, and change nothing."""
    from forewarn.machines.guest_network.apply import plan_here
    from forewarn.machines.guest_network.plan import listener_tables, render_listeners
    from forewarn.machines.guest_network.ruleset import render_ruleset

    named = _reader(call, options)(False)
    planned = plan_here(named, _state_file(options), with_firewall=False)
    if call.output.as_json:
        call.output.print_json(_plan_view(planned, named))
    elif listeners:
        click.echo(render_listeners(listener_tables(planned)), nl=False)
    elif ruleset:
        click.echo(render_ruleset(planned.elements), nl=False)
    else:
        _print_plan(call, planned, named)


@network.command()
@_source_options
@click.option("--replace", "replace_earlier", is_flag=True, help="Drop VMs of an earlier plan that this one omits.")
@click.option("--follow", is_flag=True, help="Keep running, and apply again when devices come and go.")
@service_command
def apply(call: Invocation, replace_earlier: bool, follow: bool, **options: Any) -> None:
    """Set the firewall, addresses and routes for the VMs.

    It changes only what differs, and notes it, so that `forewarn network remove` restores this host.
    """
    from forewarn.machines.guest_network.apply import apply_plan, follow_devices
    from forewarn.machines.guest_network.record import exclusive_access, require_root

    require_root("forewarn network apply")
    read, state_file = _reader(call, options), _state_file(options)
    with exclusive_access(state_file):
        if not follow:
            named = read(False)
            outcome = apply_plan(named, state_file, replace_earlier=replace_earlier)
            _print_notes(call, named.notes, outcome.plan.warnings)
            _print_outcome(call, outcome)
            return
        follow_devices(
            read,
            state_file,
            replace_earlier=replace_earlier,
            on_change=lambda outcome: _print_outcome(call, outcome),
            on_error=lambda error: call.output.print_note(f"{error}; trying again"),
        )


@network.command()
@_source_options
@service_command
def check(call: Invocation, **options: Any) -> int:
    """Compare this host with the plan.

    Exits with 1 if something differs.
    """
    from forewarn.machines.guest_network.apply import compare_here
    from forewarn.machines.guest_network.record import require_root

    require_root("forewarn network check")
    named = _reader(call, options)(False)
    outcome = compare_here(named, _state_file(options))
    differences = [*outcome.differences, *_listener_differences(call, outcome.plan)]
    if call.output.as_json:
        call.output.print_json({"differences": differences, "warnings": [*named.notes, *outcome.plan.warnings]})
        return 1 if differences else 0
    _print_notes(call, named.notes, outcome.plan.warnings)
    for difference in differences:
        call.output.print_line(difference)
    if not differences:
        call.output.print_line(f"this host matches the plan for {_count_interfaces(outcome.plan)}")
    return 1 if differences else 0


@network.command()
@_STATE_OPTION
@service_command
def remove(call: Invocation, state: Path | None) -> None:
    """Remove what apply has set, and restore this host."""
    from forewarn.machines.guest_network.apply import remove_plan
    from forewarn.machines.guest_network.record import exclusive_access, require_root

    require_root("forewarn network remove")
    state_file = _state_file({"state": state})
    with exclusive_access(state_file):
        is_removed = remove_plan(state_file)
    if call.output.as_json:
        call.output.print_json({"removed": is_removed})
        return
    call.output.print_line("removed: this host is as it was before" if is_removed else "nothing is applied here")


def _state_file(options: dict[str, Any]) -> Path:
    from forewarn.machines.guest_network.record import DEFAULT_STATE_FILE

    return options["state"] or DEFAULT_STATE_FILE


def _reader(call: Invocation, options: dict[str, Any]) -> ReadInterfaces:
    from forewarn.machines.guest_network.interfaces import Attachment, parse_option
    from forewarn.machines.guest_network.sources import InterfaceSources

    given = [parse_option(text, Attachment.TAP) for text in options["taps"]]
    given += [parse_option(text, Attachment.PORT) for text in options["ports"]]
    sources = InterfaceSources(given=tuple(given), file=options["file"], libvirt_uris=tuple(options["uris"]))
    return lambda reuse_domains: _check_with_fleet(call, sources.read(reuse_domains=reuse_domains), sources)


def _check_with_fleet(call: Invocation, named: NamedInterfaces, sources: InterfaceSources) -> NamedInterfaces:
    from forewarn.machines.guest_network.sources import select_fleet_vms

    try:
        vms: list[JsonObject] = call.api.get("fleet", timeout_s=_FLEET_TIMEOUT_S)["vms"]
    except Unavailable:
        return named
    names = [form for vm in vms for form in (vm["name"], f"{vm['resource_group']}/{vm['name']}", vm["key"])]
    uris = named.sources - ({str(sources.file.absolute())} if sources.file else set())
    return select_fleet_vms(named, names, uris)


def _listener_differences(call: Invocation, planned: NetworkPlan) -> list[str]:
    from forewarn.machines.guest_network.plan import listener_tables
    from forewarn.metadata.listener_config import parse_listeners

    try:
        listed: list[JsonObject] = call.api.get("service", timeout_s=_FLEET_TIMEOUT_S)["listeners"]
    except ForewarnError:
        return []
    states = {listener["name"]: listener["open"] for listener in listed if "name" in listener}
    lines = []
    for spec in parse_listeners(listener_tables(planned)):
        if spec.name not in states:
            lines.append(f"the service has no listener {spec.name}: add it to the settings, and restart the service")
        elif not states[spec.name]:
            lines.append(f"the service does not listen on {spec.name} yet: its log says why")
    return lines


def _plan_view(planned: NetworkPlan, named: NamedInterfaces) -> JsonObject:
    from forewarn.machines.guest_network.apply import RULE_PRIORITY
    from forewarn.machines.guest_network.plan import listener_tables, render_listeners, sysctl_name
    from forewarn.machines.guest_network.ruleset import METADATA_ADDRESS, render_ruleset

    tables = listener_tables(planned)
    return {
        "interfaces": [
            {
                "vm": each.interface.vm,
                "device": each.interface.device,
                "attachment": each.interface.attachment,
                "bridge": each.bridge,
                "mac": each.interface.mac,
                "addresses": list(each.interface.addresses),
                "mark": each.mark,
                "exists": each.link is not None,
            }
            for each in planned.interfaces
        ],
        "address": f"{METADATA_ADDRESS}/32",
        "sysctls": {sysctl_name(path): value for path, value in planned.sysctls.items()},
        "rules": [{"priority": RULE_PRIORITY, "mark": mark, "table": table} for mark, table in sorted(planned.rules)],
        "routes": [{"table": table, "device": device} for table, device in sorted(planned.routes)],
        "ruleset": render_ruleset(planned.elements),
        "listeners": tables,
        "settings": render_listeners(tables),
        "missing": list(planned.missing),
        "warnings": [*named.notes, *planned.warnings],
    }


def _print_plan(call: Invocation, planned: NetworkPlan, named: NamedInterfaces) -> None:
    view, output = _plan_view(planned, named), call.output
    rows = [
        [
            bold(each["vm"]),
            f"{each['attachment']} {each['device']}" + (f" of {each['bridge']}" if each["bridge"] else ""),
            each["mac"] or "-",
            ", ".join(each["addresses"]) or "-",
            _identification(each),
            "yes" if each["exists"] else "not yet",
        ]
        for each in view["interfaces"]
    ]
    output.print_table(("VM", "interface", "MAC", "addresses", "identified by", "exists"), rows)
    output.print_line()
    output.print_line(dim("address, unless a device already has it"))
    output.print_line(f"  ip addr add {view['address']} dev lo")
    output.print_line(dim("kernel settings"))
    for name, value in view["sysctls"].items():
        output.print_line(f"  sysctl -w {name}={value}")
    if view["rules"]:
        output.print_line(dim("routes, so that VMs are refused at once while no service listens"))
    for rule in view["rules"]:
        output.print_line(f"  ip rule add fwmark {rule['mark']:#x} lookup {rule['table']} pref {rule['priority']}")
    for route in view["routes"]:
        output.print_line(f"  ip route add default dev {route['device']} table {route['table']}")
    output.print_line(dim("firewall: tables bridge forewarn_network and ip forewarn_network"))
    if view["settings"]:
        output.print_line(dim("listeners, for the service's settings file"))
    for line in view["settings"].splitlines():
        output.print_line(f"  {line}" if line else "")
    _print_notes(call, named.notes, planned.warnings)
    output.print_hints(
        [
            ("forewarn network plan --ruleset …", "show the firewall's rules"),
            ("forewarn network apply …", "apply it, as root, with the same options"),
        ]
    )


def _identification(interface: JsonObject) -> str:
    if interface["attachment"] == "tap":
        return f"device {interface['device']}"
    return f"mark {interface['mark']:#x}" if interface["mark"] else "a mark, once it is in a bridge"


def _print_notes(call: Invocation, *groups: tuple[str, ...]) -> None:
    for group in groups:
        for note in group:
            call.output.print_note(note)


def _print_outcome(call: Invocation, outcome: ApplyOutcome) -> None:
    if call.output.as_json:
        view = {"changes": list(outcome.differences), "missing": list(outcome.plan.missing)}
        call.output.print_json({**view, "warnings": list(outcome.plan.warnings)})
        return
    for difference in outcome.differences:
        call.output.print_line(dim(f"corrected: {difference}"))
    for missing in outcome.plan.missing:
        call.output.print_line(f"{missing}; waiting for it")
    changed = count_noun(len(outcome.differences), "difference")
    done = f"{changed} corrected" if outcome.differences else "nothing to change"
    call.output.print_line(f"{done}: this host matches the plan for {_count_interfaces(outcome.plan)}")


def _count_interfaces(planned: NetworkPlan) -> str:
    return count_noun(len(planned.interfaces), "interface")
