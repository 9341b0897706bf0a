"""Describes an event: sentences for people, JSON and environment variables for programs, placeholders.

Placeholders in the user's texts are `$vm`, `$event_id`, `$kind`, `$phase` and `$step`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Template
from typing import Any
from urllib.parse import quote

from forewarn.agent.model import Event, StepContext, StepPhase
from forewarn.agent.reactions.options import BadOption


def event_sentence(case: StepContext) -> str:
    """`Reboot of web-0 not before Mon, 19 Sep …`; `Reboot of web-0 is gone`. One line, whatever a server sends."""
    what = f"{case.event.kind or 'An event'} of {', '.join(case.event.resources) or 'nobody'}"
    return _one_line(f"{what} is gone" if case.phase is StepPhase.UNDO else f"{what} {_when_text(case.event)}")


def _one_line(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def _when_text(event: Event) -> str:
    if event.not_before_text:
        return f"not before {event.not_before_text}"
    return "has started" if event.status == "Started" else "is scheduled"


def event_details(case: StepContext) -> str:
    """For people: everything that is known, a line each; what is not known is left out."""
    event = case.event
    rows = {
        "Event": event.id,
        "Kind": event.kind,
        "Status": "gone" if case.phase is StepPhase.UNDO else event.status,
        "VMs": ", ".join(event.resources),
        "Not before": "" if case.phase is StepPhase.UNDO else event.not_before_text,
        "Impact": _impact_text(event),
        "Source": event.source,
        "Description": event.description,
    }
    return "\n".join(f"{name + ':':<13}{_one_line(text)}" for name, text in rows.items() if text)


def _impact_text(event: Event) -> str:
    if event.duration_s is None:
        return ""
    return "of unknown length" if event.duration_s < 0 else f"{event.duration_s} s"


def event_facts(case: StepContext) -> dict[str, object]:
    """The event as its document had it, and what the agent adds."""
    event = case.event
    return dict(event.raw) | {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.kind,
        "Resources": list(event.resources),
        "NotBefore": event.not_before_text,
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_s,
        "Vm": case.vm,
        "Step": case.step.name,
        "Phase": str(case.phase),
    }


def event_variables(case: StepContext) -> dict[str, str]:
    """The same for programs that read no JSON."""
    event = case.event
    return {
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_SOURCE": event.source,
        "FOREWARN_DESCRIPTION": event.description,
        "FOREWARN_DURATION_S": "" if event.duration_s is None else str(event.duration_s),
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_LEFT_S": f"{max(case.left_s(), 0.0):.0f}",
        "FOREWARN_VM": case.vm,
        "FOREWARN_STEP": case.step.name,
        "FOREWARN_PHASE": str(case.phase),
        "FOREWARN_FOLDER": str(case.folder),
    }


PLACEHOLDERS = ("vm", "event_id", "kind", "phase", "step")


def placeholder_values(case: StepContext) -> dict[str, str]:
    event = case.event
    values = (case.vm, event.id, event.kind, str(case.phase), case.step.name)
    return dict(zip(PLACEHOLDERS, values, strict=True))


def fill_url(url: str, case: StepContext) -> str:
    return Template(url).substitute({name: quote(text, safe="") for name, text in placeholder_values(case).items()})


def fill_body(body: object, case: StepContext) -> bytes:
    """A text as it is; anything else as JSON, in which nothing of an event can break out of its string."""
    if isinstance(body, str):
        return Template(body).substitute(placeholder_values(case)).encode()
    return json.dumps(_fill(body, placeholder_values(case))).encode()


def _fill(value: object, places: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return Template(value).substitute(places)
    if isinstance(value, Mapping):
        return {name: _fill(each, places) for name, each in value.items()}
    return [_fill(each, places) for each in value] if isinstance(value, list) else value


def check_placeholders(key: str, value: Any) -> None:
    """Raises BadOption if there is a place in it that nothing fills."""
    try:
        _fill(value, dict.fromkeys(PLACEHOLDERS, ""))
    except (KeyError, ValueError):
        known = ", ".join(f"${name}" for name in PLACEHOLDERS)
        raise BadOption(key, f"{key} has a $ that is no place", f"write {known}, or $$ for a dollar") from None
