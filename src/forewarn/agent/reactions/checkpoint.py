"""A checkpoint saved before an event and restored after it, by two commands that are told where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.reaction import child
from forewarn.agent.reaction.command import checked
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import forget, recall, remember
from forewarn.agent.reaction.option import Line, Raw, line, path
from forewarn.agent.value import Case, Outcome

VARIABLE = "FOREWARN_CHECKPOINT"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")  # an id is what a server sent, and may be no file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    save: Line
    restore: Line = ()
    check: Line = ()
    directory: Path | None = None  # None: the case's own folder


class Checkpoint:
    """That a save finished is written down after it has, so that half a checkpoint is never restored."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        place = self._place(case)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return Outcome(ok=False, text=f"{place.parent} cannot be made: {error.strerror}")
        forget(case)
        outcome = await child.run(self._options.save, case, more={VARIABLE: str(place)})
        if not outcome.ok:
            return outcome
        remember(case, {"checkpoint": str(place)})
        return Outcome(ok=True, text=f"saved in {place}", notes={"checkpoint": str(place)})

    async def undo(self, case: Case) -> Outcome:
        place = recall(case).get("checkpoint")
        if place is None:
            return Outcome(ok=True, text="not restored: no save finished, so there is no whole checkpoint")
        if not self._options.restore:
            return Outcome(ok=True, text=f"kept in {place}: no restore is configured")
        outcome = await child.run(self._options.restore, case, more={VARIABLE: place})
        return Outcome(ok=True, text=f"restored from {place}") if outcome.ok else outcome

    async def check(self, case: Case) -> bool | None:
        if "checkpoint" in recall(case):
            return True
        place = str(self._place(case))
        is_saved = await checked(self._options.check, case, {VARIABLE: place})
        if is_saved:
            remember(case, {"checkpoint": place})
        return is_saved

    def _place(self, case: Case) -> Path:
        if self._options.directory is None:
            return case.folder / "checkpoint"
        return self._options.directory / _NOT_PLAIN.sub("_", f"{case.event.id}-{case.step.name}")


def read_options(raw: Raw) -> Options:
    if "save" not in raw:
        raise BadOption("", "a checkpoint has no save", 'write save = ["/usr/local/bin/save"]')
    return Options(
        save=line(raw, "save"),
        restore=line(raw, "restore"),
        check=line(raw, "check"),
        directory=path(raw, "directory"),
    )


CHECKPOINT = ReactionKind(
    name="checkpoint",
    summary="saves a checkpoint, and restores it when the event is gone",
    options=("save", "restore", "check", "directory"),
    read=read_options,
    make=Checkpoint,
)
