"""Recording what an endpoint tells a VM, into a file that a lab can replay. Needs the [agent] extra only."""

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

from forewarn.cli.duration import duration, span
from forewarn.cli.guest import endpoint_option, own_name
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import faint
from forewarn.cli.wording import counted
from forewarn.client import Client
from forewarn.client.recorder import Recorder
from forewarn.client.recording import Answer, Beginning, End, write_line
from forewarn.clock import read_real_time
from forewarn.errors import Rejected
from forewarn.protocol.codec import Unreadable, decode
from forewarn.protocol.versions import NEWEST, VERSIONS

_SHORTEST_S = 0.01


@click.command()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="A new file.  [default: VM-TIME.jsonl]")
@click.option("--every", "every_s", type=duration, default="1s", show_default=True, help="Between two polls.")
@click.option("--for", "for_s", type=duration, metavar="DURATION", help="End by itself.  [default: at Ctrl-C]")
@click.option("--api-version", "version", type=click.Choice(VERSIONS), default=NEWEST, show_default=True)
@endpoint_option
def record(
    call: Invocation, out: Path | None, every_s: float, for_s: float | None, version: str, endpoint: str | None
) -> None:
    """Record what this VM is told, for `forewarn replay` in a lab.

    Every document and every answer that differs from the one before is written at once, errors too. Of the VM itself
    only its name is kept.
    """
    if every_s < _SHORTEST_S:
        raise Rejected(f"--every {every_s:g} s is too often: give {_SHORTEST_S:g} s or more")
    client = Client(endpoint)
    now = read_real_time()
    beginning = Beginning(vm=own_name(client) or "", api_version=version, started_at=round(now, 3))
    recorder = Recorder(client.endpoint, version=version, every_s=every_s, for_s=for_s)
    path = out or _usual_path(beginning.vm, now)
    with _kept(path, recorder, beginning) as file:
        told = _record(call, recorder, file)
    _conclude(call, path, beginning, told, recorder.end())


def _usual_path(vm: str, now: float) -> Path:
    stem = re.sub(r"[^\w.-]+", "-", vm, flags=re.ASCII).strip("-.") or "vm"
    return Path(f"{stem}-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}.jsonl")


@contextmanager
def _kept(path: Path, recorder: Recorder, beginning: Beginning) -> Iterator[BinaryIO]:
    """A new file, from its first line to its last; one that got no answer at all is not left behind."""
    with _told_of_trouble(path), path.open("xb") as file:
        try:
            _write(file, beginning)
            yield file
            _write(file, recorder.end())
        finally:
            if not recorder.end().polls:
                path.unlink()


@contextmanager
def _told_of_trouble(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise Rejected(f"{str(path)!r} exists already and is not overwritten: give another --out") from error
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be written ({error.strerror}): give another --out") from error


def _record(call: Invocation, recorder: Recorder, file: BinaryIO) -> list[Answer]:
    told: list[Answer] = []
    try:
        for answer in recorder.answers():
            with _undisturbed():
                _write(file, answer)
                told.append(answer)
            if not call.screen.as_json:
                call.screen.say(faint(f"{span(answer.at_s):>8}  "), wording(answer))
    except KeyboardInterrupt:
        pass  # how a recording usually ends
    return told


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits: what is being written is written whole, and counted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _write(file: BinaryIO, part: Beginning | Answer | End) -> None:
    """Durably: the VM may be gone the next moment."""
    file.write(write_line(part))
    file.flush()
    os.fsync(file.fileno())


def wording(answer: Answer) -> str:
    """An answer in a line."""
    if answer.status is None:
        return f"no answer: {answer.broke}"
    if answer.status != 200:
        return f"status {answer.status}"
    try:
        received = decode(answer.body)
    except Unreadable as error:
        return str(error).partition(": ")[0]
    events = [f"{event.kind} of {', '.join(event.resources)} {event.status.lower()}" for event in received.events]
    return f"incarnation {received.incarnation}: {'; '.join(events) or 'no events'}"


def _conclude(call: Invocation, path: Path, beginning: Beginning, told: list[Answer], end: End) -> None:
    if call.screen.as_json:
        summary = {"file": str(path), "vm": beginning.vm, "answers": len(told), "polls": end.polls, "for_s": end.at_s}
        call.screen.document(summary)
        return
    answers, polls = counted(len(told), "different answer"), counted(end.polls, "poll")
    call.screen.say(f"{path} holds {answers} to {polls} in {span(end.at_s)}.")
    call.screen.hints([(f"forewarn replay {path} --vm VM", "tell the story again, in a lab")])
