"""Reaction `stop-units`: stops systemd units in order, and starts those that ran in reverse order."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.options import BadOption, RawOptions, ReactionKind, read_flag, read_texts
from forewarn.agent.reactions.step_context import load_undo_notes, save_undo_notes, wait_until

_UNIT_NAME = re.compile(
    r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*"
)  # systemd's own letters; never an option, never a pattern
_UNITS_EXAMPLE = '["worker.service"]'
_RUNNING_STATES = frozenset({"active", "activating", "reloading"})
_ENDED_STATES = frozenset({"inactive", "failed"})
_AGENT_UNIT = "forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopUnitsOptions:
    units: tuple[str, ...]
    user: bool = False  # the user's own systemd


class StopUnitsReaction:
    """Which units ran is remembered before the first is stopped; only those are ever started."""

    def __init__(self, options: StopUnitsOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        try:
            await self._save_unit_states(case)
            for unit in self._options.units:
                if why := await self._stop_unit(unit, case):
                    return StepOutcome(ok=False, text=why)
        except _UnitStateUnknown as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=True, text=f"stopped {', '.join(self._options.units)}", notes=load_undo_notes(case))

    async def _save_unit_states(self, case: StepContext) -> None:
        known = load_undo_notes(case)
        found = {unit: await self._unit_state(unit, case) for unit in self._options.units if unit not in known}
        save_undo_notes(case, found)

    async def _stop_unit(self, unit: str, case: StepContext) -> str:
        outcome = await self._run_systemctl("stop", unit, case)
        if not outcome.ok:
            return f"systemctl stop {unit}: {outcome.text}"
        state = await self._unit_state(unit, case)

        async def has_ended() -> bool:
            nonlocal state
            with suppress(_UnitStateUnknown):  # no time for the answer: the last one stands
                state = state if state in _ENDED_STATES else await self._unit_state(unit, case)
            return state in _ENDED_STATES

        return "" if await wait_until(case, has_ended) else f"{unit} is still {state} when the time is over"

    async def undo(self, case: StepContext) -> StepOutcome:
        found = load_undo_notes(case)
        ran = [unit for unit in reversed(self._options.units) if found.get(unit) in _RUNNING_STATES]
        for unit in ran:
            if not (outcome := await self._run_systemctl("start", unit, case)).ok:
                return StepOutcome(ok=False, text=f"systemctl start {unit}: {outcome.text}")
        return StepOutcome(ok=True, text=f"started {', '.join(ran)}" if ran else "nothing to undo: no unit ran before")

    async def check(self, case: StepContext) -> bool | None:
        try:
            return all([await self._has_ended(unit, case) for unit in self._options.units])
        except _UnitStateUnknown:
            return None

    async def _has_ended(self, unit: str, case: StepContext) -> bool:
        return await self._unit_state(unit, case) in _ENDED_STATES

    async def _unit_state(self, unit: str, case: StepContext) -> str:
        """ActiveState; of a unit that does not exist it is inactive."""
        line = (*self._systemctl_command(), "show", "--property=ActiveState", "--value", unit)
        outcome = await child_process.run_command(line, case, log="state")
        said = (case.folder / "state.log").read_text().split() if outcome.ok else []
        if not said:
            raise _UnitStateUnknown(f"systemctl does not say how {unit} is: {outcome.text}")
        return said[-1]

    async def _run_systemctl(self, verb: str, unit: str, case: StepContext) -> StepOutcome:
        return await child_process.run_command((*self._systemctl_command(), verb, unit), case)

    def _systemctl_command(self) -> tuple[str, ...]:
        return ("systemctl", "--user") if self._options.user else ("systemctl",)


class _UnitStateUnknown(Exception):
    """It cannot be told how a unit is."""


def read_options(raw: RawOptions) -> StopUnitsOptions:
    units = read_texts(raw, "units", _UNITS_EXAMPLE)
    for unit in units:
        if not _UNIT_NAME.fullmatch(unit):
            raise BadOption("units", f"{unit!r} is no name of a unit", f"write units = {_UNITS_EXAMPLE}")
        if unit.removesuffix(".service") == _AGENT_UNIT:
            raise BadOption("units", f"{unit!r} is the agent itself", "leave it out: nobody would start it again")
    return StopUnitsOptions(units=units, user=read_flag(raw, "user", default=False))


STOP_UNITS_REACTION = ReactionKind(
    name="stop-units",
    summary="stops units of systemd in order, and starts those that ran in the opposite order",
    options=("units", "user"),
    read=read_options,
    make=StopUnitsReaction,
)
