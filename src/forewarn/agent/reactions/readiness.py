"""Reaction `readiness`: marks the VM as not ready, then waits until its connections have ended.

The agent's /ready answers 503 while such a step is in effect. That is computed from the journal, so it survives a
restart of the agent. A file can mark the same for other health checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.options import ReactionKind
from forewarn.agent.reactions.step_context import load_undo_notes, save_undo_notes, wait_until
from forewarn.base.tomlfile import RawTable, read_path, read_seconds, read_whole_numbers

TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # the kernel's lists of connections
_ESTABLISHED_STATE = "01"


def count_connections(ports: Collection[int], tables: Collection[Path] = TCP_TABLES) -> int:
    """Return the number of established TCP connections, IPv4 and IPv6, whose local port is one of `ports`."""
    return sum(_local_port(line) in ports for table in tables for line in _established_rows(table))


def _established_rows(table: Path) -> list[list[str]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return []
    rows = (line.split() for line in lines)
    return [row for row in rows if len(row) > 3 and row[3] == _ESTABLISHED_STATE]


def _local_port(row: list[str]) -> int:
    return int(row[1].rpartition(":")[2], 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessOptions:
    file: Path | None = None  # an empty file that exists while the VM is not ready; None: no file
    notice_s: float = 0.0  # seconds to wait for health checks to notice that the VM is not ready
    ports: tuple[int, ...] = ()  # local TCP ports: wait until they have no connections; (): do not wait


class ReadinessReaction:
    """The reaction `readiness`: marks the VM as not ready with a file, and waits for connections to end."""

    # A file that existed before belongs to someone else, and stays. The page /ready computes its answer from the
    # journal.

    def __init__(self, options: ReadinessOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        try:
            self._create_file(context)
        except OSError as error:
            return StepOutcome(ok=False, text=f"{self._options.file} cannot be created: {error.strerror}")
        await asyncio.sleep(min(self._options.notice_s, max(context.left_s(), 0.0)))
        if await wait_until(context, self._is_idle):
            return StepOutcome(
                ok=True, text="not ready, and no connections are left" if self._options.ports else "not ready"
            )
        left = count_connections(self._options.ports)
        return StepOutcome(ok=False, text=f"not ready, but {left} connections remain at the end of the step's time")

    def _create_file(self, context: StepContext) -> None:
        file = self._options.file
        if file is None:
            return
        if not load_undo_notes(context):
            save_undo_notes(context, {"file": "theirs" if file.exists() else "ours"})
        if load_undo_notes(context).get("file") == "ours":
            file.touch(mode=0o644)

    async def undo(self, context: StepContext) -> StepOutcome:
        file = self._options.file
        try:
            if file is not None and load_undo_notes(context).get("file") == "ours":
                file.unlink(missing_ok=True)
        except OSError as error:
            return StepOutcome(ok=False, text=f"{file} cannot be removed: {error.strerror}")
        if file is not None and file.exists():
            return StepOutcome(ok=True, text=f"{file} existed before, and stays")
        return StepOutcome(ok=True, text="ready")

    async def check(self, context: StepContext) -> bool | None:
        is_marked = self._options.file is None or self._options.file.exists()
        return is_marked and await self._is_idle()

    async def _is_idle(self) -> bool:
        return not count_connections(self._options.ports)


def _read_options(raw: RawTable) -> ReadinessOptions:
    return ReadinessOptions(
        file=read_path(raw, "file"),
        notice_s=read_seconds(raw, "notice", 0.0),
        ports=read_whole_numbers(raw, "ports", 1, 65535),
    )


READINESS_REACTION = ReactionKind(
    name="readiness",
    summary="marks the VM as not ready: the agent's /ready answers 503, a file appears",
    options=("file", "notice", "ports"),
    read=_read_options,
    make=ReadinessReaction,
)
