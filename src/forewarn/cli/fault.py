"""Commands for faults: set, list and clear them, and start a seeded storm of them."""

from __future__ import annotations

import re

import click

from forewarn.base.duration import format_duration, parse_duration
from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import fault_ids, fault_kinds, scope_ids, vm_names
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import Cell, bold, count_noun, describe_time, dim
from forewarn.errors import Rejected

_NUMERIC_PARAMETERS = frozenset({"events"})  # parameters that are numbers; all others are durations


@click.group()
def fault() -> None:
    """Inject faults that clients must handle, and clear them."""


@fault.command("list")
@click.option("--kinds", is_flag=True, help="Show every kind of fault, and what a client sees.")
@service_command
def list_faults(call: Invocation, kinds: bool) -> None:
    """Show the active faults."""
    view = call.api.get("faults")
    if call.output.as_json:
        call.output.print_json(view)
    elif kinds:
        _print_fault_kinds(call, view["kinds"])
    else:
        _print_faults(call, view)


@fault.command("set")
@click.argument("kind", metavar="KIND", shell_complete=fault_kinds)
@click.argument("parameters", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Apply to this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Apply to the VMs of this scope.")
@click.option("--all", "every", is_flag=True, help="Apply to every VM.")
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="Limit to the next N requests or events; with workers, simultaneous requests may exceed N.",
)
@click.option("--for", "duration_s", type=duration, metavar="DURATION", help="End after this time, such as 70s.")
@service_command
def set_fault(
    call: Invocation,
    kind: str,
    parameters: tuple[str, ...],
    vm: str | None,
    scope: str | None,
    every: bool,
    count: int | None,
    duration_s: float | None,
) -> None:
    """Set a fault.

    Without --count and --for it stays until it is cleared, except that `gone` ends after 70s at the latest, and that
    several-at-once, several-update-domains, neighbour-only and incarnation-reset happen once, at once, and take neither
    option. Give parameters as NAME=VALUE, such as notice=5s; `forewarn fault list --kinds` shows them.
    """
    if [vm is not None, scope is not None, every].count(True) != 1:
        raise Rejected("a fault applies to a VM, a scope or every VM: give one of --vm, --scope and --all")
    given = {"vm": vm, "scope": scope, "all": every or None, "count": count, "duration_s": duration_s}
    body: JsonObject = {name: value for name, value in given.items() if value is not None}
    body |= {"kind": kind, "parameters": dict(map(_parse_parameter, parameters))}
    try:
        view = call.api.post("faults", body=body)
    except Rejected as error:
        raise Rejected(_with_typed_names(str(error))) from error
    _print_fault(call, view)


@fault.command("clear")
@click.argument("ids", metavar="[FAULT]...", nargs=-1, shell_complete=fault_ids)
@click.option("--kind", metavar="KIND", shell_complete=fault_kinds, help="Clear only faults of this kind.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Clear only faults of this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Clear only faults of this scope.")
@click.option("--all", "every", is_flag=True, help="Clear all faults and storms.")
@service_command
def clear_faults(
    call: Invocation, ids: tuple[str, ...], kind: str | None, vm: str | None, scope: str | None, every: bool
) -> None:
    """Clear faults and storms, by id or by target."""
    if not ids and not every and kind is None and vm is None and scope is None:
        raise Rejected("no fault is selected: give ids, or --kind, --vm, --scope or --all")
    given = {"ids": list(ids) or None, "kind": kind, "vm": vm, "scope": scope, "all": every or None}
    body = {name: value for name, value in given.items() if value is not None}
    _print_cleared(call, call.api.post("faults", "clear", body=body))


@fault.command()
@click.option(
    "--seed",
    type=click.IntRange(0, 2**53),
    required=True,
    metavar="N",
    help="Choose the storm: the same seed gives the same one.",
)
@click.option(
    "--vm",
    "vms",
    multiple=True,
    metavar="VM",
    shell_complete=vm_names,
    help="Apply to this VM; repeatable.  [default: all]",
)
@click.option(
    "--for",
    "duration_s",
    type=duration,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="End after this time.",
)
@service_command
def storm(call: Invocation, seed: int, vms: tuple[str, ...], duration_s: float) -> None:
    """Start a storm: a mix of faults that a seed determines."""
    body = {"seed": seed, "vms": list(vms), "duration_s": duration_s}
    _print_storm(call, call.api.post("faults", "storm", body=body))


def _parse_parameter(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Rejected(f"parameter {text!r} has no NAME=VALUE form: write it like notice=5s")
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise Rejected(f"parameter {name!r}: {error}") from error
    key = name.strip().replace("-", "_").removesuffix("_s")
    return (key if key in _NUMERIC_PARAMETERS else f"{key}_s"), seconds


def _with_typed_names(sentence: str) -> str:
    """The message with `take_s`, the API's name of a parameter, as `take`, the name on the command line."""
    return re.sub(r"'([a-z_]+)_s'", lambda name: repr(name[1].replace("_", "-")), sentence)


_NO_FAULTS = "No fault is active. `forewarn fault list --kinds` shows the kinds of faults."


def _print_faults(call: Invocation, view: JsonObject) -> None:
    faults, storms = view["faults"], view["storms"]
    if not faults and not storms:
        call.output.print_line(_NO_FAULTS)
        return
    now = call.api.now()
    if faults:
        call.output.print_table(
            ("fault", "kind", "target", "left", "affected", "set"), [_fault_row(fault, now) for fault in faults]
        )
    for storm in storms:
        call.output.print_line()
        _print_storm_table(call, storm, now)


def _fault_row(fault: JsonObject, now: float) -> list[Cell]:
    return [
        bold(fault["id"]),
        f"{fault['kind']}{_parameters_text(fault['parameters'])}",
        fault["target"],
        _remaining(fault),
        _touched_count(fault),
        describe_time(fault["set_at"], now),
    ]


def _parameters_text(parameters: JsonObject) -> str:
    texts = [_parameter_text(name, value) for name, value in parameters.items()]
    return f" ({', '.join(texts)})" if texts else ""


def _parameter_text(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', '-')}={format_duration(value).replace(' ', '')}"
    return f"{name}={value:g}"


def _remaining(fault: JsonObject) -> str:
    parts = [] if fault["remaining"] is None else [f"{fault['remaining']} of {fault['count']}"]
    parts += [] if fault["remaining_s"] is None else [format_duration(fault["remaining_s"])]
    return ", ".join(parts) or "until cleared"


def _touched_count(fault: JsonObject) -> str:
    return count_noun(fault["applied"], "request" if fault["category"] == "requests" else "event")


def _print_fault(call: Invocation, fault: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(fault)
        return
    what = f"Fault {fault['id']}, {fault['kind']}{_parameters_text(fault['parameters'])},"
    seen = f"A client sees: {fault['symptom']}."
    if fault["category"] == "at once":
        call.output.print_line(bold(what), f" has happened to {fault['target']}. {seen}")
        return
    call.output.print_line(bold(what), f" is active for {fault['target']}; left: {_remaining(fault)}. {seen}")
    call.output.print_hints(
        [(f"forewarn fault clear {fault['id']}", "clear it"), ("forewarn fault list", "show active faults")]
    )


def _print_cleared(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    for storm in view["storms"]:
        call.output.print_line(
            f"Storm {storm['id']} is cleared; faults that it has set stay until they end or are cleared."
        )
    for fault in view["cleared"]:
        call.output.print_line(
            f"Fault {fault['id']} ({fault['kind']}) of {fault['target']} is cleared: {_touched_count(fault)}."
        )
    if not view["storms"] and not view["cleared"]:
        call.output.print_line("No such fault is active.")


def _print_storm(call: Invocation, storm: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(storm)
    else:
        _print_storm_table(call, storm, call.api.now())


def _print_storm_table(call: Invocation, storm: JsonObject, now: float) -> None:
    since = describe_time(storm["set_at"], now)
    call.output.print_line(
        bold(f"Storm {storm['id']}"), f", seed {storm['seed']}, {format_duration(storm['duration_s'])}, from {since}"
    )
    headers = ("after", "fault", "VM", "lasts", "set")
    call.output.print_table(headers, [_storm_row(step) for step in storm["faults"]])


def _storm_row(step: JsonObject) -> list[Cell]:
    lasts = [] if step["count"] is None else [count_noun(step["count"], "time")]
    lasts += [] if step["duration_s"] is None else [format_duration(step["duration_s"])]
    is_set = dim("yes") if step["is_set"] else "no"
    what = f"{step['kind']}{_parameters_text(step['parameters'])}"
    return [format_duration(step["after_s"]), what, step["vm"], ", ".join(lasts) or "at once", is_set]


def _print_fault_kinds(call: Invocation, kinds: list[JsonObject]) -> None:
    rows: list[list[Cell]] = [
        [bold(kind["kind"]), kind["category"], _parameter_ranges(kind), kind["symptom"]] for kind in kinds
    ]
    call.output.print_table(("kind", "affects", "parameters", "a client sees"), rows)


def _parameter_ranges(kind: JsonObject) -> str:
    ranges = [
        f"{_parameter_text(name, value['default'])}, up to {_parameter_text(name, value['maximum']).partition('=')[2]}"
        for name, value in kind["parameters"].items()
    ]
    return "; ".join(ranges) or "-"
