"""Substitute answers: what the proxy sends in place of the service's own answer.

Each function makes a `SpoiledAnswer` for a script to give to `Stage.substitute`. Whole answers, such as a status or a
web proxy's HTML page, are given at once, and the service does not get the request. Documents are edited as JSON: the
order of their keys is kept, and a body that is not a document is left alone. An answer with another body has no ETag,
so that a handler never takes a spoiled document for the current one because of a 304.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus

import httptools

from forewarn.metadata.response_writer import INTERNAL_ERROR_RESPONSE
from forewarn.metadata.transport_faults import GONE_RESPONSE
from forewarn.protocol.dates import http_date, iso_date, parse_date
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse
from forewarn.protocol.responses import (
    bad_request,
    service_unavailable,
    too_many_requests,
    unsupported_version,
    version_not_found,
)
from forewarn.protocol.versions import VERSIONS


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """An HTTP answer of the service, or one that the proxy sends instead.

    `headers` from the service lack Content-Length, Transfer-Encoding and Connection; the proxy adds what is needed when
    it sends the answer. If `headers` have a Content-Length, that is sent even if it is wrong. With Transfer-Encoding:
    chunked in `headers`, the body is sent in chunks, unless the request is of HTTP/1.0.
    """

    status: int  # the HTTP status
    headers: tuple[tuple[str, str], ...]  # pairs of name and value, in order
    body: bytes  # without the framing of chunks

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by its name ignoring letter case; None if it is absent."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)


class Concerns(StrEnum):
    """Which requests a substitute is for; the others get the service's answer."""

    POLLS = "polls"  # GET of the scheduled events
    APPROVALS = "approvals"  # POST to the scheduled events
    ALL = "all"  # these, and requests for anything else on the endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiledAnswer:
    """How the proxy answers instead of the service; a script gives it to `Stage.substitute`.

    The service still gets the request and acts on it, unless `withholds_request`. The handler gets what `transform`, a
    pure function, makes of the service's answer (of an empty 200 if withheld). The service's own answer, sent as usual,
    does not count as a substitute. `never_answers` overrides `delay_s`, which overrides `resets`.
    """

    name: str  # as timelines and reports show it, such as "status 503"
    transform: Callable[[ServiceAnswer], ServiceAnswer] = lambda answer: answer  # default: the service's own
    concerns: Concerns = Concerns.ALL  # other requests get the service's own answer
    delay_s: float = 0.0  # real time before the first byte
    body_s: float = 0.0  # real time over which the body is sent, in small pieces
    never_answers: bool = False  # the connection stays open without an answer
    resets: bool = False  # the connection is reset instead
    refuses_connections: bool = False  # new connections are refused, open ones closed
    withholds_request: bool = False  # the service does not get the request: an approval has no effect
    served_versions: frozenset[str] = frozenset()  # requests with these api-versions get the service's own answer


_QUARTER_HOUR_S = 900
_HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><h1>Sign in to continue</h1></body></html>\n"
_Json = dict[str, object]


# Whole answers


def status(
    code: int,
    body: bytes | None = None,
    retry_after: int | str | None = None,
    *,
    concerns: Concerns = Concerns.ALL,
    withholds_request: bool = True,
) -> SpoiledAnswer:
    """Make a substitute: this status, `body` as JSON; None: an object with `error`, the status in words.

    `retry_after` is the Retry-After header: seconds, or a date; None: without it. Unless `withholds_request`, the
    service gets the request and acts on it, although the handler reads this status. `concerns` says for which requests.
    """
    if body is None:
        body = json.dumps({"error": _reason_phrase(code)}).encode("ascii")
    headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    response = HttpResponse(status=code, headers=(JSON_CONTENT_TYPE, *headers), body=body)
    name = f"status {code}" if retry_after is None else f"status {code} with Retry-After: {retry_after}"
    name += " for approvals" if concerns is Concerns.APPROVALS else ""
    return replace(_whole_answer(name, response, concerns), withholds_request=withholds_request)


def html_page(code: int = 200) -> SpoiledAnswer:
    """Make a substitute: this status and an HTML page for polls, which do not reach the service."""
    response = HttpResponse(status=code, headers=(("Content-Type", "text/html; charset=utf-8"),), body=_HTML)
    name = "an HTML page" if code == 200 else f"status {code} with an HTML page"
    return _whole_answer(name, response, Concerns.POLLS)


def empty_body() -> SpoiledAnswer:
    """Make a substitute: 200 and an empty body for polls, which do not reach the service."""
    response = HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,))
    return _whole_answer("200 with an empty body", response, Concerns.POLLS)


def empty_object() -> SpoiledAnswer:
    """Make a substitute: 200 and the JSON `{}`, no document, for polls, which do not reach the service."""
    response = HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,), body=b"{}")
    return _whole_answer("an empty JSON object", response, Concerns.POLLS)


def redirect(location: str = "/sign-in", code: int = 302) -> SpoiledAnswer:
    """Make a substitute: redirect polls to this location, with this status; the service does not get them.

    By default the location is a path of the same endpoint that does not exist there.
    """
    response = HttpResponse(status=code, headers=(("Location", location),))
    return _whole_answer(f"a redirect to {location}", response, Concerns.POLLS)


def unauthorized() -> SpoiledAnswer:
    """Make a substitute: 401 for all requests, as the metadata security protocol answers unsigned ones.

    The service does not get them.
    """
    return status(401)


def gone() -> SpoiledAnswer:
    """Make a substitute: 410 in the service's words for all requests, as for up to 70 s while a VM moves.

    The service does not get them.
    """
    return _whole_answer("status 410", GONE_RESPONSE, Concerns.ALL)


def throttled(retry_after: int | str | None = 1, *, concerns: Concerns = Concerns.ALL) -> SpoiledAnswer:
    """Make a substitute: 429 in the service's words with Retry-After (seconds, a date; None: without it).

    `concerns` says which requests; the service does not get them.
    """
    return status(429, too_many_requests().body, retry_after, concerns=concerns)


def version_refused(served: tuple[str, ...] = ()) -> SpoiledAnswer:
    """Make a substitute: 400 with the service's text for all api-versions but those in `served`.

    The text lists the newest three of `served`. By default it lists the newest three of all api-versions, and every
    request is refused. The service does not get refused requests.
    """
    return replace(
        _whole_answer("api-version refused with 400", unsupported_version(served or VERSIONS), Concerns.ALL),
        served_versions=frozenset(served),
    )


def version_unknown(served: tuple[str, ...] = ()) -> SpoiledAnswer:
    """Make a substitute: 404 with the service's text for all api-versions but those in `served`.

    By default every request is refused. The service does not get refused requests.
    """
    return replace(
        _whole_answer("api-version refused with 404", version_not_found(), Concerns.ALL),
        served_versions=frozenset(served),
    )


def approval_refused(code: int, retry_after: int | None = None) -> SpoiledAnswer:
    """Make a substitute: refuse approvals with this status; the service does not get them.

    The bodies of 400, 429, 500 and 503 are in the service's words, other bodies are as for `status`. `retry_after` is
    in seconds; None means no header, but a 503 asks for five seconds, as the service does.
    """
    bodies = {
        400: bad_request("The request could not be handled"),
        429: too_many_requests(),
        500: INTERNAL_ERROR_RESPONSE,
        503: service_unavailable(),
    }
    if code == 503 and retry_after is None:
        retry_after = 5
    body = bodies[code].body if code in bodies else None
    refused = status(code, body, retry_after, concerns=Concerns.APPROVALS)
    return replace(refused, name=f"approval refused with {code}")


# Documents with other content


def iso_dates() -> SpoiledAnswer:
    """Make a substitute: polls get NotBefore as an ISO date (2016-09-19T18:29:47Z); an empty one stays."""

    def edit(event: _Json) -> None:
        at = parse_date(str(event.get("NotBefore") or ""))
        if at is not None:
            event["NotBefore"] = iso_date(at)

    return _edited_events("NotBefore as an ISO date", edit)


def wrong_weekdays() -> SpoiledAnswer:
    """Make a substitute: polls get NotBefore with the weekday of the day before; an empty one stays."""

    def edit(event: _Json) -> None:
        at = parse_date(str(event.get("NotBefore") or ""))
        if at is not None:
            event["NotBefore"] = http_date(at - 86_400.0)[:3] + http_date(at)[3:]

    return _edited_events("NotBefore with a wrong weekday", edit)


def empty_not_before() -> SpoiledAnswer:
    """Make a substitute: polls get documents with NotBefore "" in every event, even in Scheduled ones."""
    return _edited_events('NotBefore ""', lambda event: event.update(NotBefore=""))


def unknown_event_type(kind: str = "SpotRebalanceRecommendation") -> SpoiledAnswer:
    """Make a substitute: polls get this EventType in every event; few handlers know the default."""
    return _edited_events(f"EventType {kind}", lambda event: event.update(EventType=kind))


def unknown_keys() -> SpoiledAnswer:
    """Make a substitute: documents with NextLink and Properties, and three unknown keys in each event."""

    def edit(document: _Json) -> None:
        for event in _events(document):
            event |= {"Severity": "Low", "Impact": {"Phases": ["drain", "move"], "Retries": 0}, "Correlation": None}
        document["NextLink"] = None
        document["Properties"] = {"region": "lab", "generation": 2}

    return edited_documents("unknown keys in the document and its events", edit)


def without_fields(*names: str) -> SpoiledAnswer:
    """Make a substitute: polls get documents in which every event lacks these keys, such as Resources."""

    def edit(event: _Json) -> None:
        for name in names:
            event.pop(name, None)

    return _edited_events(f"events without {', '.join(names)}", edit)


def lower_case_names() -> SpoiledAnswer:
    """Make a substitute: polls get the VM names in the Resources of every event in lower case."""
    return _edited_events("VM names in lower case", lambda event: _rename(event, str.lower))


def upper_case_names() -> SpoiledAnswer:
    """Make a substitute: polls get the VM names in the Resources of every event in upper case."""
    return _edited_events("VM names in upper case", lambda event: _rename(event, str.upper))


def incarnation_reset() -> SpoiledAnswer:
    """Make a substitute: polls get DocumentIncarnation 1, as after a day without polls; the events stay."""
    return edited_documents("DocumentIncarnation 1 again", lambda document: document.update(DocumentIncarnation=1))


def older_document() -> SpoiledAnswer:
    """Make a substitute: polls get the document as it was before its newest event.

    It lacks its last event, and its incarnation is one lower, at least 0. A document without events is left alone.
    """

    def edit(document: _Json) -> None:
        events, incarnation = document["Events"], document["DocumentIncarnation"]
        if isinstance(events, list) and events and isinstance(incarnation, int):
            document["Events"] = events[:-1]
            document["DocumentIncarnation"] = max(incarnation - 1, 0)

    return edited_documents("an older document", edit)


def repeated_events() -> SpoiledAnswer:
    """Make a substitute: polls get every event twice, one after the other, with the same EventId."""

    def edit(document: _Json) -> None:
        events = document["Events"]
        if isinstance(events, list):
            document["Events"] = [event for event in events for _ in range(2)]

    return edited_documents("every event listed twice", edit)


def huge_document(other_events: int = 4000) -> SpoiledAnswer:
    """Make a substitute: polls get this many events of other VMs first; 4000 make more than 1 MB.

    Their NotBefore is 15 to 30 minutes after the Date of the answer ("" without one), constant for 15 minutes.
    """

    def transform(answer: ServiceAnswer) -> ServiceAnswer:
        date = parse_date(answer.header("Date") or "")
        not_before = "" if date is None else http_date((date // _QUARTER_HOUR_S + 2) * _QUARTER_HOUR_S)
        return _with_body(answer, _with_other_events(answer.body, other_events, not_before))

    name = f"{other_events} events of other VMs before its own"
    return SpoiledAnswer(name=name, transform=transform, concerns=Concerns.POLLS)


# Documents in other bytes


def byte_order_mark() -> SpoiledAnswer:
    """Make a substitute: polls get the UTF-8 byte order mark before each document."""
    return _edited_bytes("a byte order mark before the document", lambda body: b"\xef\xbb\xbf" + body)


def invalid_json() -> SpoiledAnswer:
    """Make a substitute: polls get half of each document, with its own length: JSON that ends early."""
    return _edited_bytes("invalid JSON", lambda body: body[: len(body) // 2])


def truncated_body() -> SpoiledAnswer:
    """Make a substitute: polls get half of each document, with Content-Length of the whole, then a close."""

    def transform(answer: ServiceAnswer) -> ServiceAnswer:
        if _read_document(answer.body) is None:
            return answer
        cut = _with_body(answer, answer.body[: len(answer.body) // 2])
        return replace(cut, headers=(*cut.headers, ("Content-Length", str(len(answer.body)))))

    return SpoiledAnswer(name="a truncated body", transform=transform, concerns=Concerns.POLLS)


def chunked_transfer() -> SpoiledAnswer:
    """Make a substitute: the service's own answers with Transfer-Encoding: chunked, to all requests.

    HTTP/1.0 and answers without a body are left alone. A chunk has at most 256 bytes: a document needs several.
    """

    def transform(answer: ServiceAnswer) -> ServiceAnswer:
        if not answer.body:
            return answer
        return replace(answer, headers=(*answer.headers, ("Transfer-Encoding", "chunked")))

    return SpoiledAnswer(name="chunked transfer", transform=transform)


# Answers at another time, or none


def slow_body(seconds: float, *, concerns: Concerns = Concerns.POLLS) -> SpoiledAnswer:
    """Make a substitute: the service's answers to `concerns`, with bodies over this many real seconds."""
    return SpoiledAnswer(name=f"a body over {seconds:g} s", body_s=seconds, concerns=concerns)


def late_answer(seconds: float, *, concerns: Concerns = Concerns.ALL) -> SpoiledAnswer:
    """Make a substitute: the service's own answers, this many seconds (real time) later.

    `concerns` says for which requests. The service gets the request at once, and acts on it.
    """
    return SpoiledAnswer(name=f"an answer after {seconds:g} s", delay_s=seconds, concerns=concerns)


def never_answers(*, concerns: Concerns = Concerns.ALL) -> SpoiledAnswer:
    """Make a substitute: no answer; the connection stays open until the handler closes it.

    `concerns` says for which requests. The service gets the request and acts on it.
    """
    name = "no answer to approvals" if concerns is Concerns.APPROVALS else "no answer"
    return SpoiledAnswer(name=name, never_answers=True, concerns=concerns)


def resets_connections(*, concerns: Concerns = Concerns.ALL) -> SpoiledAnswer:
    """Make a substitute: reset the connections of `concerns`, after the service has acted on the request."""
    name = "connection reset after approvals" if concerns is Concerns.APPROVALS else "connection reset"
    return SpoiledAnswer(name=name, resets=True, concerns=concerns)


def refuses_connections() -> SpoiledAnswer:
    """Make a substitute: refuse new connections and close open ones until another is set, despite `times`."""
    return SpoiledAnswer(name="connection refused", refuses_connections=True)


# How these are made


def _whole_answer(name: str, response: HttpResponse, concerns: Concerns) -> SpoiledAnswer:
    """A substitute that gives this answer without the service."""
    # An answer that the service has begun to hold before, of a long poll, is replaced too and keeps its Date.

    def transform(answer: ServiceAnswer) -> ServiceAnswer:
        date = answer.header("Date")
        headers = response.headers if date is None else (*response.headers, ("Date", date))
        return ServiceAnswer(response.status, headers, response.body)

    return SpoiledAnswer(name=name, transform=transform, concerns=concerns, withholds_request=True)


def _with_body(answer: ServiceAnswer, body: bytes) -> ServiceAnswer:
    if body == answer.body:
        return answer
    headers = tuple((name, value) for name, value in answer.headers if name.lower() != "etag")
    return ServiceAnswer(answer.status, headers, body)


def _read_document(body: bytes) -> _Json | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or "DocumentIncarnation" not in content:
        return None
    return content if isinstance(content.get("Events"), list) else None


def _elements(document: _Json) -> list[object]:
    elements = document["Events"]
    return elements if isinstance(elements, list) else []


def _events(document: _Json) -> list[_Json]:
    return [element for element in _elements(document) if isinstance(element, dict)]


def _edit(answer: ServiceAnswer, edit: Callable[[_Json], object]) -> ServiceAnswer:
    document = _read_document(answer.body)
    if document is None:
        return answer
    before = json.dumps(document)
    edit(document)
    if json.dumps(document) == before:
        return answer
    return _with_body(answer, json.dumps(document, separators=(",", ":")).encode("ascii"))


def edited_documents(name: str, edit: Callable[[dict[str, object]], object]) -> SpoiledAnswer:
    """Make a substitute that lets `edit` change each document (a JSON object) in place.

    `name` is shown in timelines. Only answers to polls are changed; bodies that are not a document, and documents that
    `edit` leaves as they are, stay the service's own. What `edit` returns is ignored. A changed answer is compact JSON
    without an ETag.
    """
    return SpoiledAnswer(name=name, transform=lambda answer: _edit(answer, edit), concerns=Concerns.POLLS)


def _edited_events(name: str, edit: Callable[[_Json], object]) -> SpoiledAnswer:
    def edit_all(document: _Json) -> None:
        for event in _events(document):
            edit(event)

    return edited_documents(name, edit_all)


def _edited_bytes(name: str, edit: Callable[[bytes], bytes]) -> SpoiledAnswer:
    def transform(answer: ServiceAnswer) -> ServiceAnswer:
        return answer if _read_document(answer.body) is None else _with_body(answer, edit(answer.body))

    return SpoiledAnswer(name=name, transform=transform, concerns=Concerns.POLLS)


def _rename(event: _Json, change: Callable[[str], str]) -> None:
    names = event.get("Resources")
    if isinstance(names, list):
        event["Resources"] = [change(name) if isinstance(name, str) else name for name in names]


@lru_cache(maxsize=4)  # handlers poll the same document again and again
def _with_other_events(body: bytes, count: int, not_before: str) -> bytes:
    document = _read_document(body)
    if document is None:
        return body
    document["Events"] = [*(_other_event(number, not_before) for number in range(count)), *_elements(document)]
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _other_event(number: int, not_before: str) -> _Json:
    return {
        "EventId": f"{number:08X}-0000-4000-8000-{number:012X}",
        "EventStatus": "Scheduled",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": [f"other-vm-{number:05}"],
        "NotBefore": not_before,
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
    }


# HTTP answers as bytes: reads the service's answer, and encodes a substitute. No I/O.
#
# httptools parses; `AnswerReader` only finds the end of the head, so that interim answers (1xx) can be left out.

_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_SLOW_PIECES = 20
_CHUNK_BYTES = 256  # of a chunked body: small, so that a document needs several
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive"})


class InvalidAnswer(Exception):
    """The service's answer is not HTTP, is longer than the proxy reads, or ended too early."""


class AnswerReader:
    """Reads one HTTP answer of the service: `feed` it received bytes until `is_complete` is True.

    Call `end` when the service closes the connection: only that completes an answer without a length. Use a new reader
    for each request.
    """

    def __init__(self, *, is_head_request: bool = False) -> None:
        self.is_complete = False
        self._is_head_request = is_head_request  # the answer has no body, even with a Content-Length
        self._unread = bytearray()  # of an incomplete head
        self._parser: httptools.HttpResponseParser | None = None  # None: the head is not complete
        self._headers: list[tuple[str, str]] = []
        self._has_all_headers = False
        self._body = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Add the bytes that the service sent next, and return those to pass on to the client."""
        if self._parser is not None:
            self._feed_parser(self._parser, data)
            return data
        self._unread += data
        while (end := self._unread.find(_END_OF_HEAD)) >= 0:
            head = bytes(self._unread[: end + len(_END_OF_HEAD)])
            del self._unread[: len(head)]
            parser = httptools.HttpResponseParser(self)
            self._feed_parser(parser, head)
            if parser.get_status_code() >= HTTPStatus.OK:
                rest = bytes(self._unread)
                self._unread.clear()
                self._parser = parser
                self.is_complete = self.is_complete or self._is_head_request
                self._feed_parser(parser, rest)
                return head + rest
            self._headers, self._has_all_headers, self.is_complete = [], False, False  # of an interim answer
        if len(self._unread) > _MAX_HEAD_BYTES:
            raise InvalidAnswer("the head of the service's answer is too long")
        return b""

    def end(self) -> None:
        """Note that the service has closed the connection, which completes an answer without a length."""
        if self.is_complete:
            return
        if self._parser is None or self._has_length:
            raise InvalidAnswer("the service closed the connection before its answer was complete")
        self.is_complete = True

    @property
    def status(self) -> int | None:
        """The status of the final answer; None before its head is complete, and for interim answers (1xx)."""
        return None if self._parser is None else int(self._parser.get_status_code())

    @property
    def keeps_connection(self) -> bool:
        """Whether the service keeps the connection open after this answer. Valid once its head is complete."""
        is_closing = any(name.lower() == "connection" and value.lower() == "close" for name, value in self._headers)
        return not is_closing and (self._has_length or self.status == HTTPStatus.NOT_MODIFIED)

    @property
    def body(self) -> bytes:
        """The body of the answer as far as it was received, without the framing of chunks; a copy."""
        return bytes(self._body)

    @property
    def answer(self) -> ServiceAnswer:
        """The answer with status, headers and body, valid once it is complete."""
        headers = tuple((name, value) for name, value in self._headers if name.lower() not in _FRAMING)
        return ServiceAnswer(self.status or 0, headers, self.body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of the answer; only httptools, the parser, calls this, with the bytes as received."""
        if not self._has_all_headers:
            self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Note that all headers of the answer were read; only httptools, the parser, calls this."""
        self._has_all_headers = True

    def on_body(self, data: bytes) -> None:
        """Append a part of the answer's body, without the framing of chunks; only httptools calls this."""
        self._body += data

    def on_message_complete(self) -> None:
        """Note that the answer is complete (`is_complete`); only httptools, the parser, calls this."""
        self.is_complete = True

    @property
    def _has_length(self) -> bool:
        return any(name.lower() in ("content-length", "transfer-encoding") for name, _ in self._headers)

    def _feed_parser(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        if not data:
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise InvalidAnswer(f"the service's answer is not HTTP ({error})") from error
        if len(self._body) > _MAX_BODY_BYTES:
            raise InvalidAnswer(f"the body of the service's answer is longer than {_MAX_BODY_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedAnswer:
    """A substitute answer as the bytes to send: first `head`, then the pieces of the body in order."""

    head: bytes  # status line and headers, with the empty line at the end
    pieces: tuple[bytes, ...]  # of the body, with the framing of chunks; empty: there is no body
    keeps_connection: bool  # whether another request may follow; False too if the body ends too early


def encode_answer(
    answer: ServiceAnswer, *, keep_alive: bool, is_http10: bool, is_head_request: bool, is_slow: bool
) -> EncodedAnswer:
    """Encode an answer as the bytes for a client. `keep_alive`: both sides want to keep the connection."""
    is_bodyless = answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    is_chunked = answer.header("Transfer-Encoding") is not None and not is_http10 and not is_bodyless
    declared = answer.header("Content-Length")
    is_cut = declared is not None and declared != str(len(answer.body))
    keeps_connection = keep_alive and not is_cut

    lines = [f"HTTP/1.1 {answer.status} {_reason_phrase(answer.status)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers if name.lower() not in _FRAMING]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    elif not is_bodyless:
        lines.append(f"Content-Length: {len(answer.body) if declared is None else declared}")
    if not keeps_connection:
        lines.append("Connection: close")
    elif is_http10:
        lines.append("Connection: keep-alive")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    has_body = not is_bodyless and not is_head_request
    pieces = tuple(_pieces(answer.body, is_chunked=is_chunked, is_slow=is_slow)) if has_body else ()
    return EncodedAnswer(head=head, pieces=pieces, keeps_connection=keeps_connection)


def _pieces(body: bytes, *, is_chunked: bool, is_slow: bool) -> Iterator[bytes]:
    size = max(1, len(body))
    if is_chunked:
        size = _CHUNK_BYTES
    if is_slow:
        size = max(1, -(-len(body) // _MAX_SLOW_PIECES))
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece
    if is_chunked:
        yield b"0\r\n\r\n"


def _reason_phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
