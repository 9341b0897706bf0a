"""The cursor file of a watcher: what it knows, and the changes that are not handled yet.

It is JSON, written to a new file, synced and renamed into place, so that a crash leaves the old or the new one. A
watcher whose file cannot be read starts again with a warning: to see an event twice is better than not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forewarn.client.change_detection import KnownDocument, KnownEvent
from forewarn.client.events import Change, Event, Gone, Outcome, Scheduled, Started
from forewarn.errors import Rejected
from forewarn.protocol.codec import decode_document

CURSOR_FORMAT = 1
_FORMAT_KEY = "forewarn-cursor"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCursor:
    known: KnownDocument = field(default_factory=KnownDocument)
    unhandled: tuple[Change, ...] = ()  # in the order in which they are told
    boot_id: str = ""  # during which it was written


class BadCursor(ValueError):
    """A file that does not hold a cursor."""


def read_boot_id() -> str:
    """Another one after every boot; "" where the system has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def encode_cursor(cursor: WatchCursor) -> bytes:
    known = cursor.known
    whole = {
        _FORMAT_KEY: CURSOR_FORMAT,
        "boot": cursor.boot_id,
        "epoch": known.epoch,
        "incarnation": known.incarnation,
        "exact": known.is_exact,
        "seen": [{"boot": seen.boot_id, "event": _event_to_json(seen.event)} for seen in known.events],
        "over": list(known.gone_keys),
        "unhandled": [_change_to_json(change) for change in cursor.unhandled],
    }
    return json.dumps(whole).encode("ascii") + b"\n"  # in one line: it is written with each change, and this is fast


def decode_cursor(raw: bytes) -> WatchCursor:
    """Raises BadCursor with a reason."""
    try:
        whole = json.loads(raw)
        if not isinstance(whole, dict) or _FORMAT_KEY not in whole:
            raise BadCursor("it is no cursor of forewarn")
        if whole[_FORMAT_KEY] != CURSOR_FORMAT:
            raise BadCursor(f"it has format {whole[_FORMAT_KEY]!r}, and this forewarn reads {CURSOR_FORMAT}")
        return _cursor_from_json(whole)
    except BadCursor:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCursor(f"it is damaged ({type(error).__name__})") from error


def _cursor_from_json(whole: Mapping[str, Any]) -> WatchCursor:
    known = KnownDocument(
        epoch=str(whole["epoch"]),
        incarnation=int(whole["incarnation"]),
        is_exact=whole["exact"] is True,
        events=tuple(
            KnownEvent(event=_event_from_json(seen["event"]), boot_id=str(seen["boot"])) for seen in whole["seen"]
        ),
        gone_keys=tuple(map(str, whole["over"])),
    )
    return WatchCursor(
        known=known, unhandled=tuple(map(_change_from_json, whole["unhandled"])), boot_id=str(whole["boot"])
    )


def _change_to_json(change: Change) -> dict[str, Any]:
    event = _event_to_json(change.event)
    match change:
        case Scheduled():
            return {"change": "scheduled", "event": event, "left_s": change.left_s}
        case Started():
            return {"change": "started", "event": event, "first": change.first}
        case Gone():
            return {"change": "gone", "event": event, "outcome": change.outcome}


def _change_from_json(line: Mapping[str, Any]) -> Change:
    event = _event_from_json(line["event"])
    match line["change"]:
        case "scheduled":
            return Scheduled(event=event, left_s=None if line["left_s"] is None else float(line["left_s"]))
        case "started":
            return Started(event=event, first=line["first"] is True)
        case "gone":
            return Gone(event=event, outcome=Outcome(line["outcome"]))
        case other:
            raise BadCursor(f"it holds a change {other!r} that this forewarn does not know")


def _event_to_json(event: Event) -> Mapping[str, object]:
    """As it came over the wire: the reader of the wire reads it again."""
    return event.raw


def _event_from_json(raw: object) -> Event:
    (event,) = decode_document(json.dumps({"Events": [raw]}).encode("ascii")).events
    return event


def load_cursor(path: Path) -> WatchCursor:
    """An absent file is a new cursor. Raises BadCursor; Rejected if the place cannot be used at all."""
    try:
        return decode_cursor(path.read_bytes())
    except FileNotFoundError:
        return WatchCursor()
    except OSError as error:
        raise Rejected(f"the cursor {str(path)!r} cannot be read ({error.strerror}): give another file") from error


def save_cursor(path: Path, cursor: WatchCursor) -> None:
    """Durably, and whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(encode_cursor(cursor))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _fsync_directory(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Rejected(f"the cursor {str(path)!r} cannot be written ({error.strerror}): give another file") from error


def _fsync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
