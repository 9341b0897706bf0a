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
    """The reaction `command`: runs the user's commands; exit status 0 is success.

    For the command `check`, exit status 0 means that `run` is in effect. `options` has the three commands.
    """

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        """Run the configured command `run`; succeed if it exits with 0 in the step's time, else fail.

        It gets the event on stdin as JSON and in its environment; its output goes to do.log in the step's folder. It is
        ended when the step's time is over.
        """
        return await child_process.run_command(self._options.run, context)

    async def undo(self, context: StepContext) -> StepOutcome:
        """Run the configured command `undo`; succeed if it exits with 0, or at once if there is none.

        It gets the event on stdin as JSON and in its environment; its output goes to undo.log in the step's folder. It
        also fails if the command cannot be run, or does not end in the step's time.
        """
        if not self._options.undo:
            return StepOutcome(ok=True, text="nothing to undo")
        return await child_process.run_command(self._options.undo, context)

    async def check(self, context: StepContext) -> bool | None:
        """Run the configured command `check`; return True if it exits with 0, False with another status.

        Returns None if there is no command, or it cannot be run or does not end in the step's time. It gets the event
        on stdin as JSON and in its environment; its output goes to check.log in the step's folder.
        """
        return await run_check_command(self._options.check, context)


async def run_check_command(
    check: CommandLine, context: StepContext, variables: Mapping[str, str] = _NO_VARIABLES
) -> bool | None:
    """Run the command `check`; return True if it exits with 0, False with another status or by a signal.

    Returns None if `check` is (), or it cannot be run or does not end in the step's time; then it is ended. It gets the
    event on stdin as JSON and in its environment, to which `variables` are added; its output replaces check.log in the
    step's folder. First ends what an earlier command in that folder left running.
    """
    if not check:
        return None
    try:
        return await child_process.exit_status_of(check, context, log="check", variables=variables) == 0
    except OSError:  # TimeoutError, too
        return None


def _read_options(raw: RawOptions) -> CommandOptions:
    """Validates the options of `command`, and fills in defaults. Raises BadOption.

    Required: `run`, a command as a list of words, or as a string for /bin/sh. Optional: the commands `undo` and `check`
    (none). Ignores unknown keys, which the configuration rejects.
    """
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
