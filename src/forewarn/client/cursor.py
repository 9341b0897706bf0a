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

from forewarn.base.files import sync_to_disk
from forewarn.client.change_detection import KnownDocument, KnownEvent
from forewarn.client.events import Change, Event, Gone, Outcome, Scheduled, Started
from forewarn.errors import Rejected
from forewarn.protocol.codec import decode_event

CURSOR_FORMAT = 1  # version of the file format
_FORMAT_KEY = "forewarn-cursor"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCursor:
    """The content of a cursor file, in which a watcher keeps its progress; the defaults are a new file's."""

    known: KnownDocument = field(default_factory=KnownDocument)  # the last document, with which the next is compared
    unhandled: tuple[Change, ...] = ()  # recorded and not yet marked as handled, in order of delivery
    boot_id: str = ""  # the id of the boot that wrote it; "" if unknown


class BadCursor(ValueError):
    """The content of a cursor file is damaged or of another format; the message says why."""


def read_boot_id() -> str:
    """Return the kernel's boot id, which changes with every boot; "" if the system has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def encode_cursor(cursor: WatchCursor) -> bytes:
    """Encode a cursor as one line of JSON, with its newline; the `when_done` of its changes is not kept."""
    known = cursor.known
    content = {
        _FORMAT_KEY: CURSOR_FORMAT,
        "boot": cursor.boot_id,
        "epoch": known.epoch,
        "incarnation": known.incarnation,
        "exact": known.is_exact,
        "seen": [{"boot": seen.boot_id, "event": _event_to_json(seen.event)} for seen in known.events],
        "over": list(known.gone_keys),
        "unhandled": [_change_to_json(change) for change in cursor.unhandled],
    }
    return json.dumps(content).encode("ascii") + b"\n"  # one line: it is written with each change


def decode_cursor(raw: bytes) -> WatchCursor:
    """Decode the bytes of a cursor file, as `encode_cursor` made them; its changes have no `when_done`."""
    try:
        content = json.loads(raw)
        if not isinstance(content, dict) or _FORMAT_KEY not in content:
            raise BadCursor("it is not a forewarn cursor")
        if content[_FORMAT_KEY] != CURSOR_FORMAT:
            raise BadCursor(f"it has format {content[_FORMAT_KEY]!r}, and this forewarn reads {CURSOR_FORMAT}")
        return _cursor_from_json(content)
    except BadCursor:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCursor(f"it is damaged ({type(error).__name__})") from error


def _cursor_from_json(content: Mapping[str, Any]) -> WatchCursor:
    known = KnownDocument(
        epoch=str(content["epoch"]),
        incarnation=int(content["incarnation"]),
        is_exact=content["exact"] is True,
        events=tuple(
            KnownEvent(event=_event_from_json(seen["event"]), boot_id=str(seen["boot"])) for seen in content["seen"]
        ),
        gone_keys=tuple(map(str, content["over"])),
    )
    return WatchCursor(
        known=known, unhandled=tuple(map(_change_from_json, content["unhandled"])), boot_id=str(content["boot"])
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


def _change_from_json(entry: Mapping[str, Any]) -> Change:
    event = _event_from_json(entry["event"])
    match entry["change"]:
        case "scheduled":
            return Scheduled(event=event, left_s=None if entry["left_s"] is None else float(entry["left_s"]))
        case "started":
            return Started(event=event, first=entry["first"] is True)
        case "gone":
            return Gone(event=event, outcome=Outcome(entry["outcome"]))
        case other:
            raise BadCursor(f"it contains an unknown change {other!r}")


def _event_to_json(event: Event) -> Mapping[str, object]:
    """The event as it came over the wire, so that the document decoder can read it again."""
    return event.raw


def _event_from_json(raw: object) -> Event:
    if not isinstance(raw, dict):
        raise BadCursor("it contains an event that is not an object")
    return decode_event(raw)


def load_cursor(path: Path) -> WatchCursor:
    """Read the cursor file of a watcher; an absent file gives a new, empty cursor."""
    try:
        return decode_cursor(path.read_bytes())
    except FileNotFoundError:
        return WatchCursor()
    except OSError as error:
        raise Rejected(f"the cursor {str(path)!r} cannot be read ({error.strerror}): use another file") from error


def save_cursor(path: Path, cursor: WatchCursor) -> None:
    """Write the cursor durably and atomically in place of the file, with a temporary file beside it."""
    new_file = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new_file.open("wb") as file:
            file.write(encode_cursor(cursor))
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(path)
        sync_to_disk(path.parent)
    except OSError as error:
        new_file.unlink(missing_ok=True)
        raise Rejected(f"the cursor {str(path)!r} cannot be written ({error.strerror}): use another file") from error
