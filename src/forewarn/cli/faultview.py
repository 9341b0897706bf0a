"""Faults and storms as people see them."""

from __future__ import annotations

from forewarn.cli.connection import View
from forewarn.cli.duration import span
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, strong
from forewarn.cli.wording import counted

_NONE = "No fault is on. `forewarn fault list --kinds` shows what there is."


def show_faults(call: Invocation, view: View) -> None:
    faults, storms = view["faults"], view["storms"]
    if not faults and not storms:
        call.screen.say(_NONE)
        return
    now = call.api.now()
    if faults:
        call.screen.table(("fault", "kind", "for", "left", "touched", "set"), [_row(fault, now) for fault in faults])
    for storm in storms:
        call.screen.say()
        _tell_storm(call, storm, now)


def _row(fault: View, now: float) -> list[Cell]:
    return [
        strong(fault["id"]),
        f"{fault['kind']}{_values(fault['parameters'])}",
        fault["target"],
        _left(fault),
        _touched(fault),
        when(fault["set_at"], now),
    ]


def _values(parameters: View) -> str:
    told = [_value(name, value) for name, value in parameters.items()]
    return f" ({', '.join(told)})" if told else ""


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', '-')}={span(value).replace(' ', '')}"
    return f"{name}={value:g}"


def _left(fault: View) -> str:
    parts = [] if fault["left"] is None else [f"{fault['left']} of {fault['count']}"]
    parts += [] if fault["left_s"] is None else [span(fault["left_s"])]
    return ", ".join(parts) or "until cleared"


def _touched(fault: View) -> str:
    return counted(fault["touched"], "request" if fault["strikes"] == "requests" else "event")


def show_fault(call: Invocation, fault: View) -> None:
    if call.screen.as_json:
        call.screen.document(fault)
        return
    what = f"Fault {fault['id']}, {fault['kind']}{_values(fault['parameters'])},"
    seen = f"A client sees: {fault['seen']}."
    if fault["strikes"] == "at once":
        call.screen.say(strong(what), f" has happened to {fault['target']}. {seen}")
        return
    call.screen.say(strong(what), f" is on for {fault['target']}; left: {_left(fault)}. {seen}")
    call.screen.hints([(f"forewarn fault clear {fault['id']}", "end it"), ("forewarn fault list", "what is on")])


def show_cleared(call: Invocation, view: View) -> None:
    if call.screen.as_json:
        call.screen.document(view)
        return
    for storm in view["storms"]:
        call.screen.say(f"Storm {storm['id']} is cleared; what it has set runs out by itself, or is cleared too.")
    for fault in view["cleared"]:
        call.screen.say(f"Fault {fault['id']} ({fault['kind']}) of {fault['target']} is cleared: {_touched(fault)}.")
    if not view["storms"] and not view["cleared"]:
        call.screen.say("No such fault is on.")


def show_storm(call: Invocation, storm: View) -> None:
    if call.screen.as_json:
        call.screen.document(storm)
    else:
        _tell_storm(call, storm, call.api.now())


def _tell_storm(call: Invocation, storm: View, now: float) -> None:
    since = when(storm["set_at"], now)
    call.screen.say(strong(f"Storm {storm['id']}"), f", seed {storm['seed']}, {span(storm['for_s'])}, from {since}")
    headers = ("after", "fault", "VM", "lasts", "set")
    call.screen.table(headers, [_gust_row(gust) for gust in storm["gusts"]])


def _gust_row(gust: View) -> list[Cell]:
    lasts = [] if gust["count"] is None else [counted(gust["count"], "time")]
    lasts += [] if gust["for_s"] is None else [span(gust["for_s"])]
    is_set = faint("yes") if gust["is_set"] else "no"
    what = f"{gust['kind']}{_values(gust['parameters'])}"
    return [span(gust["after_s"]), what, gust["vm"], ", ".join(lasts) or "at once", is_set]


def show_kinds(call: Invocation, kinds: list[View]) -> None:
    rows: list[list[Cell]] = [[strong(kind["kind"]), kind["strikes"], _ranges(kind), kind["seen"]] for kind in kinds]
    call.screen.table(("kind", "strikes", "parameters", "a client sees"), rows)


def _ranges(kind: View) -> str:
    told = [
        f"{_value(name, value['default'])}, up to {_value(name, value['most']).partition('=')[2]}"
        for name, value in kind["parameters"].items()
    ]
    return "; ".join(told) or "-"
