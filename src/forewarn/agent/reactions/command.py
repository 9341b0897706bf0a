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


def _read_options(raw: RawOptions) -> CommandOptions:
    if "run" not in raw:
        raise BadOption("", "run is missing", 'write run = ["/usr/local/bin/prepare"]')
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
