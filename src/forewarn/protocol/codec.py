"""Encodes a document to JSON for the host, and decodes it tolerantly for the guest (spec §4.1, §4.2).

Encoded text is ASCII with JSON escapes: every JSON reader understands that in any charset (PowerShell 5 guesses
one), and encoding never fails.
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
    """The body is not a document: empty, not JSON, or not a JSON object; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """One event of a document that a client received. The server may be older or newer than this code.

    Status, kind and source are in the specification's spelling if they are known words, else unchanged. A text that is
    missing or of the wrong type is "".
    """

    id: str = ""
    status: str = ""
    kind: str = ""
    resource_type: str = ""
    resources: tuple[str, ...] = ()
    not_before: float | None = None  # POSIX seconds; None if it is missing or not a date
    not_before_text: str = ""  # NotBefore as the server sent it
    description: str = ""
    source: str = ""
    duration_s: int | None = None  # -1: unknown; None: missing (older api-versions) or not a number
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)  # fields that this code does not know
    raw: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)  # the decoded JSON object


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A scheduled events document as a client received it."""

    incarnation: int  # -1: the document has none, or it is not a number
    events: tuple[ReceivedEvent, ...] = ()


def encode_document(document: Document, version: str, *, iso_dates: bool = False) -> bytes:
    """Encode the document as JSON in this api-version: only its event kinds and its fields.

    `iso_dates` has an effect only up to 2017-08-01, which Azure documented with ISO dates. KeyError if the version is
    not in VERSIONS.
    """
    features = version_features(version)
    format_date = iso_date if iso_dates and features.iso_dates else http_date
    prefix = "_" if features.underscore and not document.roles else ""

    events = [
        _event_fields(notice, features, prefix, format_date)
        for notice in document.notices
        if notice.kind in features.kinds
    ]
    content = {"DocumentIncarnation": document.incarnation, "Events": events}
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _event_fields(
    notice: EventNotice, features: VersionFeatures, prefix: str, format_date: Callable[[float], str]
) -> dict[str, object]:
    not_before = None if notice.status is NoticeStatus.STARTED else notice.not_before
    all_fields = {
        "EventId": notice.id,
        "EventStatus": notice.status,
        "EventType": notice.kind,
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in notice.resources],
        "NotBefore": "" if not_before is None else format_date(not_before),
        "Description": notice.description,
        "EventSource": notice.source,
        "DurationInSeconds": notice.duration_s,
    }
    return {name: all_fields[name] for name in features.fields}


def decode_document(raw: bytes) -> Received:
    """Decode the body of a poll response; fields may be missing, unknown or of the wrong type.

    Entries of Events that are not objects are left out. Raises InvalidDocument if the body is empty (real servers send
    that), not JSON, or not a JSON object.
    """
    if not raw.strip():
        raise InvalidDocument("the response has an empty body, not a document: poll again")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"the response of {len(raw)} bytes is not JSON ({error}): poll again") from error
    if not isinstance(content, dict):
        raise InvalidDocument(f"the response is a JSON {type(content).__name__}, not a document: check the address")

    incarnation, events = _integer(content.get("DocumentIncarnation")), content.get("Events")
    event_list = events if isinstance(events, list) else []
    return Received(
        incarnation=-1 if incarnation is None else incarnation,
        events=tuple(_received_event(event) for event in event_list if isinstance(event, dict)),
    )


_KNOWN_FIELDS = frozenset(event_fields(NEWEST_VERSION))
_MAX_INTEGER = 2**63 - 1  # a signed 64-bit integer, which every consumer can store


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
    """Return the value if it is text, else "". Lone surrogates (`\\ud800` in JSON) become "?"."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _text_tuple(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(_text(item) for item in items if isinstance(item, str))


def _canonical_spelling(values: type[StrEnum], value: object) -> str:
    """Azure does not promise the case of these values, so they are compared without case."""
    text = _text(value)
    return next((str(known) for known in values if known.lower() == text.lower()), text)


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _MAX_INTEGER else None
