"""The service's clock: a lab's can be moved ahead and run at any speed."""

from __future__ import annotations

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import duration, span
from forewarn.cli.following import all_since, tell_entries
from forewarn.cli.instant import local
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import faint, strong

_LONG_S = 3600.0


@click.group()
def clock() -> None:
    """Show or move the service's clock."""


@clock.command()
@served
def show(call: Invocation) -> None:
    """Show the time."""
    _show(call, call.api.get("clock"))


@clock.command()
@click.argument("by", type=duration, metavar="DURATION")
@served
def advance(call: Invocation, by: float) -> None:
    """Move a lab's clock ahead, through everything that falls due."""
    seq = call.api.get("history", query={"limit": 1})["seq"]
    view = call.api.post("clock", "advance", body={"by_s": by}, patience_s=_LONG_S)
    entries = [entry for entry in all_since(call, seq) if entry["what"] != "clock"]  # that it moved is known
    if call.screen.as_json:
        call.screen.document({**view, "entries": entries})
        return
    tell_entries(call, entries, view["now"])
    call.screen.say(faint(f"{span(by)} later: "), _sentence(view))


def factor(text: str) -> float:
    """The type of an argument: any number from 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise click.BadParameter(f"{text!r} is not a factor: write a number such as 60, 1 for real time, or 0 to stop")
    return number


@clock.command(context_settings={"ignore_unknown_options": True})
@click.argument("speed", type=factor, metavar="FACTOR")
@served
def speed(call: Invocation, speed: float) -> None:
    """Let a lab's clock run FACTOR times as fast; 0 stops it."""
    _show(call, call.api.post("clock", "speed", body={"speed": speed}))


def _show(call: Invocation, view: View) -> None:
    if call.screen.as_json:
        call.screen.document(view)
    else:
        call.screen.say(strong(_sentence(view)), faint(_manner(view)))


def _sentence(view: View) -> str:
    return f"{local(view['now']):%Y-%m-%d %H:%M:%S}"


def _manner(view: View) -> str:
    if not view["lab"]:
        return "  real time: only a lab's clock can be moved"
    if view["speed"] == 0:
        return "  lab time, standing still"
    return "  lab time" if view["speed"] == 1 else f"  lab time, {view['speed']:g} times as fast as real time"
