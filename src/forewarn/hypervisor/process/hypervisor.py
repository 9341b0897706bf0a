"""The process hypervisor: performs acts on namespace VMs through their supervisors.

A VM without a supervisor is left to a fallback hypervisor, so that in a lab only VMs with a program are really
affected. A supervisor performs an act once, however often it is asked: its journal outlives it and the service.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Unavailable
from forewarn.hypervisor.interface import ActDone, ActUnderWay, Hypervisor
from forewarn.hypervisor.process.connection import SupervisorConnection
from forewarn.hypervisor.process.messages import SupervisorMessage
from forewarn.hypervisor.process.registry import SupervisorRegistry
from forewarn.hypervisor.simulated import USUAL_DURATION_S

ANSWER_TIMEOUT_S = 15.0  # real time: how long an act's end is waited for before it is asked after again
_PAUSE_VERBS = frozenset({Verb.FREEZE, Verb.MIGRATE})
_BOOT_VERBS = frozenset({Verb.REBOOT, Verb.REDEPLOY, Verb.START, Verb.REIMAGE})
_MIN_RETRY_AFTER_S = 0.05  # of lab time


class FallbackHypervisor(Hypervisor, Protocol):
    """A hypervisor for VMs that nobody keeps."""

    def has_begun(self, act_id: str) -> bool:
        """Whether this act is, or was, done there."""


class ProcessHypervisor:
    """Closing it closes the other hypervisor too; the keepers go on without us."""

    def __init__(
        self, keepers: SupervisorRegistry, otherwise: FallbackHypervisor, *, patience_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._supervisors = keepers
        self._fallback = otherwise
        self._answer_timeout_s = patience_s
        self._pauses: dict[
            str, tuple[SupervisorConnection, float]
        ] = {}  # act → who holds the VM still, and the lab time of the end
        self._missing_supervisor_texts: dict[str, str] = {}  # act → why it is done otherwise

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        link = await self._supervisors.wait_for_connection(act.vm)
        if link is None or (link.final_answer(act.id) is None and self._fallback.has_begun(act.id)):
            return await self._perform_with_fallback(act, now)
        if (told := link.final_answer(act.id)) is not None:
            return self._finish(told)
        if act.verb in _PAUSE_VERBS:
            return await self._continue_pause(link, act, now)
        link.send_order(act, _duration_s(act))
        return self._answer_to_outcome(
            await link.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True), act, now
        )

    async def close(self) -> None:
        await self._fallback.close()

    async def _perform_with_fallback(self, act: Act, now: float) -> ActDone | ActUnderWay:
        if lost := self._supervisors.missing_supervisor_text(act.vm):
            self._missing_supervisor_texts[act.id] = lost
        answer = await self._fallback.perform(act, now)
        if isinstance(answer, ActUnderWay):
            return answer
        lost = self._missing_supervisor_texts.pop(act.id, "")
        if lost or act.verb in _BOOT_VERBS:
            self._supervisors.forget(act.vm)
        return replace(answer, note=f"{answer.note}; {lost}") if lost else answer

    async def _continue_pause(self, link: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """The VM stands still for so long of real time, or until lab time has reached the end, whichever is first."""
        holder, ends_at = self._pauses.get(act.id, (None, 0.0))
        if holder is not link:
            return await self._begin_pause(link, act, now)
        if now < ends_at:
            return ActUnderWay(at=ends_at)
        link.send_thaw(act.id)
        told = await link.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True)
        return (
            self._answer_to_outcome(told, act, now)
            if told is None or told.is_final
            else ActUnderWay(at=now + _MIN_RETRY_AFTER_S)
        )

    async def _begin_pause(self, link: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """Or find it again, after the keeper or we were away."""
        link.send_order(act, _duration_s(act))
        told = await link.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=False)
        if told is None or told.until is None:
            return self._answer_to_outcome(told, act, now)
        ends_at = now + max(_MIN_RETRY_AFTER_S, told.until)
        self._pauses[act.id] = (link, ends_at)
        return ActUnderWay(at=ends_at)

    def _answer_to_outcome(self, told: SupervisorMessage | None, act: Act, now: float) -> ActDone | ActUnderWay:
        if told is None:
            raise Unavailable(f"the keeper of VM {act.name!r} says nothing about act {act.id!r}: ask it again")
        if not told.is_final:
            return ActUnderWay(at=now + max(_MIN_RETRY_AFTER_S, told.until or 0.0))
        return self._finish(told)

    def _finish(self, told: SupervisorMessage) -> ActDone:
        self._pauses.pop(told.act, None)
        return ActDone(ok=bool(told.ok), note=told.note)


def _duration_s(act: Act) -> float:
    return float(act.duration_s) if act.duration_s >= 0 else USUAL_DURATION_S[act.verb]
