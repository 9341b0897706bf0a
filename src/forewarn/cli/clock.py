"""Commands for the service's clock; only a lab's can be advanced or run at another speed."""

from __future__ import annotations

import click

from forewarn.base.duration import format_duration
from forewarn.cli.api_client import JsonObject
from forewarn.cli.follow import print_entries
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import bold, clock_time, count_noun, dim

_ADVANCE_TIMEOUT_S = 3600.0


@click.group()
def clock() -> None:
    """Show the service's clock, or change a lab's."""


@clock.command()
@service_command
def show(call: Invocation) -> None:
    """Show the time."""
    _print_clock(call, call.api.get("clock"))


@clock.command()
@click.argument("by", type=duration, metavar="DURATION")
@click.option("--without-polls", is_flag=True, help="Let scopes become idle, even if their VMs poll now.")
@service_command
def advance(call: Invocation, by: float, without_polls: bool) -> None:
    """Advance a lab's clock, running everything that becomes due.

    VMs that polled within the last minutes count as polling throughout. To see how a scope is disabled after 24 hours
    without polls, start the lab with `forewarn up --enablement on-request`, and add --without-polls here.
    """
    body: dict[str, object] = {"by_s": by, **({"without_polls": True} if without_polls else {})}
    view = call.api.post("clock", "advance", body=body, timeout_s=_ADVANCE_TIMEOUT_S)
    if call.output.as_json:
        call.output.print_json(view)
        return
    if view["entries_omitted"]:
        call.output.print_line(
            dim(f"{count_noun(view['entries_omitted'], 'earlier entry', 'earlier entries')} left out")
        )
    print_entries(call, view["entries"], view["now"])
    by_text = format_duration(by, units=4)
    call.output.print_line(dim(f"{by_text} later: "), _time_text(view))
    if view["note"]:
        call.output.print_line(f"{view['note'][:1].upper()}{view['note'][1:]}.")
        shown = by_text.replace(" ", "")
        remedy = "up --enablement on-request" if without_polls else f"clock advance {shown} --without-polls"
        call.output.print_hints([(f"forewarn {remedy}", "let scopes become idle")])


def _speed_factor(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise click.BadParameter(f"{text!r} is not a factor: write a number such as 60, 1 for real time, or 0 to stop")
    return number


@clock.command(context_settings={"ignore_unknown_options": True})
@click.argument("speed", type=_speed_factor, metavar="FACTOR")
@service_command
def speed(call: Invocation, speed: float) -> None:
    """Run a lab's clock FACTOR times as fast as real time; 0 stops it."""
    _print_clock(call, call.api.post("clock", "speed", body={"speed": speed}))


def _print_clock(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line(bold(_time_text(view)), dim(_speed_text(view)))


def _time_text(view: JsonObject) -> str:
    return clock_time(view["now"], view["now"], dated=True)


def _speed_text(view: JsonObject) -> str:
    if not view["lab"]:
        return "  real time: only a lab's clock can be changed"
    if view["speed"] == 0:
        return "  lab time, stopped"
    return "  lab time" if view["speed"] == 1 else f"  lab time, {view['speed']:g} times as fast as real time"
