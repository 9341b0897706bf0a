"""Deciding about pending events from outside their VMs: approve them, or take them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import click

from forewarn.cli.connection import View, code_of
from forewarn.cli.invocation import Function, Invocation, served
from forewarn.cli.name import name
from forewarn.cli.receipt import show_events
from forewarn.cli.screen import faint
from forewarn.cli.suggestion import event_ids, host_names, rollout_ids, vm_names
from forewarn.cli.wording import counted, names, what
from forewarn.errors import Conflict, ForewarnError, Rejected

_MANY = 100_000
_NOT_NAMED = "no event is named: give the ids of some, or select those of a --vm, a --host or a --rollout"


def _which(function: Function) -> Function:
    """Events by their ids, or all pending ones of something."""
    options = (
        click.argument("events", type=name, metavar="[EVENT]...", nargs=-1, shell_complete=event_ids),
        click.option("--vm", metavar="VM", shell_complete=vm_names, help="All pending ones of this VM."),
        click.option("--host", metavar="HOST", shell_complete=host_names, help="All pending ones on this host."),
        click.option("--rollout", metavar="ROLLOUT", shell_complete=rollout_ids, help="All pending ones of a rollout."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_which
@served
def approve(call: Invocation, events: tuple[str, ...], **selection: str | None) -> int:
    """Approve events, so that they may start before their time.

    EVENT is an event's id, or the first four or more characters of it.
    """
    asked = _asked(call, events, selection, lambda event: event["approved_at"] is None)
    return _each(call, asked, "approved", lambda event_id: call.api.post("events", event_id, "approve"))


@click.command()
@_which
@click.option("--reason", metavar="TEXT", help="Why, for the history.")
@served
def withdraw(call: Invocation, events: tuple[str, ...], reason: str | None, **selection: str | None) -> int:
    """Take events back before they have started.

    EVENT is an event's id, or the first four or more characters of it.
    """
    body = {"reason": reason} if reason else {}
    asked = _asked(call, events, selection, lambda event: True)
    return _each(call, asked, "withdrawn", lambda event_id: call.api.post("events", event_id, "withdraw", body=body))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    ids: list[str]
    selected: str = ""  # by what, in words


def _asked(
    call: Invocation, events: tuple[str, ...], selection: Mapping[str, str | None], wanted: Callable[[View], bool]
) -> _Asked:
    given = {what: value for what, value in selection.items() if value is not None}
    if bool(events) == bool(given):
        raise Rejected(_NOT_NAMED if not events else "events are named or selected, not both: leave out the one")
    if events:
        return _Asked(ids=list(dict.fromkeys(events)))
    page = call.api.get("events", query={**given, "limit": _MANY})
    pending = [event["id"] for event in page["events"] if event["status"] == "scheduled" and wanted(event)]
    return _Asked(ids=pending, selected=" and ".join(f"{what} {value}" for what, value in given.items()))


@dataclass(slots=True)
class _Told:
    events: list[View] = field(default_factory=list)
    refused: list[View] = field(default_factory=list)


def _each(call: Invocation, asked: _Asked, done: str, do: Callable[[str], View]) -> int:
    """One after the other: what is refused keeps no other from its turn."""
    if len(asked.ids) == 1 and not asked.selected:
        return _show_one(call, do(asked.ids[0]), done)
    told = _Told()
    for event_id in asked.ids:
        try:
            event = do(event_id)
        except (Rejected, Conflict) as error:
            told.refused.append(_refusal(call, event_id, error))
        else:
            told.events.append(event)
            _say(call, event, done)
    return _conclude(call, asked, told, done)


def _show_one(call: Invocation, event: View, done: str) -> int:
    if call.screen.as_json:
        call.screen.document({"events": [event], "refused": []})
    else:
        call.screen.say(f"{done.capitalize()}.")
        show_events(call, [event])
    return 0


def _say(call: Invocation, event: View, done: str) -> None:
    if call.screen.as_json:
        return
    after = f", and has {event['status']}" if done == "approved" and event["status"] == "started" else ""
    wait = event["waits_for"]
    after = f", and waits for {wait['text']}" if wait else after
    call.screen.say(f"{call.screen.short(event['id'])}  {what(event)} of {names(event['vms'])} is {done}{after}.")


def _refusal(call: Invocation, event_id: str, error: ForewarnError) -> View:
    if not call.screen.as_json:
        call.screen.complain(error)
    return {"event": event_id, "code": code_of(error), "message": str(error)}


def _conclude(call: Invocation, asked: _Asked, told: _Told, done: str) -> int:
    if call.screen.as_json:
        call.screen.document({"events": told.events, "refused": told.refused})
        if told.refused:
            message = f"{len(told.refused)} of {counted(len(asked.ids), 'event')} could not be {done}"
            call.screen.complain(message, code="Refused")
    elif not asked.ids:
        call.screen.say(faint(f"No event of {asked.selected} is pending{_unapproved(done)}."))
    return 2 if told.refused else 0


def _unapproved(done: str) -> str:
    return " without an approval" if done == "approved" else ""
