"""The VM says that it is not ready, so that whoever sends it work lets go; then its connections come to their end.

What says so is the agent's /ready, which answers 503 while a step of this kind is held (read off the journal, so that
it outlives the agent), and a file for health checks of others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.reaction.connection import connections_to
from forewarn.agent.reaction.kind import ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, path, seconds, whole_numbers
from forewarn.agent.reaction.patience import until
from forewarn.agent.value import Case, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    file: Path | None = None  # is there while the VM is not ready
    notice_s: float = 0.0  # what health checks need to see it
    ports: tuple[int, ...] = ()  # whose connections are waited for


class Readiness:
    """A file that was there before is somebody else's, and stays."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        try:
            self._put_file(case)
        except OSError as error:
            return Outcome(ok=False, text=f"{self._options.file} cannot be made: {error.strerror}")
        await asyncio.sleep(min(self._options.notice_s, max(case.left_s(), 0.0)))
        if await until(case, self._is_idle):
            return Outcome(ok=True, text="not ready, and nobody is connected" if self._options.ports else "not ready")
        left = connections_to(self._options.ports)
        return Outcome(ok=False, text=f"not ready, but {left} connections are left when the time is over")

    def _put_file(self, case: Case) -> None:
        file = self._options.file
        if file is None:
            return
        if not recall(case):
            remember(case, {"file": "theirs" if file.exists() else "ours"})
        if recall(case).get("file") == "ours":
            file.touch(mode=0o644)

    async def undo(self, case: Case) -> Outcome:
        file = self._options.file
        try:
            if file is not None and recall(case).get("file") == "ours":
                file.unlink(missing_ok=True)
        except OSError as error:
            return Outcome(ok=False, text=f"{file} cannot be removed: {error.strerror}")
        if file is not None and file.exists():
            return Outcome(ok=True, text=f"{file} was there before, and stays")
        return Outcome(ok=True, text="ready")

    async def check(self, case: Case) -> bool | None:
        is_said = self._options.file is None or self._options.file.exists()
        return is_said and await self._is_idle()

    async def _is_idle(self) -> bool:
        return not connections_to(self._options.ports)


def read_options(raw: Raw) -> Options:
    return Options(
        file=path(raw, "file"),
        notice_s=seconds(raw, "notice", 0.0),
        ports=whole_numbers(raw, "ports", 1, 65535),
    )


READINESS = ReactionKind(
    name="readiness",
    summary="says that the VM is not ready: the agent's /ready turns 503, a file appears",
    options=("file", "notice", "ports"),
    read=read_options,
    make=Readiness,
)
