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
    """The body is not a usable document; the message says what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """One event of a document that a client received. The server may be older or newer than this code.

    Status, kind and source are in the specification's spelling if they are known words, else unchanged. A text that is
    missing or of the wrong type is "".
    """

    id: str = ""  # EventId
    status: str = ""  # EventStatus: Scheduled, Started, or an unknown word
    kind: str = ""  # EventType, such as Reboot
    resource_type: str = ""  # ResourceType, such as VirtualMachine
    resources: tuple[str, ...] = ()  # names of the VMs that the event affects, as the server sent them
    not_before: float | None = None  # POSIX seconds; None if it is missing or not a date
    not_before_text: str = ""  # NotBefore as the server sent it
    description: str = ""  # Description
    source: str = ""  # EventSource, such as Platform
    duration_s: int | None = None  # -1: unknown; None: missing (older api-versions) or no number, not even as text
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)  # fields that this code does not know
    raw: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)  # the decoded JSON object


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A scheduled events document as a client received it; `decode_document` makes it.

    `unusable` has one text for each element of Events that is not a usable event: its EventId if that is readable, else
    "". An event that is missing while `unusable` contains its id, or a "", is not known to be over.
    """

    incarnation: int  # DocumentIncarnation, at least 0
    events: tuple[ReceivedEvent, ...] = ()  # the usable ones, in the document's order
    unusable: tuple[str, ...] = ()  # ids of unusable elements, "" for an unreadable id


def encode_document(document: Document, version: str, *, iso_dates: bool = False) -> bytes:
    """Encode the document as JSON in this api-version: only the event kinds and fields that it has.

    NotBefore is "" for a started event, else an RFC 1123 date; with `iso_dates`, up to 2017-08-01, an ISO date, as
    Azure documented then. In 2017-03-01 VM names get a leading underscore, unless `document.roles`.
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
    """Decode the body of a poll response. Events may lack fields, and have unknown ones.

    InvalidDocument if the body is empty (real servers send that), not a document, or has elements but no
    usable event: such a body says nothing about the events, and must not be taken for a document without events.
    """
    content = _decode_object(raw)
    incarnation, elements = _incarnation(content.get("DocumentIncarnation")), content.get("Events")
    if incarnation is None:
        raise _member_error(content, "DocumentIncarnation", "an integer")
    if not isinstance(elements, list):
        raise _member_error(content, "Events", "a list")
    events = tuple(decode_event(element) for element in elements if _is_usable_event(element))
    unusable = tuple(_element_id(element) for element in elements if not _is_usable_event(element))
    if unusable and not events:
        raise InvalidDocument(
            f"the response is not a document: none of the {len(unusable)} elements of Events is an event; poll again"
        )
    return Received(incarnation=incarnation, events=events, unusable=unusable)


def _decode_object(raw: bytes) -> dict[str, object]:
    if not raw.strip():
        raise InvalidDocument("the response has an empty body, not a document: poll again")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"the response of {len(raw)} bytes is not JSON ({error}): poll again") from error
    if not isinstance(content, dict):
        raise InvalidDocument(f"the response is a JSON {type(content).__name__}, not a document: check the address")
    return content


def _member_error(content: dict[str, object], name: str, expected: str) -> InvalidDocument:
    """The error for a missing or wrong member of the document, with the server's own error."""
    state = f"is not {expected}" if name in content else "is missing"
    said = content.get("error")
    reason = f" (it says {said[:200]!r})" if isinstance(said, str) else ""
    return InvalidDocument(f"the response is not a document, because {name} {state}{reason}: poll again")


def _incarnation(value: object) -> int | None:
    """The incarnation; None if it is not an integer of at least 0 (a text is not, even of digits)."""
    number = None if isinstance(value, str) else _integer(value)
    return number if number is not None and number >= 0 and number == value else None


def _is_usable_event(element: object) -> bool:
    """Whether the element has an event's id, kind, status and VMs (spec §4.2)."""
    # Without one of these an event must not be announced: it would count as known when the whole event comes.
    return (
        isinstance(element, dict)
        and all(_text(element.get(name)) for name in ("EventId", "EventStatus", "EventType"))
        and isinstance(element.get("Resources"), list | str)
    )


def _element_id(element: object) -> str:
    return _text(element.get("EventId")) if isinstance(element, dict) else ""


_KNOWN_FIELDS = frozenset(event_fields(NEWEST_VERSION))
_MAX_INTEGER = 2**63 - 1  # a signed 64-bit integer, which every consumer can store


def decode_event(event: dict[str, object]) -> ReceivedEvent:
    """Decode one element of Events, usable or not. Raises nothing."""
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
