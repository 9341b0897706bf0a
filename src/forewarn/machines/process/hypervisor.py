"""The process hypervisor: performs acts on namespace VMs through their supervisors.

A VM without a supervisor is left to a fallback hypervisor, so that in a lab only VMs with a program are really
affected. A supervisor performs an act once, however often it is asked: its journal outlives it and the service.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from forewarn.core.cause import VmEffect
from forewarn.core.event import Act
from forewarn.errors import Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay, Hypervisor
from forewarn.machines.process.connection import SupervisorConnection
from forewarn.machines.process.messages import SupervisorMessage
from forewarn.machines.process.registry import SupervisorRegistry

ANSWER_TIMEOUT_S = 15.0  # real time: how long one `perform` waits for a supervisor's answer
_MIN_RETRY_AFTER_S = 0.05  # lab time


class FallbackHypervisor(Hypervisor, Protocol):
    """A hypervisor for VMs without a supervisor, which also says whether it has begun an act."""

    def has_begun(self, act_id: str) -> bool:
        """Return whether this hypervisor has performed the act with this id, or is performing it."""


class ProcessHypervisor:
    """Performs acts on namespace VMs through their supervisors; other VMs are left to `fallback`, which it owns."""

    def __init__(
        self,
        supervisors: SupervisorRegistry,
        fallback: FallbackHypervisor,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._supervisors = supervisors
        self._fallback = fallback
        self._answer_timeout_s = answer_timeout_s
        # Act id → the connection on which it was ordered, and the lab time of its end:
        self._pauses: dict[str, tuple[SupervisorConnection, float]] = {}
        self._missing_supervisor_texts: dict[str, str] = {}  # act id → why the fallback performs it

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        # An act that began with the fallback stays there. A freeze or migration pauses the VM until its duration in
        # real time is over or lab time has advanced by it.
        connection = await self._supervisors.wait_for_connection(act.vm)
        if connection is None or (connection.final_answer(act.id) is None and self._fallback.has_begun(act.id)):
            return await self._perform_with_fallback(act, now)
        if (message := connection.final_answer(act.id)) is not None:
            return self._finish(message)
        if act.verb.rules.effect is VmEffect.PAUSE:
            return await self._continue_pause(connection, act, now)
        connection.send_order(act, _duration_s(act))
        return self._answer_to_outcome(
            await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True), act, now
        )

    async def close(self) -> None:
        """Close the fallback hypervisor; may be called twice."""
        await self._fallback.close()

    async def _perform_with_fallback(self, act: Act, now: float) -> ActDone | ActUnderWay:
        if missing_text := self._supervisors.missing_supervisor_text(act.vm):
            self._missing_supervisor_texts[act.id] = missing_text
        answer = await self._fallback.perform(act, now)
        if isinstance(answer, ActUnderWay):
            return answer
        missing_text = self._missing_supervisor_texts.pop(act.id, "")
        if missing_text or act.verb.rules.boots:
            self._supervisors.forget(act.vm)
        return replace(answer, note=f"{answer.note}; {missing_text}") if missing_text else answer

    async def _continue_pause(self, connection: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """Keep the VM paused until its duration in real time is over, or lab time reaches the end."""
        holder, ends_at = self._pauses.get(act.id, (None, 0.0))
        if holder is not connection:
            return await self._begin_pause(connection, act, now)
        if now < ends_at:
            return ActUnderWay(at=ends_at)
        connection.send_thaw(act.id)
        message = await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True)
        return (
            self._answer_to_outcome(message, act, now)
            if message is None or message.is_final
            else ActUnderWay(at=now + _MIN_RETRY_AFTER_S)
        )

    async def _begin_pause(self, connection: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """Order the pause, or find it again after the supervisor or the service was away."""
        connection.send_order(act, _duration_s(act))
        message = await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=False)
        if message is None or message.until is None:
            return self._answer_to_outcome(message, act, now)
        ends_at = now + max(_MIN_RETRY_AFTER_S, message.until)
        self._pauses[act.id] = (connection, ends_at)
        return ActUnderWay(at=ends_at)

    def _answer_to_outcome(self, message: SupervisorMessage | None, act: Act, now: float) -> ActDone | ActUnderWay:
        if message is None:
            raise Unavailable(f"the supervisor of VM {act.name!r} does not answer for act {act.id!r}: try again later")
        if not message.is_final:
            return ActUnderWay(at=now + max(_MIN_RETRY_AFTER_S, message.until or 0.0))
        return self._finish(message)

    def _finish(self, message: SupervisorMessage) -> ActDone:
        self._pauses.pop(message.act, None)
        return ActDone(ok=bool(message.ok), note=message.note)


def _duration_s(act: Act) -> float:
    return float(act.duration_s) if act.duration_s >= 0 else act.verb.rules.usual_duration_s
