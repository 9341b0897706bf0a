"""Where a watcher stands, in a file: what it knows, and the changes that nobody has handled yet.

Written as JSON beside the old one, synced, then put in its place: a crash leaves the one or the other. With a file that
cannot be read a watcher begins anew, and that is told: hearing of an event twice is better than not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forewarn.client.change import Change, Gone, Outcome, Scheduled, Started
from forewarn.client.event import Event
from forewarn.client.sight import Known, Seen
from forewarn.errors import Rejected
from forewarn.protocol.codec import decode

FORMAT = 1
_MARK = "forewarn-cursor"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    known: Known = field(default_factory=Known)
    unhandled: tuple[Change, ...] = ()  # in the order in which they are told
    boot: str = ""  # during which it was written


class BadCursor(ValueError):
    """A file that does not hold a cursor."""


def read_boot_id() -> str:
    """Another one after every boot; "" where the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def write_cursor(cursor: Cursor) -> bytes:
    known = cursor.known
    whole = {
        _MARK: FORMAT,
        "boot": cursor.boot,
        "epoch": known.epoch,
        "incarnation": known.incarnation,
        "exact": known.is_exact,
        "seen": [{"boot": seen.boot, "event": _event(seen.event)} for seen in known.seen],
        "over": list(known.over),
        "unhandled": [_change(change) for change in cursor.unhandled],
    }
    return json.dumps(whole).encode("ascii") + b"\n"  # in one line: it is written with each change, and this is fast


def read_cursor(raw: bytes) -> Cursor:
    """Raises BadCursor with a reason."""
    try:
        whole = json.loads(raw)
        if not isinstance(whole, dict) or _MARK not in whole:
            raise BadCursor("it is no cursor of forewarn")
        if whole[_MARK] != FORMAT:
            raise BadCursor(f"it has format {whole[_MARK]!r}, and this forewarn reads {FORMAT}")
        return _cursor(whole)
    except BadCursor:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCursor(f"it is damaged ({type(error).__name__})") from error


def _cursor(whole: Mapping[str, Any]) -> Cursor:
    known = Known(
        epoch=str(whole["epoch"]),
        incarnation=int(whole["incarnation"]),
        is_exact=whole["exact"] is True,
        seen=tuple(Seen(event=_read_event(seen["event"]), boot=str(seen["boot"])) for seen in whole["seen"]),
        over=tuple(map(str, whole["over"])),
    )
    return Cursor(known=known, unhandled=tuple(map(_read_change, whole["unhandled"])), boot=str(whole["boot"]))


def _change(change: Change) -> dict[str, Any]:
    event = _event(change.event)
    match change:
        case Scheduled():
            return {"change": "scheduled", "event": event, "left_s": change.left_s}
        case Started():
            return {"change": "started", "event": event, "first": change.first}
        case Gone():
            return {"change": "gone", "event": event, "outcome": change.outcome}


def _read_change(line: Mapping[str, Any]) -> Change:
    event = _read_event(line["event"])
    match line["change"]:
        case "scheduled":
            return Scheduled(event=event, left_s=None if line["left_s"] is None else float(line["left_s"]))
        case "started":
            return Started(event=event, first=line["first"] is True)
        case "gone":
            return Gone(event=event, outcome=Outcome(line["outcome"]))
        case other:
            raise BadCursor(f"it holds a change {other!r} that this forewarn does not know")


def _event(event: Event) -> Mapping[str, object]:
    """As it came over the wire: the reader of the wire reads it again."""
    return event.raw


def _read_event(raw: object) -> Event:
    (event,) = decode(json.dumps({"Events": [raw]}).encode("ascii")).events
    return event


def load(path: Path) -> Cursor:
    """An absent file is a new cursor. Raises BadCursor; Rejected if the place cannot be used at all."""
    try:
        return read_cursor(path.read_bytes())
    except FileNotFoundError:
        return Cursor()
    except OSError as error:
        raise Rejected(f"the cursor {str(path)!r} cannot be read ({error.strerror}): give another file") from error


def save(path: Path, cursor: Cursor) -> None:
    """Durably, and whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(write_cursor(cursor))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Rejected(f"the cursor {str(path)!r} cannot be written ({error.strerror}): give another file") from error


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
