"""Reaction `command`: runs the user's command with the event in its environment and on its stdin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.options import BadOption, CommandLine, RawOptions, ReactionKind, read_command_line

_NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    run: CommandLine
    undo: CommandLine = ()
    check: CommandLine = ()


class CommandReaction:
    """Exit status 0 is success; `check` says with it that `run` was done."""

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        return await child_process.run_command(self._options.run, case)

    async def undo(self, case: StepContext) -> StepOutcome:
        if not self._options.undo:
            return StepOutcome(ok=True, text="nothing to undo")
        return await child_process.run_command(self._options.undo, case)

    async def check(self, case: StepContext) -> bool | None:
        return await run_check_command(self._options.check, case)


async def run_check_command(
    check: CommandLine, case: StepContext, more: Mapping[str, str] = _NO_VARIABLES
) -> bool | None:
    """What a check command says; one that cannot be run says nothing."""
    if not check:
        return None
    try:
        return await child_process.exit_status_of(check, case, log="check", more=more) == 0
    except OSError:  # TimeoutError, too
        return None


def read_options(raw: RawOptions) -> CommandOptions:
    if "run" not in raw:
        raise BadOption("", "a command has no run", 'write run = ["/usr/local/bin/prepare"]')
    return CommandOptions(
        run=read_command_line(raw, "run"), undo=read_command_line(raw, "undo"), check=read_command_line(raw, "check")
    )


COMMAND_REACTION = ReactionKind(
    name="command",
    summary="runs a command of yours",
    options=("run", "undo", "check"),
    read=read_options,
    make=CommandReaction,
)
