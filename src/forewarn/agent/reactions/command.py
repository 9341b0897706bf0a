"""A command of the user's, with the event in its environment and as JSON on its standard input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.agent.reaction import child
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.option import Line, Raw, line
from forewarn.agent.value import Case, Outcome

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    run: Line
    undo: Line = ()
    check: Line = ()


class Command:
    """Exit status 0 is success; `check` says with it that `run` was done."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        return await child.run(self._options.run, case)

    async def undo(self, case: Case) -> Outcome:
        if not self._options.undo:
            return Outcome(ok=True, text="nothing to undo")
        return await child.run(self._options.undo, case)

    async def check(self, case: Case) -> bool | None:
        return await checked(self._options.check, case)


async def checked(check: Line, case: Case, more: Mapping[str, str] = _NOTHING) -> bool | None:
    """What a check command says; one that cannot be run says nothing."""
    if not check:
        return None
    try:
        return await child.status_of(check, case, log="check", more=more) == 0
    except OSError:  # TimeoutError, too
        return None


def read_options(raw: Raw) -> Options:
    if "run" not in raw:
        raise BadOption("", "a command has no run", 'write run = ["/usr/local/bin/prepare"]')
    return Options(run=line(raw, "run"), undo=line(raw, "undo"), check=line(raw, "check"))


COMMAND = ReactionKind(
    name="command",
    summary="runs a command of yours",
    options=("run", "undo", "check"),
    read=read_options,
    make=Command,
)
