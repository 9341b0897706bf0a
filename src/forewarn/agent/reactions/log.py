"""Reaction `log`: writes the event to the systemd journal, or to a file as JSON lines."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome, StepPhase
from forewarn.agent.reactions.event_text import event_facts, event_sentence
from forewarn.agent.reactions.options import RawOptions, ReactionKind, read_path
from forewarn.clock import read_real_time

SYSTEMD_JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
_PRIORITY_WARNING, _PRIORITY_NOTICE = "4", "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    file: Path | None = None  # None: the system's journal
    journal: Path = SYSTEMD_JOURNAL_SOCKET


class LogReaction:
    def __init__(self, options: LogOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        place = self._options.file or self._options.journal
        try:
            if self._options.file:
                append_json_line(self._options.file, _json_row(case))
            else:
                send_to_systemd_journal(self._options.journal, _journal_fields(case))
        except OSError as error:
            return StepOutcome(ok=False, text=f"{place} cannot be written to: {error.strerror}")
        return StepOutcome(ok=True, text=f"written to {place}")

    async def undo(self, case: StepContext) -> StepOutcome:
        return await self.do(case)

    async def check(self, case: StepContext) -> bool | None:
        return None


def _json_row(case: StepContext) -> dict[str, object]:
    at = datetime.fromtimestamp(read_real_time(), UTC).isoformat(timespec="milliseconds")
    return {"at": at, "message": event_sentence(case), **event_facts(case)}


def append_json_line(file: Path, row: Mapping[str, object]) -> None:
    """One write, so that lines of several writers stay whole; on the disk when this returns."""
    target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(target, json.dumps(row).encode() + b"\n")
        os.fsync(target)
    finally:
        os.close(target)


def _journal_fields(case: StepContext) -> dict[str, str]:
    event = case.event
    return {
        "MESSAGE": event_sentence(case),
        "PRIORITY": _PRIORITY_NOTICE if case.phase is StepPhase.UNDO else _PRIORITY_WARNING,
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


def send_to_systemd_journal(journal: Path, fields: Mapping[str, str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)  # a journal that does not read holds nobody up
        sock.sendto(b"".join(_encode_journal_field(name, text) for name, text in fields.items()), str(journal))


def _encode_journal_field(name: str, text: str) -> bytes:
    """NAME=value; a value of several lines goes with its length instead, so that it can forge no other field."""
    value = text.encode("utf-8", "replace")
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


def read_options(raw: RawOptions) -> LogOptions:
    return LogOptions(file=read_path(raw, "file"), journal=read_path(raw, "journal") or SYSTEMD_JOURNAL_SOCKET)


LOG_REACTION = ReactionKind(
    name="log",
    summary="writes the event to the system's journal, or to a file as JSON lines",
    options=("file", "journal"),
    read=read_options,
    make=LogReaction,
    shared_by_events=False,
)
