"""Commands for faults: set, list and clear them, and play a seeded storm of them."""

from __future__ import annotations

import re

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import fault_ids, fault_kinds, scope_ids, vm_names
from forewarn.cli.formatting import count_noun, describe_time
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import Cell, bold, dim
from forewarn.duration import format_duration, parse_duration
from forewarn.errors import Rejected

_NUMERIC_PARAMETERS = frozenset({"events"})  # parameters that are numbers; all others are durations


@click.group()
def fault() -> None:
    """Set faults that clients must live with, and clear them."""


@fault.command("list")
@click.option("--kinds", is_flag=True, help="Every kind there is, and how a client sees it.")
@service_command
def list_faults(call: Invocation, kinds: bool) -> None:
    """Show what is on."""
    view = call.api.get("faults")
    if call.output.as_json:
        call.output.print_json(view)
    elif kinds:
        print_fault_kinds(call, view["kinds"])
    else:
        print_faults(call, view)


@fault.command("set")
@click.argument("kind", metavar="KIND", shell_complete=fault_kinds)
@click.argument("parameters", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="For this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="For the VMs of this scope.")
@click.option("--all", "every", is_flag=True, help="For every VM.")
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="The next so many requests or events; with workers, a few more that come at one moment.",
)
@click.option("--for", "for_s", type=duration, metavar="DURATION", help="For so long, such as 70s.")
@service_command
def set_fault(
    call: Invocation,
    kind: str,
    parameters: tuple[str, ...],
    vm: str | None,
    scope: str | None,
    every: bool,
    count: int | None,
    for_s: float | None,
) -> None:
    """Set a fault.

    Without --count and --for it stays until it is cleared. Parameters are given as
    NAME=VALUE, such as notice=5s; `forewarn fault list --kinds` shows which there are.
    """
    if [vm is not None, scope is not None, every].count(True) != 1:
        raise Rejected("a fault is for a VM, a scope or everything: give one of --vm, --scope and --all")
    given = {"vm": vm, "scope": scope, "all": every or None, "count": count, "for_s": for_s}
    body: JsonObject = {name: value for name, value in given.items() if value is not None}
    body |= {"kind": kind, "parameters": dict(map(_parse_parameter, parameters))}
    try:
        view = call.api.post("faults", body=body)
    except Rejected as error:
        raise Rejected(_with_typed_names(str(error))) from error
    print_fault(call, view)


@fault.command("clear")
@click.argument("ids", metavar="[FAULT]...", nargs=-1, shell_complete=fault_ids)
@click.option("--kind", metavar="KIND", shell_complete=fault_kinds, help="Only those of this kind.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Only those for this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Only those for this scope.")
@click.option("--all", "every", is_flag=True, help="All of them, and storms too.")
@service_command
def clear_faults(
    call: Invocation, ids: tuple[str, ...], kind: str | None, vm: str | None, scope: str | None, every: bool
) -> None:
    """Clear faults and storms, by their ids or by what they are for."""
    if not ids and not every and kind is None and vm is None and scope is None:
        raise Rejected("nothing says which faults to clear: name them, or give --kind, --vm, --scope or --all")
    given = {"ids": list(ids) or None, "kind": kind, "vm": vm, "scope": scope, "all": every or None}
    body = {name: value for name, value in given.items() if value is not None}
    print_cleared(call, call.api.post("faults", "clear", body=body))


@fault.command()
@click.option("--seed", type=click.IntRange(0, 2**53), required=True, metavar="N", help="Same seed, same storm.")
@click.option("--vm", "vms", multiple=True, metavar="VM", shell_complete=vm_names, help="Repeat for more; else all.")
@click.option("--for", "for_s", type=duration, default="10m", show_default=True, metavar="DURATION")
@service_command
def storm(call: Invocation, seed: int, vms: tuple[str, ...], for_s: float) -> None:
    """Play a mix of faults that follows from a seed."""
    body = {"seed": seed, "vms": list(vms), "for_s": for_s}
    print_storm(call, call.api.post("faults", "storm", body=body))


def _parse_parameter(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Rejected(f"parameter {text!r} is no NAME=VALUE: write it like notice=5s")
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise Rejected(f"parameter {name!r}: {error}") from error
    spelled = name.strip().replace("-", "_").removesuffix("_s")
    return (spelled if spelled in _NUMERIC_PARAMETERS else f"{spelled}_s"), seconds


def _with_typed_names(sentence: str) -> str:
    """The service calls a duration `take_s`; who types `take=9m` knows it as `take`."""
    return re.sub(r"'([a-z_]+)_s'", lambda name: repr(name[1].replace("_", "-")), sentence)


_NO_FAULTS = "No fault is on. `forewarn fault list --kinds` shows what there is."


def print_faults(call: Invocation, view: JsonObject) -> None:
    faults, storms = view["faults"], view["storms"]
    if not faults and not storms:
        call.output.print_line(_NO_FAULTS)
        return
    now = call.api.now()
    if faults:
        call.output.print_table(
            ("fault", "kind", "for", "left", "touched", "set"), [_fault_row(fault, now) for fault in faults]
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
    told = [_parameter_text(name, value) for name, value in parameters.items()]
    return f" ({', '.join(told)})" if told else ""


def _parameter_text(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', '-')}={format_duration(value).replace(' ', '')}"
    return f"{name}={value:g}"


def _remaining(fault: JsonObject) -> str:
    parts = [] if fault["left"] is None else [f"{fault['left']} of {fault['count']}"]
    parts += [] if fault["left_s"] is None else [format_duration(fault["left_s"])]
    return ", ".join(parts) or "until cleared"


def _touched_count(fault: JsonObject) -> str:
    return count_noun(fault["touched"], "request" if fault["strikes"] == "requests" else "event")


def print_fault(call: Invocation, fault: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(fault)
        return
    what = f"Fault {fault['id']}, {fault['kind']}{_parameters_text(fault['parameters'])},"
    seen = f"A client sees: {fault['seen']}."
    if fault["strikes"] == "at once":
        call.output.print_line(bold(what), f" has happened to {fault['target']}. {seen}")
        return
    call.output.print_line(bold(what), f" is on for {fault['target']}; left: {_remaining(fault)}. {seen}")
    call.output.print_hints([(f"forewarn fault clear {fault['id']}", "end it"), ("forewarn fault list", "what is on")])


def print_cleared(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    for storm in view["storms"]:
        call.output.print_line(
            f"Storm {storm['id']} is cleared; what it has set runs out by itself, or is cleared too."
        )
    for fault in view["cleared"]:
        call.output.print_line(
            f"Fault {fault['id']} ({fault['kind']}) of {fault['target']} is cleared: {_touched_count(fault)}."
        )
    if not view["storms"] and not view["cleared"]:
        call.output.print_line("No such fault is on.")


def print_storm(call: Invocation, storm: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(storm)
    else:
        _print_storm_table(call, storm, call.api.now())


def _print_storm_table(call: Invocation, storm: JsonObject, now: float) -> None:
    since = describe_time(storm["set_at"], now)
    call.output.print_line(
        bold(f"Storm {storm['id']}"), f", seed {storm['seed']}, {format_duration(storm['for_s'])}, from {since}"
    )
    headers = ("after", "fault", "VM", "lasts", "set")
    call.output.print_table(headers, [_storm_row(gust) for gust in storm["gusts"]])


def _storm_row(gust: JsonObject) -> list[Cell]:
    lasts = [] if gust["count"] is None else [count_noun(gust["count"], "time")]
    lasts += [] if gust["for_s"] is None else [format_duration(gust["for_s"])]
    is_set = dim("yes") if gust["is_set"] else "no"
    what = f"{gust['kind']}{_parameters_text(gust['parameters'])}"
    return [format_duration(gust["after_s"]), what, gust["vm"], ", ".join(lasts) or "at once", is_set]


def print_fault_kinds(call: Invocation, kinds: list[JsonObject]) -> None:
    rows: list[list[Cell]] = [
        [bold(kind["kind"]), kind["strikes"], _parameter_ranges(kind), kind["seen"]] for kind in kinds
    ]
    call.output.print_table(("kind", "strikes", "parameters", "a client sees"), rows)


def _parameter_ranges(kind: JsonObject) -> str:
    told = [
        f"{_parameter_text(name, value['default'])}, up to {_parameter_text(name, value['most']).partition('=')[2]}"
        for name, value in kind["parameters"].items()
    ]
    return "; ".join(told) or "-"
