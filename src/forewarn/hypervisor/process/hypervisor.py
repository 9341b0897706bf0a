"""The process hypervisor: acts are done to VMs made of namespaces, by the keeper that holds each of them.

A VM that nobody keeps is left to another hypervisor, so that in a lab only those that run a program are really hit.
A keeper does an act once, whoever asks how often: what it did is in its journal, which outlives the keeper and us.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Unavailable
from forewarn.hypervisor.keepers import Keepers
from forewarn.hypervisor.line import Said
from forewarn.hypervisor.link import Link
from forewarn.hypervisor.seam import Done, Hypervisor, Later
from forewarn.hypervisor.simulated import USUAL_S

PATIENCE_S = 15.0  # real time: how long an act's end is waited for before it is asked after again
_PAUSES = frozenset({Verb.FREEZE, Verb.MIGRATE})
_BOOTS = frozenset({Verb.REBOOT, Verb.REDEPLOY, Verb.START, Verb.REIMAGE})
_SOONEST_S = 0.05  # of lab time


class Stand(Hypervisor, Protocol):
    """A hypervisor for VMs that nobody keeps."""

    def has_begun(self, act_id: str) -> bool:
        """Whether this act is, or was, done there."""


class Process:
    """Closing it closes the other hypervisor too; the keepers go on without us."""

    def __init__(self, keepers: Keepers, otherwise: Stand, *, patience_s: float = PATIENCE_S) -> None:
        self._keepers = keepers
        self._otherwise = otherwise
        self._patience_s = patience_s
        self._pauses: dict[str, tuple[Link, float]] = {}  # act → who holds the VM still, and the lab time of the end
        self._lost: dict[str, str] = {}  # act → why it is done otherwise

    async def perform(self, act: Act, now: float) -> Done | Later:
        link = await self._keepers.find(act.vm)
        if link is None or (link.outcome_of(act.id) is None and self._otherwise.has_begun(act.id)):
            return await self._perform_otherwise(act, now)
        if (told := link.outcome_of(act.id)) is not None:
            return self._done(told)
        if act.verb in _PAUSES:
            return await self._pause(link, act, now)
        link.order(act, _duration_s(act))
        return self._outcome(await link.answer(act.id, within_s=self._patience_s, final=True), act, now)

    async def close(self) -> None:
        await self._otherwise.close()

    async def _perform_otherwise(self, act: Act, now: float) -> Done | Later:
        if lost := self._keepers.lost(act.vm):
            self._lost[act.id] = lost
        answer = await self._otherwise.perform(act, now)
        if isinstance(answer, Later):
            return answer
        lost = self._lost.pop(act.id, "")
        if lost or act.verb in _BOOTS:
            self._keepers.strike(act.vm)
        return replace(answer, note=f"{answer.note}; {lost}") if lost else answer

    async def _pause(self, link: Link, act: Act, now: float) -> Done | Later:
        """The VM stands still for so long of real time, or until lab time has reached the end, whichever is first."""
        holder, ends_at = self._pauses.get(act.id, (None, 0.0))
        if holder is not link:
            return await self._begin_pause(link, act, now)
        if now < ends_at:
            return Later(at=ends_at)
        link.thaw(act.id)
        told = await link.answer(act.id, within_s=self._patience_s, final=True)
        return self._outcome(told, act, now) if told is None or told.is_final else Later(at=now + _SOONEST_S)

    async def _begin_pause(self, link: Link, act: Act, now: float) -> Done | Later:
        """Or find it again, after the keeper or we were away."""
        link.order(act, _duration_s(act))
        told = await link.answer(act.id, within_s=self._patience_s, final=False)
        if told is None or told.until is None:
            return self._outcome(told, act, now)
        ends_at = now + max(_SOONEST_S, told.until)
        self._pauses[act.id] = (link, ends_at)
        return Later(at=ends_at)

    def _outcome(self, told: Said | None, act: Act, now: float) -> Done | Later:
        if told is None:
            raise Unavailable(f"the keeper of VM {act.name!r} says nothing about act {act.id!r}: ask it again")
        if not told.is_final:
            return Later(at=now + max(_SOONEST_S, told.until or 0.0))
        return self._done(told)

    def _done(self, told: Said) -> Done:
        self._pauses.pop(told.act, None)
        return Done(ok=bool(told.ok), note=told.note)


def _duration_s(act: Act) -> float:
    return float(act.duration_s) if act.duration_s >= 0 else USUAL_S[act.verb]
