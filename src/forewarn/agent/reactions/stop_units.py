"""Reaction `stop-units`: stops systemd units in order, and starts those that ran in reverse order."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.options import ReactionKind
from forewarn.agent.reactions.step_context import load_undo_notes, save_undo_notes, wait_until
from forewarn.base.tomlfile import BadValue, RawTable, read_flag, read_texts

# The characters of systemd's unit names; never an option, never a pattern.
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")
_UNITS_EXAMPLE = '["worker.service"]'
_RUNNING_STATES = frozenset({"active", "activating", "reloading"})
_ENDED_STATES = frozenset({"inactive", "failed"})
_AGENT_UNIT = "forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopUnitsOptions:
    units: tuple[str, ...]  # in the order in which they are stopped
    user: bool = False  # True: units of the agent's user (`systemctl --user`); False: of the system


class StopUnitsReaction:
    """The reaction `stop-units`: stops systemd units, and its undo starts those that were running."""

    def __init__(self, options: StopUnitsOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        try:
            await self._save_unit_states(context)
            for unit in self._options.units:
                if problem := await self._stop_unit(unit, context):
                    return StepOutcome(ok=False, text=problem)
        except _UnitStateUnknown as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=True, text=f"stopped {', '.join(self._options.units)}", notes=load_undo_notes(context))

    async def _save_unit_states(self, context: StepContext) -> None:
        known = load_undo_notes(context)
        states = {unit: await self._unit_state(unit, context) for unit in self._options.units if unit not in known}
        save_undo_notes(context, states)

    async def _stop_unit(self, unit: str, context: StepContext) -> str:
        outcome = await self._run_systemctl("stop", unit, context)
        if not outcome.ok:
            return f"systemctl stop {unit}: {outcome.text}"
        state = await self._unit_state(unit, context)

        async def has_ended() -> bool:
            nonlocal state
            with suppress(_UnitStateUnknown):  # no time for an answer: keep the last one
                state = state if state in _ENDED_STATES else await self._unit_state(unit, context)
            return state in _ENDED_STATES

        return "" if await wait_until(context, has_ended) else f"{unit} is still {state} at the end of the step's time"

    async def undo(self, context: StepContext) -> StepOutcome:
        states = load_undo_notes(context)
        ran = [unit for unit in reversed(self._options.units) if states.get(unit) in _RUNNING_STATES]
        for unit in ran:
            if not (outcome := await self._run_systemctl("start", unit, context)).ok:
                return StepOutcome(ok=False, text=f"systemctl start {unit}: {outcome.text}")
        return StepOutcome(ok=True, text=f"started {', '.join(ran)}" if ran else "nothing to undo: no unit ran before")

    async def check(self, context: StepContext) -> bool | None:
        try:
            return all([await self._unit_state(unit, context) in _ENDED_STATES for unit in self._options.units])
        except _UnitStateUnknown:
            return None

    async def _unit_state(self, unit: str, context: StepContext) -> str:
        command = (*self._systemctl_command(), "show", "--property=ActiveState", "--value", unit)
        outcome = await child_process.run_command(command, context, log="state")
        output = (context.folder / "state.log").read_text().split() if outcome.ok else []
        if not output:
            raise _UnitStateUnknown(f"systemctl does not show the state of {unit}: {outcome.text}")
        return output[-1]

    async def _run_systemctl(self, verb: str, unit: str, context: StepContext) -> StepOutcome:
        return await child_process.run_command((*self._systemctl_command(), verb, unit), context)

    def _systemctl_command(self) -> tuple[str, ...]:
        return ("systemctl", "--user") if self._options.user else ("systemctl",)


class _UnitStateUnknown(Exception):
    """systemctl did not show a unit's state."""


def _read_options(raw: RawTable) -> StopUnitsOptions:
    units = read_texts(raw, "units", _UNITS_EXAMPLE)
    for unit in units:
        if not _UNIT_NAME.fullmatch(unit):
            raise BadValue("units", f"{unit!r} is not a unit's name", f"write units = {_UNITS_EXAMPLE}")
        if unit.removesuffix(".service") == _AGENT_UNIT:
            raise BadValue("units", f"{unit!r} is the agent itself", "remove it: nothing would start it again")
    return StopUnitsOptions(units=units, user=read_flag(raw, "user", default=False))


STOP_UNITS_REACTION = ReactionKind(
    name="stop-units",
    summary="stops systemd units in order, and starts those that ran in reverse order",
    options=("units", "user"),
    read=_read_options,
    make=StopUnitsReaction,
)
