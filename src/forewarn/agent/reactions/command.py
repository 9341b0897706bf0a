"""Reactions that run the user's commands, with the event in their environment: `command`, `checkpoint`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.options import CommandLine, ReactionKind
from forewarn.agent.reactions.step_context import delete_undo_notes, load_undo_notes, save_undo_notes
from forewarn.base.tomlfile import BadValue, RawTable, read_command_line, read_path

_NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """The validated options of the reaction `command`: the commands to run, undo and check."""

    run: CommandLine  # prepares for the event
    undo: CommandLine = ()  # (): nothing to undo
    check: CommandLine = ()  # (): it cannot tell


class CommandReaction:
    """The reaction `command`: runs the user's commands; exit status 0 is success."""

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        return await child_process.run_command(self._options.run, context)

    async def undo(self, context: StepContext) -> StepOutcome:
        if not self._options.undo:
            return StepOutcome(ok=True, text="nothing to undo")
        return await child_process.run_command(self._options.undo, context)

    async def check(self, context: StepContext) -> bool | None:
        return await run_check_command(self._options.check, context)


async def run_check_command(
    check: CommandLine, context: StepContext, variables: Mapping[str, str] = _NO_VARIABLES
) -> bool | None:
    """Run the command `check`; return True if it exits with 0, False with another status or by a signal."""
    if not check:
        return None
    try:
        return await child_process.exit_status_of(check, context, log="check", variables=variables) == 0
    except OSError:  # TimeoutError, too
        return None


def _read_options(raw: RawTable) -> CommandOptions:
    if "run" not in raw:
        raise BadValue("", "run is missing", 'write run = ["/usr/local/bin/prepare"]')
    return CommandOptions(
        run=read_command_line(raw, "run"), undo=read_command_line(raw, "undo"), check=read_command_line(raw, "check")
    )


COMMAND_REACTION = ReactionKind(
    name="command",
    summary="runs your own command",
    options=("run", "undo", "check"),
    read=_read_options,
    make=CommandReaction,
)


CHECKPOINT_VARIABLE = "FOREWARN_CHECKPOINT"  # gives the commands the path of the checkpoint
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")  # a server may send any text as id


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The validated options of the reaction `checkpoint`: three commands of the user, and a directory."""

    save: CommandLine  # writes the checkpoint
    restore: CommandLine = ()  # reads it again when the event is gone; (): none, and the file is kept either way
    check: CommandLine = ()  # exits with 0 if a save finished; (): it cannot tell
    directory: Path | None = None  # where checkpoints are saved, created if needed; None: the step's own folder


class CheckpointReaction:
    """The reaction `checkpoint`: saves a checkpoint with a user's command, and restores it with another."""

    # It notes a finished save in the step's folder, so that half a checkpoint is never restored.

    def __init__(self, options: CheckpointOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        path = self._checkpoint_path(context)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return StepOutcome(ok=False, text=f"{path.parent} cannot be created: {error.strerror}")
        delete_undo_notes(context)
        outcome = await child_process.run_command(
            self._options.save, context, variables={CHECKPOINT_VARIABLE: str(path)}
        )
        if not outcome.ok:
            return outcome
        save_undo_notes(context, {"checkpoint": str(path)})
        return StepOutcome(ok=True, text=f"saved in {path}", notes={"checkpoint": str(path)})

    async def undo(self, context: StepContext) -> StepOutcome:
        path = load_undo_notes(context).get("checkpoint")
        if path is None:
            return StepOutcome(ok=True, text="not restored: no complete checkpoint was saved")
        if not self._options.restore:
            return StepOutcome(ok=True, text=f"kept in {path}: no restore is configured")
        outcome = await child_process.run_command(self._options.restore, context, variables={CHECKPOINT_VARIABLE: path})
        return StepOutcome(ok=True, text=f"restored from {path}") if outcome.ok else outcome

    async def check(self, context: StepContext) -> bool | None:
        if "checkpoint" in load_undo_notes(context):
            return True
        path = str(self._checkpoint_path(context))
        is_saved = await run_check_command(self._options.check, context, {CHECKPOINT_VARIABLE: path})
        if is_saved:
            save_undo_notes(context, {"checkpoint": path})
        return is_saved

    def _checkpoint_path(self, context: StepContext) -> Path:
        if self._options.directory is None:
            return context.folder / "checkpoint"
        return self._options.directory / _UNSAFE_CHARACTERS.sub("_", f"{context.event.id}-{context.step.name}")


def _read_checkpoint_options(raw: RawTable) -> CheckpointOptions:
    if "save" not in raw:
        raise BadValue("", "save is missing", 'write save = ["/usr/local/bin/save"]')
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
    read=_read_checkpoint_options,
    make=CheckpointReaction,
)
