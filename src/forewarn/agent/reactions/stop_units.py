"""Units of systemd are stopped in the order given, and those that ran are started again in the opposite one."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from forewarn.agent.reaction import child
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, flag, texts
from forewarn.agent.reaction.patience import until
from forewarn.agent.value import Case, Outcome

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")  # systemd's own letters; never an option, never a pattern
_EXAMPLE = '["worker.service"]'
_RUNNING = frozenset({"active", "activating", "reloading"})
_ENDED = frozenset({"inactive", "failed"})
_OWN = "forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    units: tuple[str, ...]
    user: bool = False  # the user's own systemd


class StopUnits:
    """Which units ran is remembered before the first is stopped; only those are ever started."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        try:
            await self._remember(case)
            for unit in self._options.units:
                if why := await self._trouble_stopping(unit, case):
                    return Outcome(ok=False, text=why)
        except _NoSystemd as error:
            return Outcome(ok=False, text=str(error))
        return Outcome(ok=True, text=f"stopped {', '.join(self._options.units)}", notes=recall(case))

    async def _remember(self, case: Case) -> None:
        known = recall(case)
        found = {unit: await self._state(unit, case) for unit in self._options.units if unit not in known}
        remember(case, found)

    async def _trouble_stopping(self, unit: str, case: Case) -> str:
        outcome = await self._run("stop", unit, case)
        if not outcome.ok:
            return f"systemctl stop {unit}: {outcome.text}"
        state = await self._state(unit, case)

        async def has_ended() -> bool:
            nonlocal state
            with suppress(_NoSystemd):  # no time for the answer: the last one stands
                state = state if state in _ENDED else await self._state(unit, case)
            return state in _ENDED

        return "" if await until(case, has_ended) else f"{unit} is still {state} when the time is over"

    async def undo(self, case: Case) -> Outcome:
        found = recall(case)
        ran = [unit for unit in reversed(self._options.units) if found.get(unit) in _RUNNING]
        for unit in ran:
            if not (outcome := await self._run("start", unit, case)).ok:
                return Outcome(ok=False, text=f"systemctl start {unit}: {outcome.text}")
        return Outcome(ok=True, text=f"started {', '.join(ran)}" if ran else "nothing to undo: no unit ran before")

    async def check(self, case: Case) -> bool | None:
        try:
            return all([await self._has_ended(unit, case) for unit in self._options.units])
        except _NoSystemd:
            return None

    async def _has_ended(self, unit: str, case: Case) -> bool:
        return await self._state(unit, case) in _ENDED

    async def _state(self, unit: str, case: Case) -> str:
        """ActiveState; of a unit that does not exist it is inactive."""
        line = (*self._systemctl(), "show", "--property=ActiveState", "--value", unit)
        outcome = await child.run(line, case, log="state")
        said = (case.folder / "state.log").read_text().split() if outcome.ok else []
        if not said:
            raise _NoSystemd(f"systemctl does not say how {unit} is: {outcome.text}")
        return said[-1]

    async def _run(self, verb: str, unit: str, case: Case) -> Outcome:
        return await child.run((*self._systemctl(), verb, unit), case)

    def _systemctl(self) -> tuple[str, ...]:
        return ("systemctl", "--user") if self._options.user else ("systemctl",)


class _NoSystemd(Exception):
    """It cannot be told how a unit is."""


def read_options(raw: Raw) -> Options:
    units = texts(raw, "units", _EXAMPLE)
    for unit in units:
        if not _UNIT.fullmatch(unit):
            raise BadOption("units", f"{unit!r} is no name of a unit", f"write units = {_EXAMPLE}")
        if unit.removesuffix(".service") == _OWN:
            raise BadOption("units", f"{unit!r} is the agent itself", "leave it out: nobody would start it again")
    return Options(units=units, user=flag(raw, "user", default=False))


STOP_UNITS = ReactionKind(
    name="stop-units",
    summary="stops units of systemd in order, and starts those that ran in the opposite order",
    options=("units", "user"),
    read=read_options,
    make=StopUnits,
)
