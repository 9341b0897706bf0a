"""Reaction `log`: writes the event to the systemd journal, or to a file as JSON lines."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome, StepPhase
from forewarn.agent.reactions.options import ReactionKind
from forewarn.agent.reactions.step_context import event_facts, event_sentence
from forewarn.base.clock import read_real_time
from forewarn.base.times import time_text
from forewarn.base.tomlfile import RawTable, read_path

SYSTEMD_JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
_PRIORITY_WARNING, _PRIORITY_NOTICE = "4", "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    file: Path | None = None  # the file to append JSON lines to; None: write to the systemd journal
    journal: Path = SYSTEMD_JOURNAL_SOCKET  # unix socket of the systemd journal, used without `file`


class LogReaction:
    """The reaction `log`: writes a line when an event is announced, and one when it is gone."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        target_path = self._options.file or self._options.journal
        try:
            if self._options.file:
                _append_json_line(self._options.file, _json_row(context))
            else:
                _send_to_systemd_journal(self._options.journal, _journal_fields(context))
        except OSError as error:
            return StepOutcome(ok=False, text=f"{target_path} cannot be written to: {error.strerror}")
        return StepOutcome(ok=True, text=f"written to {target_path}")

    async def undo(self, context: StepContext) -> StepOutcome:
        return await self.do(context)

    async def check(self, context: StepContext) -> bool | None:
        return None


def _json_row(context: StepContext) -> dict[str, object]:
    return {"at": time_text(read_real_time()), "message": event_sentence(context), **event_facts(context)}


def _append_json_line(file: Path, row: Mapping[str, object]) -> None:
    """Appends `row` to the file as one JSON line, by a single write, so that concurrent lines stay whole."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(fd, json.dumps(row).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def _journal_fields(context: StepContext) -> dict[str, str]:
    event = context.event
    return {
        "MESSAGE": event_sentence(context),
        "PRIORITY": _PRIORITY_NOTICE if context.phase is StepPhase.UNDO else _PRIORITY_WARNING,
        "SYSLOG_IDENTIFIER": "forewarn",
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_VM": context.vm,
        "FOREWARN_STEP": context.step.name,
        "FOREWARN_PHASE": str(context.phase),
    }


def _send_to_systemd_journal(journal: Path, fields: Mapping[str, str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)  # a full journal must not block the agent
        sock.sendto(b"".join(_encode_journal_field(name, text) for name, text in fields.items()), str(journal))


def _encode_journal_field(name: str, text: str) -> bytes:
    """Encodes a field; values with newlines carry their length, so that they cannot forge fields."""
    value = text.encode("utf-8", "replace")
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


def _read_options(raw: RawTable) -> LogOptions:
    return LogOptions(file=read_path(raw, "file"), journal=read_path(raw, "journal") or SYSTEMD_JOURNAL_SOCKET)


LOG_REACTION = ReactionKind(
    name="log",
    summary="writes the event to the systemd journal, or to a file as JSON lines",
    options=("file", "journal"),
    read=_read_options,
    make=LogReaction,
    shared_by_events=False,
)
