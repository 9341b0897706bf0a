"""Encodes a document to JSON for the host, and decodes it tolerantly for the guest (spec §4.1, §4.2).

Encoded text is ASCII: other characters are escaped as JSON allows, because every JSON reader understands that,
whatever charset it assumes (PowerShell 5 guesses), and no text can fail to be encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.protocol.dates import http_date, iso_date, parse_date
from forewarn.protocol.document import Document, EventNotice, EventSource, Kind, NoticeStatus
from forewarn.protocol.versions import NEWEST_VERSION, VersionFeatures, event_fields, version_features


class InvalidDocument(ValueError):
    """The answer is no document: empty, not JSON, or JSON of another shape. Ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """An event as a guest met it, on a server that may be newer, older or stranger than this code.

    Status, kind and source are in the specification's spelling where it has the word, else as they came.
    """

    id: str = ""
    status: str = ""
    kind: str = ""
    resource_type: str = ""
    resources: tuple[str, ...] = ()
    not_before: float | None = None  # POSIX seconds; None if not given, or not a date
    not_before_text: str = ""  # what stood there
    description: str = ""
    source: str = ""
    duration_s: int | None = None  # None: this version does not say
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)  # fields that this code does not know
    raw: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)  # the whole, as it came


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    incarnation: int  # -1: the server gave none
    events: tuple[ReceivedEvent, ...] = ()


def encode_document(document: Document, version: str, *, iso_dates: bool = False) -> bytes:
    """The document as `version` shows it; `iso_dates` has effect only where the pages showed such dates."""
    shown = version_features(version)
    write_date = iso_date if iso_dates and shown.iso_dates else http_date
    prefix = "_" if shown.underscore and not document.roles else ""

    events = [
        _event_fields(notice, shown, prefix, write_date) for notice in document.notices if notice.kind in shown.kinds
    ]
    whole = {"DocumentIncarnation": document.incarnation, "Events": events}
    return json.dumps(whole, separators=(",", ":")).encode("ascii")


def _event_fields(
    notice: EventNotice, shown: VersionFeatures, prefix: str, write_date: Callable[[float], str]
) -> dict[str, object]:
    not_before = None if notice.status is NoticeStatus.STARTED else notice.not_before
    every = {
        "EventId": notice.id,
        "EventStatus": notice.status,
        "EventType": notice.kind,
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in notice.resources],
        "NotBefore": "" if not_before is None else write_date(not_before),
        "Description": notice.description,
        "EventSource": notice.source,
        "DurationInSeconds": notice.duration_s,
    }
    return {name: every[name] for name in shown.fields}


def decode_document(raw: bytes) -> Received:
    """Read what a server sent, forgiving fields that are missing, unknown or of the wrong type.

    Raises Unreadable if it is no document at all; an empty body is met in the wild.
    """
    if not raw.strip():
        raise InvalidDocument("the answer has an empty body, not a document: ask again")
    try:
        whole = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"the answer of {len(raw)} bytes is not JSON ({error}): ask again") from error
    if not isinstance(whole, dict):
        raise InvalidDocument(f"the answer is a JSON {type(whole).__name__}, not a document: check the address")

    incarnation, events = _integer(whole.get("DocumentIncarnation")), whole.get("Events")
    listed = events if isinstance(events, list) else []
    return Received(
        incarnation=-1 if incarnation is None else incarnation,
        events=tuple(_received_event(event) for event in listed if isinstance(event, dict)),
    )


_KNOWN_FIELDS = frozenset(event_fields(NEWEST_VERSION))
_MAX_INTEGER = 2**63 - 1  # what any reader of these numbers can hold


def _received_event(event: dict[str, object]) -> ReceivedEvent:
    not_before_text = _text(event.get("NotBefore"))
    return ReceivedEvent(
        id=_text(event.get("EventId")),
        status=_canonical_spelling(NoticeStatus, event.get("EventStatus")),
        kind=_canonical_spelling(Kind, event.get("EventType")),
        resource_type=_text(event.get("ResourceType")),
        resources=_text_tuple(event.get("Resources")),
        not_before=parse_date(not_before_text),
        not_before_text=not_before_text,
        description=_text(event.get("Description")),
        source=_canonical_spelling(EventSource, event.get("EventSource")),
        duration_s=_integer(event.get("DurationInSeconds")),
        extra={name: value for name, value in event.items() if name not in _KNOWN_FIELDS},
        raw=event,
    )


def _text(value: object) -> str:
    """JSON may carry half of a character (`\\ud800`), which no file, database or program takes."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _text_tuple(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    return tuple(_text(name) for name in listed if isinstance(name, str))


def _canonical_spelling(words: type[StrEnum], value: object) -> str:
    """The case of these words is said not to be fixed."""
    text = _text(value)
    return next((str(word) for word in words if word.lower() == text.lower()), text)


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _MAX_INTEGER else None
