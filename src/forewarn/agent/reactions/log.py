"""An event is written down: in the system's journal, or in a file with a JSON object per line."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from forewarn.agent.reaction.child import facts_of
from forewarn.agent.reaction.kind import ReactionKind
from forewarn.agent.reaction.option import Raw, path
from forewarn.agent.reaction.telling import sentence
from forewarn.agent.value import Case, Outcome, Phase
from forewarn.clock import read_real_time

JOURNAL = Path("/run/systemd/journal/socket")
_WARNING, _NOTICE = "4", "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    file: Path | None = None  # None: the system's journal
    journal: Path = JOURNAL


class Log:
    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        place = self._options.file or self._options.journal
        try:
            if self._options.file:
                append_line(self._options.file, _row(case))
            else:
                send_native(self._options.journal, _fields(case))
        except OSError as error:
            return Outcome(ok=False, text=f"{place} cannot be written to: {error.strerror}")
        return Outcome(ok=True, text=f"written to {place}")

    async def undo(self, case: Case) -> Outcome:
        return await self.do(case)

    async def check(self, case: Case) -> bool | None:
        return None


def _row(case: Case) -> dict[str, object]:
    at = datetime.fromtimestamp(read_real_time(), UTC).isoformat(timespec="milliseconds")
    return {"at": at, "message": sentence(case), **facts_of(case)}


def append_line(file: Path, row: Mapping[str, object]) -> None:
    """One write, so that lines of several writers stay whole; on the disk when this returns."""
    target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(target, json.dumps(row).encode() + b"\n")
        os.fsync(target)
    finally:
        os.close(target)


def _fields(case: Case) -> dict[str, str]:
    event = case.event
    return {
        "MESSAGE": sentence(case),
        "PRIORITY": _NOTICE if case.phase is Phase.UNDO else _WARNING,
        "SYSLOG_IDENTIFIER": "forewarn",
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_VM": case.vm,
        "FOREWARN_STEP": case.step.name,
        "FOREWARN_PHASE": str(case.phase),
    }


def send_native(journal: Path, fields: Mapping[str, str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)  # a journal that does not read holds nobody up
        sock.sendto(b"".join(_native(name, text) for name, text in fields.items()), str(journal))


def _native(name: str, text: str) -> bytes:
    """NAME=value; a value of several lines goes with its length instead, so that it can forge no other field."""
    value = text.encode("utf-8", "replace")
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


def read_options(raw: Raw) -> Options:
    return Options(file=path(raw, "file"), journal=path(raw, "journal") or JOURNAL)


LOG = ReactionKind(
    name="log",
    summary="writes the event to the system's journal, or to a file as JSON lines",
    options=("file", "journal"),
    read=read_options,
    make=Log,
    holds=False,
)
