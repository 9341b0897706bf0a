"""Inside a VM: the same endpoint that the VM's programs use, for people and scripts. Needs the [agent] extra only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.text import Text

from forewarn.cli.duration import span
from forewarn.cli.instant import when
from forewarn.cli.invocation import Function, Invocation, shown
from forewarn.cli.screen import Cell, faint, joined, strong, word
from forewarn.cli.wording import names
from forewarn.client import Client, Received, ReceivedEvent, lists
from forewarn.errors import ForewarnError, NotFound, Rejected

_SHORTEST_PREFIX = 4
_HEADERS = ("event", "kind", "status", "VMs", "not before", "impact", "description")
_NONE = "No event is announced to this VM."
_NONE_YET = f"{_NONE} `forewarn guest watch` waits for one."


def endpoint_option(function: Function) -> Function:
    return click.option(
        "--endpoint",
        metavar="URL",
        help="Where to ask.  [env: FOREWARN_ENDPOINT, SCHEDULEDEVENTSIP; default: discovered]",
    )(shown(function))


@click.group()
def guest() -> None:
    """For use inside a VM: what is announced to it."""


@guest.command()
@endpoint_option
def events(call: Invocation, endpoint: str | None) -> None:
    """Show the events that this VM is told of."""
    client = Client(endpoint)
    received = client.events()
    name = own_name(client)
    if call.screen.as_json:
        call.screen.document(_document(client, received, name))
    else:
        _show(call, client, received, name, none=_NONE_YET)


@guest.command()
@endpoint_option
def watch(call: Invocation, endpoint: str | None) -> None:
    """Stay, and show every change."""
    client = Client(endpoint)
    name: str | None = None
    for received in client.documents():
        name = name or own_name(client)
        if call.screen.as_json:
            call.screen.document(_document(client, received, name))
        else:
            call.screen.say(faint(f"incarnation {received.incarnation}"))
            _show(call, client, received, name, none=_NONE)
            call.screen.say()


@guest.command()
@click.argument("ids", metavar="[EVENT]...", nargs=-1)
@click.option("--mine", is_flag=True, help="Every event that lists this VM.")
@endpoint_option
def approve(call: Invocation, ids: tuple[str, ...], mine: bool, endpoint: str | None) -> None:
    """Approve events, so that they may start before their time.

    EVENT is an event's id, or the first four or more characters of it.
    """
    if mine == bool(ids):
        raise Rejected("say which events to approve: their ids, or --mine for all that list this VM")
    client = Client(endpoint)
    listed = client.events().events
    if mine:
        name = client.name()
        whole = [event.id for event in listed if lists(event, name)]
    else:
        whole = [whole_id(event_id, listed) for event_id in ids]
    if whole:
        client.approve(*whole)
    if call.screen.as_json:
        call.screen.document({"approved": whole})
    else:
        for event_id in whole:
            call.screen.say(f"Approved {event_id}.")
        if not whole:
            call.screen.say("No event lists this VM: nothing was approved.")


def whole_id(given: str, listed: tuple[ReceivedEvent, ...]) -> str:
    """The id that this begins, among the events listed; a whole id may also be of one that is over."""
    if len(given) == 36:
        return given.upper()
    if len(given) < _SHORTEST_PREFIX:
        raise Rejected(f"{given!r} is too short for an event's id: give at least {_SHORTEST_PREFIX} characters")
    found = [event.id for event in listed if event.id.upper().startswith(given.upper())]
    if not found:
        raise NotFound(f"no event listed begins with {given!r}: see `forewarn guest events`")
    if len(found) > 1:
        raise Rejected(f"{given!r} begins {len(found)} events, {', '.join(found)}: give more of it")
    return found[0]


def own_name(client: Client) -> str | None:
    """Not every endpoint tells; events are shown without it too."""
    try:
        return client.name()
    except ForewarnError:
        return None


def _show(call: Invocation, client: Client, received: Received, name: str | None, *, none: str) -> None:
    if not received.events:
        call.screen.say(none)
        return
    call.screen.table(_HEADERS, _rows(call, client, received, name))


def _rows(call: Invocation, client: Client, received: Received, name: str | None) -> Iterator[list[Cell]]:
    for event in received.events:
        yield [
            strong(call.screen.short(event.id)),
            event.kind,
            word(event.status),
            _vms(event, name),
            _not_before(event, client.date),
            _impact(event.duration_s),
            event.description,
        ]


def _vms(event: ReceivedEvent, name: str | None) -> Text:
    """Who is hit; whether this VM is among them is what matters (spec §7.2)."""
    mine = name is not None and lists(event, name)
    return joined(names(event.resources), Text("  this VM", style="bold red") if mine else Text())


def _not_before(event: ReceivedEvent, now: float | None) -> str:
    if event.not_before is None or now is None:
        return event.not_before_text or "-"
    return when(event.not_before, now)


def _impact(duration_s: int | None) -> str:
    if duration_s is None or duration_s < 0:
        return "unknown"
    return span(duration_s) if duration_s else "none"


def _document(client: Client, received: Received, name: str | None) -> dict[str, Any]:
    listed = [_event(event, name) for event in received.events]
    return {"name": name, "incarnation": received.incarnation, "now": client.date, "events": listed}


def _event(event: ReceivedEvent, name: str | None) -> dict[str, Any]:
    return {
        "id": event.id,
        "status": event.status,
        "kind": event.kind,
        "vms": list(event.resources),
        "hits_this_vm": None if name is None else lists(event, name),
        "not_before": event.not_before,
        "description": event.description,
        "source": event.source,
        "duration_s": event.duration_s,
    }
