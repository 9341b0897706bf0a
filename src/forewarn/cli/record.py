"""Records the answers of a VM's endpoint to a file that a lab can replay.

Needs the [agent] extra only.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import click

from forewarn.base.clock import read_real_time
from forewarn.base.duration import format_duration
from forewarn.cli.guest import endpoint_option, vm_name_or_none
from forewarn.cli.invocation import Invocation, duration
from forewarn.cli.output import count_noun, dim
from forewarn.client import Client
from forewarn.client.recording import EndpointRecorder, RecordedResponse, RecordingEnd, RecordingHeader, encode_line
from forewarn.errors import Rejected
from forewarn.protocol.codec import InvalidDocument, decode_document
from forewarn.protocol.versions import ALL_VERSIONS, NEWEST_VERSION

_MIN_INTERVAL_S = 0.01


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write this new file.  [default: VM-TIME.jsonl]"
)
@click.option("--every", "every_s", type=duration, default="1s", show_default=True, help="Poll at this interval.")
@click.option(
    "--for", "duration_s", type=duration, metavar="DURATION", help="Stop after this time.  [default: at Ctrl-C]"
)
@click.option(
    "--api-version",
    "version",
    type=click.Choice(ALL_VERSIONS),
    default=NEWEST_VERSION,
    show_default=True,
    help="Poll with this version.",
)
@endpoint_option
def record(
    call: Invocation, out: Path | None, every_s: float, duration_s: float | None, version: str, endpoint: str | None
) -> None:
    """Record this VM's events, for `forewarn replay` in a lab.

    Writes each answer that differs from the one before, errors included, at once. Besides answers, times and the
    api-version, it records only the VM's name.
    """
    if every_s < _MIN_INTERVAL_S:
        raise Rejected(f"--every {every_s:g} s is too often: give {_MIN_INTERVAL_S:g} s or more")
    client = Client(endpoint)
    now = read_real_time()
    header = RecordingHeader(vm=vm_name_or_none(client) or "", api_version=version, started_at=round(now, 3))
    recorder = EndpointRecorder(client.endpoint, version=version, every_s=every_s, for_s=duration_s)
    path = out or _default_path(header.vm, now)
    with _recording_file(path, recorder, header) as file:
        answers = _record_answers(call, recorder, file)
    _print_summary(call, path, header, answers, recorder.end())


def _default_path(vm: str, now: float) -> Path:
    stem = re.sub(r"[^\w.-]+", "-", vm, flags=re.ASCII).strip("-.") or "vm"
    return Path(f"{stem}-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}.jsonl")


@contextmanager
def _recording_file(path: Path, recorder: EndpointRecorder, header: RecordingHeader) -> Iterator[BinaryIO]:
    """Create the file with its header, at the end its last line; remove it if there was no poll."""
    with _file_errors_rejected(path), path.open("xb") as file:
        try:
            _write_durably(file, header)
            yield file
            _write_durably(file, recorder.end())
        finally:
            if not recorder.end().polls:
                path.unlink()


@contextmanager
def _file_errors_rejected(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise Rejected(f"{str(path)!r} exists already and is not overwritten: give another --out") from error
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be written ({error.strerror}): give another --out") from error


def _record_answers(call: Invocation, recorder: EndpointRecorder, file: BinaryIO) -> list[RecordedResponse]:
    answers: list[RecordedResponse] = []
    try:
        for answer in recorder.answers():
            with _interrupt_blocked():
                _write_durably(file, answer)
                answers.append(answer)
            if not call.output.as_json:
                call.output.print_line(dim(f"{format_duration(answer.at_s):>8}  "), _answer_text(answer))
    except KeyboardInterrupt:
        pass  # how a recording usually ends
    return answers


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Hold back Ctrl-C, so that a line is written whole and counted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _write_durably(file: BinaryIO, part: RecordingHeader | RecordedResponse | RecordingEnd) -> None:
    """Write one line and fsync, because the VM may be gone the next moment."""
    file.write(encode_line(part))
    file.flush()
    os.fsync(file.fileno())


def _answer_text(answer: RecordedResponse) -> str:
    if answer.status is None:
        return f"no answer: {answer.broke}"
    if answer.status != 200:
        return f"status {answer.status}"
    try:
        received = decode_document(answer.body)
    except InvalidDocument as error:
        return str(error).partition(": ")[0]
    events = [f"{event.kind} of {', '.join(event.resources)} {event.status.lower()}" for event in received.events]
    return f"incarnation {received.incarnation}: {'; '.join(events) or 'no events'}"


def _print_summary(
    call: Invocation, path: Path, header: RecordingHeader, answers: list[RecordedResponse], end: RecordingEnd
) -> None:
    if call.output.as_json:
        summary = {
            "file": str(path),
            "vm": header.vm,
            "answers": len(answers),
            "polls": end.polls,
            "duration_s": end.at_s,
        }
        call.output.print_json(summary)
        return
    answers_text, polls_text = count_noun(len(answers), "different answer"), count_noun(end.polls, "poll")
    call.output.print_line(f"{path} holds {answers_text} to {polls_text} in {format_duration(end.at_s)}.")
    call.output.print_hints([(f"forewarn replay {path} --vm VM", "replay it in a lab")])
