"""Records an endpoint to a file, and reads it: JSON lines, readable after a crash.

The first line has the format, the VM's name, the api-version and the start time. Then one line follows for each
answer that differs from the one before, with its offset and the server's Date. A last line has the end time; if it
is missing, the recorder was cut off, and half a line at the end is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forewarn.client.blocking_client import send_request
from forewarn.client.effects import Unreachable
from forewarn.client.endpoint import Endpoint
from forewarn.client.requests import LONG_POLL_PAUSE_S, LONG_POLL_S, POLL_INTERVAL_S, poll_request
from forewarn.client.session import ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.dates import parse_date
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.versions import NEWEST_VERSION

RECORDING_FORMAT = 1  # version of the file format
_FORMAT_KEY = "forewarn-recording"
_REMEDY = "record again, or remove the line"
_JsonLine = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """The first line of a recording: what was recorded, and since when."""

    vm: str  # name of the VM in which it was recorded; "" if the endpoint did not give it
    api_version: str  # of the recorded polls
    started_at: float  # POSIX seconds by the recorder's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResponse:
    """One answer to a poll, or its failure, that differs from the one before; a line of a recording."""

    at_s: float  # seconds since the recording began
    status: int | None  # None if no response came
    date: float | None = None  # the server's Date, as POSIX seconds; None: it gave none
    content_type: str = ""  # the header, on one line of ASCII; "": none
    retry_after: str = ""  # the header, likewise; "": none
    body: bytes = b""  # b"" if no response came
    broke: str = ""  # the error, if no response came

    def has_same_content(self, other: RecordedResponse) -> bool:
        """Return whether status, content type, Retry-After and body are equal; times and `broke` do not count."""
        own, their = (_answer_content(answer) for answer in (self, other))
        return own == their


def _answer_content(answer: RecordedResponse) -> tuple[int | None, str, str, bytes]:
    return answer.status, answer.content_type, answer.retry_after, answer.body


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEnd:
    """The last line of a recording that was not cut off."""

    at_s: float  # seconds since the recording began
    date: float | None = None  # of the server's last response, as POSIX seconds; None: it gave none
    polls: int = 0  # also those that failed or brought nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRecording:
    """A whole recording: what a recording file contains."""

    header: RecordingHeader  # the VM, the api-version and the start
    answers: tuple[RecordedResponse, ...] = ()  # in order of time, failures too
    end: RecordingEnd | None = None  # None: the recorder was cut off


class BadRecording(Rejected):
    """The file cannot be replayed; the message names the file, the line if one is at fault, and a remedy."""


def encode_line(part: RecordingHeader | RecordedResponse | RecordingEnd) -> bytes:
    """Encode one line of a recording file, with its newline. Raises ValueError if a number is not finite."""
    if isinstance(part, RecordingHeader):
        line = {
            _FORMAT_KEY: RECORDING_FORMAT,
            "vm": part.vm,
            "api_version": part.api_version,
            "started_at": part.started_at,
        }
    elif isinstance(part, RecordingEnd):
        line = {"at_s": part.at_s, "date": part.date, "polls": part.polls, "ended": True}
    else:
        line = _answer_to_json(part)
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def encode_recording(recording: EndpointRecording) -> bytes:
    """Encode a whole recording as the bytes of its file, one line for each part."""
    ends = (recording.end,) if recording.end else ()
    return b"".join(encode_line(part) for part in (recording.header, *recording.answers, *ends))


def _answer_to_json(answer: RecordedResponse) -> dict[str, Any]:
    line: dict[str, Any] = {"at_s": answer.at_s, "date": answer.date, "status": answer.status}
    if answer.status is None:
        return {**line, "broke": answer.broke}
    for name in ("content_type", "retry_after"):
        if text := getattr(answer, name):
            line[name] = text
    try:
        return {**line, "body": answer.body.decode("utf-8")}
    except UnicodeDecodeError:
        return {**line, "body_base64": base64.b64encode(answer.body).decode("ascii")}


def decode_recording(raw: bytes, source: str) -> EndpointRecording:
    """Decode the bytes of a recording file, `raw`; `source` names the file in messages."""
    lines = list(_parse_lines(raw, source))
    if not lines:
        raise BadRecording(f"{source}:1: the file is empty; make a recording with `forewarn record`")
    header = _read_header(*lines[0])
    parts = [_read_part(line, place) for line, place in lines[1:]]
    for part, (_, place) in zip(parts[:-1], lines[1:-1], strict=True):
        if isinstance(part, RecordingEnd):
            raise BadRecording(f"{place}: the recording ends here, but more lines follow; remove them")
    answers = tuple(part for part in parts if isinstance(part, RecordedResponse))
    _check_order(parts, lines)
    if not answers:
        raise BadRecording(f"{source}: the recording contains no answer; record until the endpoint has answered once")
    return EndpointRecording(
        header=header, answers=answers, end=next((part for part in parts if isinstance(part, RecordingEnd)), None)
    )


def _parse_lines(raw: bytes, source: str) -> Iterator[tuple[_JsonLine, str]]:
    *complete_lines, rest = raw.split(b"\n")
    for number, text in enumerate([*complete_lines, rest], start=1):
        place = f"{source}:{number}"
        is_cut_off = number > len(complete_lines)
        if not text.strip():
            continue
        try:
            line = json.loads(text, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            if is_cut_off and number > 1:
                return
            raise BadRecording(f"{place}: this line is not JSON ({_short_error(error)}); {_REMEDY}") from error
        if not isinstance(line, dict):
            raise BadRecording(f"{place}: this line is not a JSON object; {_REMEDY}")
        yield line, place


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _short_error(error: Exception) -> str:
    return str(error).partition(": line")[0][:80]


def _read_header(line: _JsonLine, place: str) -> RecordingHeader:
    if _FORMAT_KEY not in line:
        raise BadRecording(f"{place}: the file does not begin like a recording; use a file made with `forewarn record`")
    if line[_FORMAT_KEY] != RECORDING_FORMAT or isinstance(line[_FORMAT_KEY], bool):
        raise BadRecording(
            f"{place}: the recording has format {line[_FORMAT_KEY]!r} and this forewarn reads "
            f"{RECORDING_FORMAT}; use a newer forewarn"
        )
    return RecordingHeader(
        vm=_read_text(line, "vm", place),
        api_version=_read_text(line, "api_version", place),
        started_at=_read_number(line, "started_at", place),
    )


def _read_part(line: _JsonLine, place: str) -> RecordedResponse | RecordingEnd:
    at_s, date = (
        _read_number(line, "at_s", place),
        None if line.get("date") is None else _read_number(line, "date", place),
    )
    if line.get("ended") is True:
        return RecordingEnd(
            at_s=at_s, date=date, polls=int(_read_number(line, "polls", place)) if "polls" in line else 0
        )
    if "status" not in line:
        raise BadRecording(f"{place}: 'status' is missing; {_REMEDY}")
    if line["status"] is None:
        return RecordedResponse(at_s=at_s, date=date, status=None, broke=_read_text(line, "broke", place))
    return RecordedResponse(
        at_s=at_s,
        date=date,
        status=_read_status(line, place),
        content_type=_read_text(line, "content_type", place),
        retry_after=_read_text(line, "retry_after", place),
        body=_read_body(line, place),
    )


def _check_order(parts: list[RecordedResponse | RecordingEnd], lines: list[tuple[_JsonLine, str]]) -> None:
    latest = 0.0
    for part, (_, place) in zip(parts, lines[1:], strict=True):
        if part.at_s < latest:
            raise BadRecording(f"{place}: 'at_s' is {part.at_s:g}, before the line above; put the lines in order")
        latest = part.at_s


def _read_number(line: _JsonLine, name: str, place: str) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRecording(f"{place}: {name!r} is {value!r}, not a number of seconds; {_REMEDY}")
    return float(value)


def _read_status(line: _JsonLine, place: str) -> int:
    value = line["status"]
    if isinstance(value, bool) or not isinstance(value, int) or not 200 <= value <= 999:
        raise BadRecording(
            f"{place}: 'status' is {value!r}, not an HTTP status; write 200 to 599, or null for no answer"
        )
    return value


def _read_text(line: _JsonLine, name: str, place: str) -> str:
    value = line.get(name, "")
    if not isinstance(value, str):
        raise BadRecording(f"{place}: {name!r} is {value!r}, not a string; {_REMEDY}")
    return value


def _read_body(line: _JsonLine, place: str) -> bytes:
    try:
        if "body_base64" in line:
            return base64.b64decode(_read_text(line, "body_base64", place), validate=True)
        return _read_text(line, "body", place).encode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise BadRecording(f"{place}: the body is neither text nor base64; {_REMEDY}") from error


# Records an endpoint: polls as a watcher does, and yields each answer that differs from the last.


class EndpointRecorder:
    """Records what an endpoint answers to polls, once and in real time; `for_s` limits it in seconds.

    The api-version is not negotiated, so a refusal is an answer like any other. It writes no file: the caller stores
    what `answers` yields and, at the end, the result of `end`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        version: str = NEWEST_VERSION,
        every_s: float = POLL_INTERVAL_S,
        for_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint, self._version = endpoint, version
        self._every_s, self._for_s = every_s, math.inf if for_s is None else for_s
        self._clock, self._sleep = clock, sleep
        self._started_at = clock()
        self._etag = ""
        self._was_held = False
        self._date: float | None = None
        self._polls = 0

    def answers(self) -> Iterator[RecordedResponse]:
        """Poll, and yield each answer whose content differs from the last one's, until `for_s` is over."""
        last: RecordedResponse | None = None
        while self._left_s() > 0:
            answer = self._poll()
            if answer is not None and (last is None or not answer.has_same_content(last)):
                last = answer
                yield answer
            self._sleep(min(self._pause_s(), max(0.0, self._left_s())))

    def end(self) -> RecordingEnd:
        """Return the recording's last line, as of now: elapsed seconds, Date of the last response, polls."""
        return RecordingEnd(at_s=self._elapsed_s(), date=self._date, polls=self._polls)

    def _poll(self) -> RecordedResponse | None:
        """Polls once; None if the document has not changed (304)."""
        hold_s = math.ceil(min(LONG_POLL_S, self._left_s())) if self._etag else 0
        timeout_s = hold_s + ANSWER_TIMEOUT_S if self._polls else FIRST_ANSWER_TIMEOUT_S
        try:
            response = send_request(
                self._endpoint, poll_request(version=self._version, tag=self._etag, hold_s=hold_s), timeout_s
            )
        except Unavailable as error:
            if not self._polls and isinstance(error, Unreachable):
                raise
            return self._failed_answer(str(error))
        return self._recorded_answer(response)

    def _failed_answer(self, broke: str) -> RecordedResponse:
        self._polls += 1
        self._etag, self._was_held = "", False
        return RecordedResponse(at_s=self._elapsed_s(), status=None, broke=broke)

    def _recorded_answer(self, response: HttpResponse) -> RecordedResponse | None:
        fields = dict(response.headers)
        self._polls += 1
        self._date = parse_date(fields.get("date", ""))
        self._was_held = "wait" in fields.get("preference-applied", "").lower()
        if response.status == 304 and self._etag:
            return None
        # After anything but a document, drop the ETag to get the next answer in full.
        self._etag = fields.get("etag", "") if response.status == 200 and response.body else ""
        return RecordedResponse(
            at_s=self._elapsed_s(),
            date=self._date,
            status=response.status,
            content_type=_single_ascii_line(fields.get("content-type", "")),
            retry_after=_single_ascii_line(fields.get("retry-after", "")),
            body=response.body,
        )

    def _pause_s(self) -> float:
        may_hold = self._was_held or (self._etag and self._polls == 1)  # not known yet
        return LONG_POLL_PAUSE_S if may_hold else self._every_s

    def _elapsed_s(self) -> float:
        return round(self._clock() - self._started_at, 3)

    def _left_s(self) -> float:
        return self._for_s - (self._clock() - self._started_at)


def _single_ascii_line(text: str) -> str:
    """The text on one line in ASCII, so that it can be replayed as a header."""
    return " ".join(text.split()).encode("ascii", "replace").decode("ascii")
