"""Faults that real clients have met, on demand: set them, clear them, play a storm of them."""

from __future__ import annotations

import re

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import duration, read_duration
from forewarn.cli.faultview import show_cleared, show_fault, show_faults, show_kinds, show_storm
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.suggestion import fault_ids, fault_kinds, scope_ids, vm_names
from forewarn.errors import Rejected

_PLAIN = frozenset({"events"})  # parameters that are numbers; all others are durations


@click.group()
def fault() -> None:
    """Set faults that clients must live with, and clear them."""


@fault.command("list")
@click.option("--kinds", is_flag=True, help="Every kind there is, and how a client sees it.")
@served
def list_faults(call: Invocation, kinds: bool) -> None:
    """Show what is on."""
    view = call.api.get("faults")
    if call.screen.as_json:
        call.screen.document(view)
    elif kinds:
        show_kinds(call, view["kinds"])
    else:
        show_faults(call, view)


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
@served
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
    body: View = {name: value for name, value in given.items() if value is not None}
    body |= {"kind": kind, "parameters": dict(map(_parameter, parameters))}
    try:
        view = call.api.post("faults", body=body)
    except Rejected as error:
        raise Rejected(_as_typed(str(error))) from error
    show_fault(call, view)


@fault.command("clear")
@click.argument("ids", metavar="[FAULT]...", nargs=-1, shell_complete=fault_ids)
@click.option("--kind", metavar="KIND", shell_complete=fault_kinds, help="Only those of this kind.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Only those for this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Only those for this scope.")
@click.option("--all", "every", is_flag=True, help="All of them, and storms too.")
@served
def clear_faults(
    call: Invocation, ids: tuple[str, ...], kind: str | None, vm: str | None, scope: str | None, every: bool
) -> None:
    """Clear faults and storms, by their ids or by what they are for."""
    if not ids and not every and kind is None and vm is None and scope is None:
        raise Rejected("nothing says which faults to clear: name them, or give --kind, --vm, --scope or --all")
    given = {"ids": list(ids) or None, "kind": kind, "vm": vm, "scope": scope, "all": every or None}
    body = {name: value for name, value in given.items() if value is not None}
    show_cleared(call, call.api.post("faults", "clear", body=body))


@fault.command()
@click.option("--seed", type=click.IntRange(0, 2**53), required=True, metavar="N", help="Same seed, same storm.")
@click.option("--vm", "vms", multiple=True, metavar="VM", shell_complete=vm_names, help="Repeat for more; else all.")
@click.option("--for", "for_s", type=duration, default="10m", show_default=True, metavar="DURATION")
@served
def storm(call: Invocation, seed: int, vms: tuple[str, ...], for_s: float) -> None:
    """Play a mix of faults that follows from a seed."""
    body = {"seed": seed, "vms": list(vms), "for_s": for_s}
    show_storm(call, call.api.post("faults", "storm", body=body))


def _parameter(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Rejected(f"parameter {text!r} is no NAME=VALUE: write it like notice=5s")
    try:
        seconds = read_duration(value)
    except ValueError as error:
        raise Rejected(f"parameter {name!r}: {error}") from error
    spelled = name.strip().replace("-", "_").removesuffix("_s")
    return (spelled if spelled in _PLAIN else f"{spelled}_s"), seconds


def _as_typed(sentence: str) -> str:
    """The service calls a duration `take_s`; who types `take=9m` knows it as `take`."""
    return re.sub(r"'([a-z_]+)_s'", lambda name: repr(name[1].replace("_", "-")), sentence)
