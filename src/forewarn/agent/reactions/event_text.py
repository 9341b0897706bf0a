"""Texts of the user's with places for what an event is about: `$vm`, `$event_id`, `$kind`, `$phase`, `$step`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Template
from typing import Any
from urllib.parse import quote

from forewarn.agent.reaction.kind import BadOption
from forewarn.agent.value import Case

PLACES = ("vm", "event_id", "kind", "phase", "step")


def places_of(case: Case) -> dict[str, str]:
    event = case.event
    values = (case.vm, event.id, event.kind, str(case.phase), case.step.name)
    return dict(zip(PLACES, values, strict=True))


def filled_url(url: str, case: Case) -> str:
    return Template(url).substitute({name: quote(text, safe="") for name, text in places_of(case).items()})


def filled_body(body: object, case: Case) -> bytes:
    """A text as it is; anything else as JSON, in which nothing of an event can break out of its string."""
    if isinstance(body, str):
        return Template(body).substitute(places_of(case)).encode()
    return json.dumps(_filled(body, places_of(case))).encode()


def _filled(value: object, places: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return Template(value).substitute(places)
    if isinstance(value, Mapping):
        return {name: _filled(each, places) for name, each in value.items()}
    return [_filled(each, places) for each in value] if isinstance(value, list) else value


def check_places(key: str, value: Any) -> None:
    """Raises BadOption if there is a place in it that nothing fills."""
    try:
        _filled(value, dict.fromkeys(PLACES, ""))
    except (KeyError, ValueError):
        known = ", ".join(f"${name}" for name in PLACES)
        raise BadOption(key, f"{key} has a $ that is no place", f"write {known}, or $$ for a dollar") from None
