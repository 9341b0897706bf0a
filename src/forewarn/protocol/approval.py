"""Parses the body of a POST that approves events (spec §5.1) and says what is wrong with it."""

from __future__ import annotations

import json
import re
from typing import NoReturn


class InvalidApproval(ValueError):
    """The body is not a valid approval; `str(error)` is the sentence that the response shows."""


# Nearly every client sends one event and nothing else. This regular expression reads that body faster than JSON.
_COMMON_BODY_TOKENS = rb'\{ "StartRequests" : \[ \{ "EventId" : "([0-9A-Za-z-]*)" \} \] \}'.split(b" ")
_COMMON_BODY = re.compile(rb"[ \t\r\n]*".join((b"", *_COMMON_BODY_TOKENS, b"")))
_DUPLICATE = object()  # replaces the value of a member that the object has twice


def parse_approval(body: bytes) -> tuple[str, ...]:
    """Return the approved event ids in upper case, without duplicates, in the order of the body.

    Does not check what an id looks like. Names of members are case-sensitive; unknown members are ignored.
    """
    common = _COMMON_BODY.fullmatch(body)
    if common is not None:
        return (common[1].decode("ascii").upper(),)

    content = _parse_json(body)
    if not isinstance(content, dict):
        raise InvalidApproval("The body must be a JSON object")

    entries = _required_member(content, "StartRequests", "StartRequests")
    if not isinstance(entries, list):
        raise InvalidApproval("StartRequests must be a list")

    ids = (_entry_event_id(entry, f"StartRequests[{index}]") for index, entry in enumerate(entries))
    return tuple(dict.fromkeys(ids))


def _entry_event_id(entry: object, where: str) -> str:
    if not isinstance(entry, dict):
        raise InvalidApproval(f"{where} must be an object")
    event_id = _required_member(entry, "EventId", f"{where}.EventId")
    if not isinstance(event_id, str):
        raise InvalidApproval(f"{where}.EventId must be a string")
    return event_id.upper()


def _required_member(parent: dict[str, object], name: str, where: str) -> object:
    if name not in parent:
        raise InvalidApproval(f"{where} is missing")
    if parent[name] is _DUPLICATE:
        raise InvalidApproval(f"{where} is given twice")
    return parent[name]


def _parse_json(body: bytes) -> object:
    if not body.strip():
        raise InvalidApproval("The body is empty, it must be a JSON object with StartRequests")
    try:
        # No number matters here. `parse_int=len` skips the conversion, which Python refuses for very long ones.
        return json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_collect_members, parse_int=len, parse_constant=_reject_constant
        )
    except UnicodeDecodeError as error:
        raise InvalidApproval(f"The body is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InvalidApproval(f"The body is not JSON at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise InvalidApproval("The body is nested too deeply") from error


def _collect_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        members[name] = _DUPLICATE if name in members else value
    return members


def _reject_constant(name: str) -> NoReturn:
    raise InvalidApproval(f"The body is not JSON: it may not contain {name}")
