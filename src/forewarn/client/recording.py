"""The file that a recording is kept in: JSON lines, so that what was written before a crash can be read after it.

The first line says what the file is: its format, the VM's name, the api-version, and when it began. Then comes one line
per answer that differed from the one before, with its local offset and the server's Date. A last line says when the
recording ended; where it is missing, the recorder was cut off, and half a line at the end is forgiven.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forewarn.errors import Rejected

FORMAT = 1
_MARK = "forewarn-recording"
_AGAIN = "record again, or take the line out"
_Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    vm: str  # "": the endpoint did not tell its name
    api_version: str
    started_at: float  # POSIX seconds, by the recorder's own clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to a poll, unlike the one before it."""

    at_s: float  # since the recording began
    status: int | None  # None: there was none
    date: float | None = None  # the server's Date
    content_type: str = ""
    retry_after: str = ""
    body: bytes = b""
    broke: str = ""  # what happened instead of an answer

    def says_as(self, other: Answer) -> bool:
        """Whether it says the same, at whatever time."""
        mine, others = (_said(answer) for answer in (self, other))
        return mine == others


def _said(answer: Answer) -> tuple[int | None, str, str, bytes]:
    return answer.status, answer.content_type, answer.retry_after, answer.body


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    at_s: float
    date: float | None = None  # the last that the server gave
    polls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    beginning: Beginning
    answers: tuple[Answer, ...] = ()
    end: End | None = None  # None: the recorder was cut off


class BadRecording(Rejected):
    """A file that cannot be replayed, with the line that is to blame."""


def write_line(part: Beginning | Answer | End) -> bytes:
    """One line of the file, with its end."""
    if isinstance(part, Beginning):
        line = {_MARK: FORMAT, "vm": part.vm, "api_version": part.api_version, "started_at": part.started_at}
    elif isinstance(part, End):
        line = {"at_s": part.at_s, "date": part.date, "polls": part.polls, "ended": True}
    else:
        line = _answer_line(part)
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def write_recording(recording: Recording) -> bytes:
    ends = (recording.end,) if recording.end else ()
    return b"".join(write_line(part) for part in (recording.beginning, *recording.answers, *ends))


def _answer_line(answer: Answer) -> dict[str, Any]:
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


def read_recording(raw: bytes, source: str) -> Recording:
    """What a file holds; BadRecording names the line and says what to do."""
    lines = list(_lines(raw, source))
    if not lines:
        raise BadRecording(f"{source}:1: the file is empty, not a recording; make one with `forewarn record`")
    beginning = _read_beginning(*lines[0])
    parts = [_read_part(line, place) for line, place in lines[1:]]
    for part, (_, place) in zip(parts[:-1], lines[1:-1], strict=True):
        if isinstance(part, End):
            raise BadRecording(f"{place}: the recording ends here, but more lines follow; cut them off")
    answers = tuple(part for part in parts if isinstance(part, Answer))
    _must_be_in_order(parts, lines)
    if not answers:
        raise BadRecording(f"{source}: the recording holds no answer; record until the endpoint has answered once")
    return Recording(
        beginning=beginning, answers=answers, end=next((part for part in parts if isinstance(part, End)), None)
    )


def _lines(raw: bytes, source: str) -> Iterator[tuple[_Line, str]]:
    *whole, rest = raw.split(b"\n")
    for number, text in enumerate([*whole, rest], start=1):
        place = f"{source}:{number}"
        is_cut_off = number > len(whole)
        if not text.strip():
            continue
        try:
            line = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            if is_cut_off and number > 1:
                return
            raise BadRecording(f"{place}: this is no line of JSON ({_brief(error)}); {_AGAIN}") from error
        if not isinstance(line, dict):
            raise BadRecording(f"{place}: this is JSON, but no object; {_AGAIN}")
        yield line, place


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _brief(error: Exception) -> str:
    return str(error).partition(": line")[0][:80]


def _read_beginning(line: _Line, place: str) -> Beginning:
    if _MARK not in line:
        raise BadRecording(f"{place}: this does not begin a recording; give a file that `forewarn record` has made")
    if line[_MARK] != FORMAT or isinstance(line[_MARK], bool):
        raise BadRecording(
            f"{place}: the recording has format {line[_MARK]!r} and this forewarn reads {FORMAT}; use a newer forewarn"
        )
    return Beginning(
        vm=_text(line, "vm", place),
        api_version=_text(line, "api_version", place),
        started_at=_number(line, "started_at", place),
    )


def _read_part(line: _Line, place: str) -> Answer | End:
    at_s, date = _number(line, "at_s", place), None if line.get("date") is None else _number(line, "date", place)
    if line.get("ended") is True:
        return End(at_s=at_s, date=date, polls=int(_number(line, "polls", place)) if "polls" in line else 0)
    if "status" not in line:
        raise BadRecording(f"{place}: 'status' is missing; {_AGAIN}")
    if line["status"] is None:
        return Answer(at_s=at_s, date=date, status=None, broke=_text(line, "broke", place))
    return Answer(
        at_s=at_s,
        date=date,
        status=_status(line, place),
        content_type=_text(line, "content_type", place),
        retry_after=_text(line, "retry_after", place),
        body=_body(line, place),
    )


def _must_be_in_order(parts: list[Answer | End], lines: list[tuple[_Line, str]]) -> None:
    latest = 0.0
    for part, (_, place) in zip(parts, lines[1:], strict=True):
        if part.at_s < latest:
            raise BadRecording(f"{place}: 'at_s' is {part.at_s:g}, before the line above; put the lines in order")
        latest = part.at_s


def _number(line: _Line, name: str, place: str) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRecording(f"{place}: {name!r} is {value!r}, not a number of seconds; {_AGAIN}")
    return float(value)


def _status(line: _Line, place: str) -> int:
    value = line["status"]
    if isinstance(value, bool) or not isinstance(value, int) or not 200 <= value <= 999:
        raise BadRecording(f"{place}: 'status' is {value!r}, not one of HTTP; give 200 to 599, or null for no answer")
    return value


def _text(line: _Line, name: str, place: str) -> str:
    value = line.get(name, "")
    if not isinstance(value, str):
        raise BadRecording(f"{place}: {name!r} is {value!r}, not a text; {_AGAIN}")
    return value


def _body(line: _Line, place: str) -> bytes:
    try:
        if "body_base64" in line:
            return base64.b64decode(_text(line, "body_base64", place), validate=True)
        return _text(line, "body", place).encode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise BadRecording(f"{place}: the body is neither text nor base64; {_AGAIN}") from error
