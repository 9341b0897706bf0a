"""The supervisor's journal of acts, on disk.

An act is written before its effect and again after it, so that a supervisor that was killed and started again
repeats nothing and knows which act it left unfinished.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MAX_OUTCOMES = 256  # acts that a new keeper still remembers: the service asks about its latest ones only


@dataclass(frozen=True, slots=True, kw_only=True)
class VmActOutcome:
    ok: bool
    note: str = ""


class VmActJournal:
    """An open journal; one keeper at a time."""

    def __init__(self, path: Path) -> None:
        self._begun: dict[str, str] = {}
        self._outcomes: dict[str, VmActOutcome] = {}
        for entry in _read_entries(path):
            self._apply_entry(entry)
        self._file = _rewrite_file(path, self._compacted_entries())

    @property
    def outcomes(self) -> dict[str, VmActOutcome]:
        """The outcomes of all acts that are over, oldest first."""
        return dict(self._outcomes)

    @property
    def unfinished(self) -> dict[str, str]:
        """The verbs of acts that began and whose outcome was never written down."""
        return dict(self._begun)

    def begin(self, act: str, verb: str) -> None:
        """OSError when it cannot be written down: it is not to be begun then."""
        entry = {"act": act, "verb": verb}
        self._write(entry)
        self._apply_entry(entry)

    def finish(self, act: str, outcome: VmActOutcome) -> None:
        """OSError when it cannot be written down; then it is known for as long as this journal is open."""
        entry = {"act": act, **asdict(outcome)}
        self._apply_entry(entry)
        self._write(entry)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, entry: dict[str, Any]) -> None:
        """The whole line, or on a full disk nothing of it: half of one would spoil the next."""
        line, size = _encode_entry(entry), os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _apply_entry(self, entry: dict[str, Any]) -> None:
        if "verb" in entry:
            self._begun[entry["act"]] = entry["verb"]
            return
        self._begun.pop(entry["act"], None)
        self._outcomes[entry["act"]] = VmActOutcome(ok=entry["ok"], note=entry["note"])

    def _compacted_entries(self) -> list[dict[str, Any]]:
        over = [{"act": act, **asdict(outcome)} for act, outcome in self._outcomes.items()]
        self._outcomes = dict(list(self._outcomes.items())[-_MAX_OUTCOMES:])
        return over[-_MAX_OUTCOMES:] + [{"act": act, "verb": verb} for act, verb in self._begun.items()]


def _read_entries(path: Path) -> list[dict[str, Any]]:
    """Only whole lines count: a keeper may have died while it wrote the last one."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [entry for line in lines if (entry := _parse_entry(line)) is not None]


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "act" in entry else None


def _rewrite_file(path: Path, entries: list[dict[str, Any]]) -> int:
    """The journal's file, open for more, with these entries only; never half of them on disk."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.write(file, b"".join(_encode_entry(entry) for entry in entries))
    os.fsync(file)
    os.replace(fresh, path)
    return file


def _encode_entry(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
