"""What reactions do with their step context: describe the event, wait, and keep notes for the undo.

Undo notes are written to the step's folder before the reaction acts: notes returned at the end would be lost if the
agent died.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from string import Template
from typing import Any, TypeVar
from urllib.parse import quote

from forewarn.agent.model import Event, StepContext, StepPhase
from forewarn.base.duration import exact_duration_text
from forewarn.base.files import sync_to_disk
from forewarn.base.tomlfile import BadValue

T = TypeVar("T")


# Describes an event: sentences for people, JSON and environment variables for programs, placeholders.
#
# Placeholders in the user's texts are `$vm`, `$event_id`, `$kind`, `$phase` and `$step`.


def event_sentence(context: StepContext) -> str:
    """Return one line about the event for people: `Reboot of web-0 not before Mon, 19 Sep …`."""
    what = f"{context.event.kind or 'An event'} of {', '.join(context.event.resources) or 'no VM'}"
    return _one_line(f"{what} is gone" if context.phase is StepPhase.UNDO else f"{what} {_when_text(context.event)}")


def _one_line(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def _when_text(event: Event) -> str:
    if event.not_before_text:
        return f"not before {event.not_before_text}"
    return "has started" if event.status == "Started" else "is scheduled"


def event_details(context: StepContext) -> str:
    """Return the facts about the event for people, a line `Name: value` for each that the event has."""
    event = context.event
    rows = {
        "Event": event.id,
        "Kind": event.kind,
        "Status": "gone" if context.phase is StepPhase.UNDO else event.status,
        "VMs": ", ".join(event.resources),
        "Not before": "" if context.phase is StepPhase.UNDO else event.not_before_text,
        "Impact": _impact_text(event),
        "Source": event.source,
        "Description": event.description,
    }
    return "\n".join(f"{name + ':':<13}{_one_line(text)}" for name, text in rows.items() if text)


def _impact_text(event: Event) -> str:
    if event.duration_s is None:
        return ""
    return "of unknown length" if event.duration_s < 0 else exact_duration_text(event.duration_s)


def event_facts(context: StepContext) -> dict[str, object]:
    """Return the event as a JSON object: its document's fields, and the agent's `Vm`, `Step` and `Phase`."""
    event = context.event
    return dict(event.raw) | {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.kind,
        "Resources": list(event.resources),
        "NotBefore": event.not_before_text,
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_s,
        "Vm": context.vm,
        "Step": context.step.name,
        "Phase": str(context.phase),
    }


def event_variables(context: StepContext) -> dict[str, str]:
    """Return event, VM, step and phase as environment variables FOREWARN_*, by name; "" if unknown."""
    # The values are not sanitized for an environment: a server may send anything.
    event = context.event
    return {
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_SOURCE": event.source,
        "FOREWARN_DESCRIPTION": event.description,
        "FOREWARN_DURATION_S": "" if event.duration_s is None else str(event.duration_s),
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_LEFT_S": f"{max(context.left_s(), 0.0):.0f}",
        "FOREWARN_VM": context.vm,
        "FOREWARN_STEP": context.step.name,
        "FOREWARN_PHASE": str(context.phase),
        "FOREWARN_FOLDER": str(context.folder),
    }


PLACEHOLDERS = ("vm", "event_id", "kind", "phase", "step")  # written with a dollar sign


def _placeholder_values(context: StepContext) -> dict[str, str]:
    event = context.event
    values = (context.vm, event.id, event.kind, str(context.phase), context.step.name)
    return dict(zip(PLACEHOLDERS, values, strict=True))


def fill_url(url: str, context: StepContext) -> str:
    """Return the URL with placeholders replaced by values, percent-encoded; `check_placeholders` checks it before."""
    return Template(url).substitute({name: quote(text, safe="") for name, text in _placeholder_values(context).items()})


def fill_body(body: object, context: StepContext) -> bytes:
    """Return the bytes of a request body, with placeholders replaced by values."""
    # A string is sent as text, and the values in it are not escaped; any other value is sent as JSON. Check it with
    # `check_placeholders` before.
    if isinstance(body, str):
        return Template(body).substitute(_placeholder_values(context)).encode()
    return json.dumps(_fill(body, _placeholder_values(context))).encode()


def _fill(value: object, values_by_name: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return Template(value).substitute(values_by_name)
    if isinstance(value, Mapping):
        return {name: _fill(each, values_by_name) for name, each in value.items()}
    return [_fill(each, values_by_name) for each in value] if isinstance(value, list) else value


def check_placeholders(key: str, value: Any) -> None:
    """Raise BadValue, for the option `key`, if a string in the value has an unknown placeholder."""
    try:
        _fill(value, dict.fromkeys(PLACEHOLDERS, ""))
    except (KeyError, ValueError):
        known = ", ".join(f"${name}" for name in PLACEHOLDERS)
        raise BadValue(key, f"{key} has an unknown placeholder", f"write {known}, or $$ for a dollar") from None


_MAX_RESERVE_S = 0.5


def reserve_s(context: StepContext) -> float:
    """Return the seconds of its budget that a reaction keeps, to be able to say what it waited for."""
    return min(_MAX_RESERVE_S, max(context.left_s(), 0.0) * 0.1)


async def wait_until(context: StepContext, poll: Callable[[], Awaitable[T]], every_s: float = 0.25) -> T:
    """Call `poll` every `every_s` seconds, at least once, until its result is true or the time is over.

    The time is over `reserve_s` before the end of the step's budget; a `poll` that runs then is not cancelled.
    """
    reserved_s = reserve_s(context)
    while not (result := await poll()) and (left_s := context.left_s() - reserved_s) > 0:
        await asyncio.sleep(min(every_s, left_s))
    return result


_NOTES_FILE = "found.json"
UndoNotes = dict[str, str]  # the original state, by names that the reaction chooses


def save_undo_notes(context: StepContext, notes: Mapping[str, str]) -> None:
    """Add notes for the undo to a file in the step's folder, durably: call it before acting."""
    data = json.dumps(load_undo_notes(context) | dict(notes)).encode()
    new_file = context.folder / f"{_NOTES_FILE}.new"
    with new_file.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(context.folder / _NOTES_FILE)
    for folder in (context.folder, *context.folder.parents[:2]):  # each may be new
        sync_to_disk(folder)


def load_undo_notes(context: StepContext) -> UndoNotes:
    try:
        notes = json.loads((context.folder / _NOTES_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in notes.items()} if isinstance(notes, dict) else {}


def delete_undo_notes(context: StepContext) -> None:
    """Delete all notes that `save_undo_notes` wrote to the step's folder, if any. Raises OSError."""
    (context.folder / _NOTES_FILE).unlink(missing_ok=True)
