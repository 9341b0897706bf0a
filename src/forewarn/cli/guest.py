"""Commands for use inside a VM: show, watch and approve the events of its metadata endpoint.

Needs the [agent] extra only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.text import Text

from forewarn.base.duration import format_duration
from forewarn.base.times import time_text
from forewarn.cli.invocation import CommandFunction, Invocation, offline_command
from forewarn.cli.output import Cell, bold, describe_time, dim, join_names, join_text, state_text
from forewarn.client import Client, Received, ReceivedEvent, lists
from forewarn.errors import ForewarnError, NotFound, Rejected

_MIN_ID_PREFIX = 4
_HEADERS = ("event", "kind", "status", "VMs", "not before", "impact", "description")
_NO_EVENTS = "No event is pending for this VM."
_NO_EVENTS_YET = f"{_NO_EVENTS} `forewarn guest watch` waits for one."


def endpoint_option(function: CommandFunction) -> CommandFunction:
    """Decorate a command that polls a VM's endpoint: an `offline_command` with the option --endpoint."""
    return click.option(
        "--endpoint",
        metavar="URL",
        help="Use this endpoint.  [env: FOREWARN_ENDPOINT, SCHEDULEDEVENTSIP; default: discovered]",
    )(offline_command(function))


@click.group()
def guest() -> None:
    """Show and approve a VM's events, from inside it."""


@guest.command()
@endpoint_option
def events(call: Invocation, endpoint: str | None) -> None:
    """Show the events of this VM."""
    client = Client(endpoint)
    received = client.events()
    name = vm_name_or_none(client)
    if call.output.as_json:
        call.output.print_json(_events_document(client, received, name))
    else:
        _print_events(call, client, received, name, none=_NO_EVENTS_YET)


@guest.command()
@endpoint_option
def watch(call: Invocation, endpoint: str | None) -> None:
    """Keep running, and show every change."""
    client = Client(endpoint)
    name: str | None = None
    for received in client.documents():
        name = name or vm_name_or_none(client)
        if call.output.as_json:
            call.output.print_json(_events_document(client, received, name))
        else:
            call.output.print_line(dim(f"incarnation {received.incarnation}"))
            _print_events(call, client, received, name, none=_NO_EVENTS)
            call.output.print_line()


@guest.command()
@click.argument("ids", metavar="[EVENT]...", nargs=-1)
@click.option("--own", is_flag=True, help="Approve every event that lists this VM.")
@endpoint_option
def approve(call: Invocation, ids: tuple[str, ...], own: bool, endpoint: str | None) -> None:
    """Approve events, so that they may start before their notice ends.

    EVENT is an event's id, or the first four or more characters of it.
    """
    if own == bool(ids):
        raise Rejected("no events are selected, or twice: give their ids, or --own for all that list this VM")
    client = Client(endpoint)
    listed = client.events().events
    if own:
        name = client.name()
        full_ids = [event.id for event in listed if lists(event, name)]
    else:
        full_ids = [complete_event_id(event_id, listed) for event_id in ids]
    if full_ids:
        client.approve(*full_ids)
    if call.output.as_json:
        call.output.print_json({"approved": full_ids})
    else:
        for event_id in full_ids:
            call.output.print_line(f"Approved {event_id}.")
        if not full_ids:
            call.output.print_line("No event lists this VM: nothing was approved.")


def complete_event_id(given: str, listed: tuple[ReceivedEvent, ...]) -> str:
    """Return the full id of the one listed event whose id begins with `given`, ignoring letter case."""
    if len(given) == 36:
        return given.upper()
    if len(given) < _MIN_ID_PREFIX:
        raise Rejected(f"{given!r} is too short for an event's id: give at least {_MIN_ID_PREFIX} characters")
    found = [event.id for event in listed if event.id.upper().startswith(given.upper())]
    if not found:
        raise NotFound(f"no pending event begins with {given!r}: see `forewarn guest events`")
    if len(found) > 1:
        raise Rejected(f"{given!r} matches {len(found)} events, {', '.join(found)}: give more characters")
    return found[0]


def vm_name_or_none(client: Client) -> str | None:
    """Ask the endpoint for the VM's name and return it; None if it does not answer or refuses."""
    try:
        return client.name()
    except ForewarnError:
        return None


def _print_events(call: Invocation, client: Client, received: Received, name: str | None, *, none: str) -> None:
    if not received.events:
        call.output.print_line(none)
        return
    call.output.print_table(_HEADERS, _event_rows(call, client, received, name))


def _event_rows(call: Invocation, client: Client, received: Received, name: str | None) -> Iterator[list[Cell]]:
    for event in received.events:
        yield [
            bold(call.output.short_id(event.id)),
            event.kind,
            state_text(event.status),
            _vms_text(event, name),
            _not_before_text(event, client.date),
            _impact_text(event.duration_s),
            event.description,
        ]


def _vms_text(event: ReceivedEvent, name: str | None) -> Text:
    """The affected VMs, marked if this VM is one of them (spec §7.2)."""
    mine = name is not None and lists(event, name)
    return join_text(join_names(event.resources), Text("  this VM", style="bold red") if mine else Text())


def _not_before_text(event: ReceivedEvent, now: float | None) -> str:
    if event.not_before is None or now is None:
        return event.not_before_text or "-"
    return describe_time(event.not_before, now)


def _impact_text(duration_s: int | None) -> str:
    if duration_s is None or duration_s < 0:
        return "unknown"
    return format_duration(duration_s) if duration_s else "none"


def _events_document(client: Client, received: Received, name: str | None) -> dict[str, Any]:
    listed = [_event_document(event, name) for event in received.events]
    return {"name": name, "incarnation": received.incarnation, "now": time_text(client.date), "events": listed}


def _event_document(event: ReceivedEvent, name: str | None) -> dict[str, Any]:
    return {
        "id": event.id,
        "status": event.status,
        "kind": event.kind,
        "vms": list(event.resources),
        "affects_this_vm": None if name is None else lists(event, name),
        "not_before": time_text(event.not_before),
        "description": event.description,
        "source": event.source,
        "duration_s": event.duration_s,
    }
