"""The story of a thing: what happened, in order, and how things stand."""

from __future__ import annotations

import click

from forewarn.cli.connection import View
from forewarn.cli.instant import clock_times
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import faint, joined, strong
from forewarn.cli.suggestion import things


@click.command()
@click.argument("thing", metavar="THING", shell_complete=things)
@served
def explain(call: Invocation, thing: str) -> None:
    """Tell what happened to something, why, and what it waits for.

    THING is a VM, an event, a host, a scope (its id, or the name of its set), a rollout or a request.
    """
    story = call.api.get("explain", thing)
    if call.screen.as_json:
        call.screen.document(story)
        return
    now = call.api.now()
    call.screen.say(strong(story["title"]))
    times = clock_times((line["at"] for line in story["lines"] if line.get("at") is not None), now)
    width = max((len(time) for time in times), default=8)
    told = iter(times)
    for line in story["lines"]:
        _tell(call, line, "" if line.get("at") is None else next(told), width)
    if story["now"]:
        call.screen.say()
    for text in story["now"]:
        call.screen.hang(strong("now  "), text)


def _tell(call: Invocation, line: View, at: str, width: int) -> None:
    call.screen.hang(joined("  ", faint(f"{at:<{width}}"), "  "), line["text"])
    if line.get("detail"):
        call.screen.hang(joined(" " * (width + 4)), faint(line["detail"]))
