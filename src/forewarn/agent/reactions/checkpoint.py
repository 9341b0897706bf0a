"""Reaction `checkpoint`: saves a checkpoint before an event and restores it, by two commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.command import run_check_command
from forewarn.agent.reactions.options import (
    BadOption,
    CommandLine,
    RawOptions,
    ReactionKind,
    read_command_line,
    read_path,
)
from forewarn.agent.reactions.step_context import delete_undo_notes, load_undo_notes, save_undo_notes

CHECKPOINT_VARIABLE = "FOREWARN_CHECKPOINT"
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")  # an id is what a server sent, and may be no file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    save: CommandLine
    restore: CommandLine = ()
    check: CommandLine = ()
    directory: Path | None = None  # None: the case's own folder


class CheckpointReaction:
    """That a save finished is written down after it has, so that half a checkpoint is never restored."""

    def __init__(self, options: CheckpointOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        place = self._checkpoint_path(case)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return StepOutcome(ok=False, text=f"{place.parent} cannot be made: {error.strerror}")
        delete_undo_notes(case)
        outcome = await child_process.run_command(self._options.save, case, more={CHECKPOINT_VARIABLE: str(place)})
        if not outcome.ok:
            return outcome
        save_undo_notes(case, {"checkpoint": str(place)})
        return StepOutcome(ok=True, text=f"saved in {place}", notes={"checkpoint": str(place)})

    async def undo(self, case: StepContext) -> StepOutcome:
        place = load_undo_notes(case).get("checkpoint")
        if place is None:
            return StepOutcome(ok=True, text="not restored: no save finished, so there is no whole checkpoint")
        if not self._options.restore:
            return StepOutcome(ok=True, text=f"kept in {place}: no restore is configured")
        outcome = await child_process.run_command(self._options.restore, case, more={CHECKPOINT_VARIABLE: place})
        return StepOutcome(ok=True, text=f"restored from {place}") if outcome.ok else outcome

    async def check(self, case: StepContext) -> bool | None:
        if "checkpoint" in load_undo_notes(case):
            return True
        place = str(self._checkpoint_path(case))
        is_saved = await run_check_command(self._options.check, case, {CHECKPOINT_VARIABLE: place})
        if is_saved:
            save_undo_notes(case, {"checkpoint": place})
        return is_saved

    def _checkpoint_path(self, case: StepContext) -> Path:
        if self._options.directory is None:
            return case.folder / "checkpoint"
        return self._options.directory / _UNSAFE_CHARACTERS.sub("_", f"{case.event.id}-{case.step.name}")


def read_options(raw: RawOptions) -> CheckpointOptions:
    if "save" not in raw:
        raise BadOption("", "a checkpoint has no save", 'write save = ["/usr/local/bin/save"]')
    return CheckpointOptions(
        save=read_command_line(raw, "save"),
        restore=read_command_line(raw, "restore"),
        check=read_command_line(raw, "check"),
        directory=read_path(raw, "directory"),
    )


CHECKPOINT_REACTION = ReactionKind(
    name="checkpoint",
    summary="saves a checkpoint, and restores it when the event is gone",
    options=("save", "restore", "check", "directory"),
    read=read_options,
    make=CheckpointReaction,
)
