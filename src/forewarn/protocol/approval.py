"""The body of a POST, read as an approval (spec §5.1); what is wrong with it, and where, is one sentence."""

from __future__ import annotations

import json
import re
from typing import NoReturn


class Bad(ValueError):
    """The body is no approval; `str(error)` is the sentence for the caller."""


# What nearly every client sends, one event and nothing else, is read at a glance: JSON would give the same.
_TOKENS = rb'\{ "StartRequests" : \[ \{ "EventId" : "([0-9A-Za-z-]*)" \} \] \}'.split(b" ")
_USUAL = re.compile(rb"[ \t\r\n]*".join((b"", *_TOKENS, b"")))
_REPEATED = object()  # stands for the value of a member that was given twice: which one was meant?


def read_approval(body: bytes) -> tuple[str, ...]:
    """The ids in upper case, each once, in the order given. Raises Bad."""
    usual = _USUAL.fullmatch(body)
    if usual is not None:
        return (usual[1].decode("ascii").upper(),)

    whole = _json(body)
    if not isinstance(whole, dict):
        raise Bad("The body must be a JSON object")

    listed = _member(whole, "StartRequests", "StartRequests")
    if not isinstance(listed, list):
        raise Bad("StartRequests must be a list")

    ids = (_event_id(entry, f"StartRequests[{index}]") for index, entry in enumerate(listed))
    return tuple(dict.fromkeys(ids))


def _event_id(entry: object, where: str) -> str:
    if not isinstance(entry, dict):
        raise Bad(f"{where} must be an object")
    event_id = _member(entry, "EventId", f"{where}.EventId")
    if not isinstance(event_id, str):
        raise Bad(f"{where}.EventId must be a string")
    return event_id.upper()


def _member(holder: dict[str, object], name: str, where: str) -> object:
    if name not in holder:
        raise Bad(f"{where} is missing")
    if holder[name] is _REPEATED:
        raise Bad(f"{where} is given twice")
    return holder[name]


def _json(body: bytes) -> object:
    if not body.strip():
        raise Bad("The body is empty, it must be a JSON object with StartRequests")
    try:
        # No number matters here, so none is computed: they may be longer than Python cares to convert.
        return json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_members, parse_int=len, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise Bad(f"The body is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Bad(f"The body is not JSON at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise Bad("The body is nested too deeply") from error


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        members[name] = _REPEATED if name in members else value
    return members


def _no_constant(name: str) -> NoReturn:
    raise Bad(f"The body is not JSON: it may not contain {name}")
