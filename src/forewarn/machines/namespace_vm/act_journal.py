"""The supervisor's journal of acts, on disk.

An act is written before its effect and again after it, so that a supervisor that was killed and started again
repeats nothing and knows which act it left unfinished. Only shutdowns are repeated if they are ordered again: a new
supervisor starts the VM, which undoes them.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forewarn.base.files import sync_to_disk

_MAX_OUTCOMES = 256  # kept when a journal is opened: the service asks only about recent acts


SHUT_DOWN = "shut down"  # the effect of acts after which the VM is down


@dataclass(frozen=True, slots=True, kw_only=True)
class VmActStart:
    """What a new supervisor must know of an act that an earlier one began."""

    effect: str
    wipes_disk: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VmActOutcome:
    """How an act on a VM ended: success or failure, with a note for people ("" for none)."""

    ok: bool  # whether it succeeded
    note: str = ""  # explains the outcome to people


class VmActJournal:
    """The journal of the acts on one VM: which began, and how they ended; durable in the file `path`."""

    # Opening it rewrites the file with all unfinished acts and the latest 256 outcomes, without the outcomes of
    # shutdowns by an earlier process, because the VM starts again. Only one process may have it open.

    def __init__(self, path: Path) -> None:
        self._begun: dict[str, VmActStart] = {}
        self._outcomes: dict[str, VmActOutcome] = {}
        for entry in _read_entries(path):
            begun = self._begun.get(entry["act"])
            self._apply_entry(entry)
            if begun is not None and begun.effect == SHUT_DOWN:
                self.forget_outcome(entry["act"])
        self._file = _rewrite_file(path, self._compacted_entries())

    @property
    def outcomes(self) -> dict[str, VmActOutcome]:
        """The outcomes of finished acts by act id, oldest first; a copy."""
        return dict(self._outcomes)

    @property
    def unfinished(self) -> dict[str, VmActStart]:
        """The acts, by id, that began and have no outcome; a copy."""
        return dict(self._begun)

    def begin(self, act: str, start: VmActStart) -> None:
        """Record durably that the act with this id begins. OSError if that fails: then it must not begin."""
        entry = {"act": act, **asdict(start)}
        self._write(entry)
        self._apply_entry(entry)

    def finish(self, act: str, outcome: VmActOutcome) -> None:
        """Record the outcome of the act with this id, durably; the act is no longer `unfinished`."""
        entry = {"act": act, **asdict(outcome)}
        self._apply_entry(entry)
        self._write(entry)

    def forget_outcome(self, act: str) -> None:
        """Forget how the act with this id ended, so that it is executed if it is ordered again."""
        self._outcomes.pop(act, None)

    def close(self) -> None:
        """Close the journal's file, after which nothing can be recorded; call it only once."""
        os.close(self._file)

    def _write(self, entry: dict[str, Any]) -> None:
        """Write the whole line, or nothing of it on a full disk: half a line would spoil the next one."""
        line, size = _encode_entry(entry), os.fstat(self._file).st_size
        try:
            _write_all(self._file, line)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _apply_entry(self, entry: dict[str, Any]) -> None:
        if "effect" in entry:
            self._begun[entry["act"]] = VmActStart(effect=entry["effect"], wipes_disk=entry["wipes_disk"])
            return
        self._begun.pop(entry["act"], None)
        self._outcomes[entry["act"]] = VmActOutcome(ok=entry["ok"], note=entry["note"])

    def _compacted_entries(self) -> list[dict[str, Any]]:
        finished = [{"act": act, **asdict(outcome)} for act, outcome in self._outcomes.items()]
        self._outcomes = dict(list(self._outcomes.items())[-_MAX_OUTCOMES:])
        return finished[-_MAX_OUTCOMES:] + [{"act": act, **asdict(start)} for act, start in self._begun.items()]


def _read_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of complete lines: a supervisor may have died while it wrote the last one."""
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
    return entry if isinstance(entry, dict) and _is_entry(entry) else None


def _is_entry(entry: dict[str, Any]) -> bool:
    if not isinstance(entry.get("act"), str):
        return False
    if "effect" in entry:
        return isinstance(entry["effect"], str) and isinstance(entry.get("wipes_disk"), bool)
    return isinstance(entry.get("ok"), bool) and isinstance(entry.get("note"), str)


def _rewrite_file(path: Path, entries: list[dict[str, Any]]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new_file = path.with_suffix(".new")
    file = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write_all(file, b"".join(_encode_entry(entry) for entry in entries))
        os.fsync(file)
        os.replace(new_file, path)
        sync_to_disk(path.parent)  # else a power failure may bring the old file back, without later acts
    except OSError:
        os.close(file)
        raise
    return file


def _write_all(file: int, data: bytes) -> None:
    """Write all of the data. OSError if only a part can be written, as on a disk that is nearly full."""
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _encode_entry(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
