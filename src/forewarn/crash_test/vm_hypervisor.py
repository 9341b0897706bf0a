"""The hypervisor of a crash test: carries acts out on the VMs where handlers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from forewarn.core.cause import Verb, VmEffect
from forewarn.core.event import Act
from forewarn.crash_test.case_recorder import CaseRecorder
from forewarn.crash_test.handler_process import HandlerProcess
from forewarn.crash_test.timeline import Impact
from forewarn.errors import Refused
from forewarn.machines.interface import ActDone, ActUnderWay

# How long a VM is down, in seconds of the service's clock: shorter than in production, so that cases stay short.
DOWN_S: dict[Verb, float] = {Verb.REBOOT: 2.0, Verb.REDEPLOY: 3.0, Verb.REIMAGE: 3.0}
_ASK_AGAIN_S = 0.2  # of the service's clock
_ANSWER_S = 1.0  # real time in which the answer to an approval must reach the handler before its VM goes down


class VmHypervisor:
    """Performs acts on the VMs of one case, each once, through their handlers; see `Hypervisor`.

    A freeze or a migration stops the handler's processes for its duration; a reboot, redeploy or reimage ends them and
    boots after two or three seconds; an eviction, a deletion, a power-off and a deallocation end them; a start boots
    the VM; a reapply changes nothing. Durations are seconds of the service's clock.

    `processes` has the handler of each VM that runs one, by the VM's name; acts on other VMs, and on handlers that run
    elsewhere, change nothing and only take their time. `speed` is lab time per real time. `before_impact` is awaited
    with the VM's name before an act touches a handler, so that probes can see what the handler has done until then. The
    act follows a second (real time) later, so that the answer to an approval arrives first. The object lives for one
    case: outcomes are not stored. `recorder` gets the impacts.
    """

    def __init__(
        self,
        processes: Mapping[str, HandlerProcess],
        recorder: CaseRecorder,
        *,
        speed: float,
        before_impact: Callable[[str], Awaitable[None]],
    ) -> None:
        self._processes = processes
        self._recorder = recorder
        self._speed = speed
        self._before_impact = before_impact
        self._acts: dict[str, asyncio.Task[str]] = {}  # by act id; the result is the note of the outcome
        self._running_impacts: dict[str, Impact] = {}  # by act id; without an end

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        task = self._acts.get(act.id)
        if task is None:
            task = self._acts[act.id] = asyncio.create_task(self._carry_out(act))
        if not task.done():
            return ActUnderWay(at=now + _ASK_AGAIN_S)
        try:
            return ActDone(ok=True, note=task.result())
        except (OSError, Refused, asyncio.CancelledError) as error:
            return ActDone(ok=False, note=f"{act.verb} of {act.name} failed: {error or 'the case ended'}")

    def record_running_impacts(self) -> None:
        """Record the impacts that have begun and not ended, without an end, because the case ends now."""
        for impact in self._running_impacts.values():
            self._recorder.record(impact)

    async def close(self) -> None:
        for task in self._acts.values():
            task.cancel()
        await asyncio.gather(*self._acts.values(), return_exceptions=True)

    async def _carry_out(self, act: Act) -> str:
        handler = self._processes.get(act.name)
        if handler is not None:
            await self._before_impact(act.name)
        impact = Impact(at=self._recorder.now(), vm=act.name, verb=str(act.verb), event=act.event_id)
        self._running_impacts[act.id] = impact
        try:
            if handler is None or not handler.is_controlled:
                await self._recorder.sleep(_duration_s(act))
                return "no handler runs on this VM" if handler is None else "the handler runs elsewhere"
            await asyncio.sleep(_ANSWER_S)
            await self._act_on(handler, act)
        except (OSError, Refused) as error:
            self._recorder.report_problem(f"the {act.verb} of {act.name} failed: {error}")
            raise
        finally:
            until = None if act.verb.rules.effect is VmEffect.SHUT_DOWN else self._recorder.now()
            self._recorder.record(msgspec.structs.replace(impact, until=until))
            del self._running_impacts[act.id]
        return ""

    async def _act_on(self, handler: HandlerProcess, act: Act) -> None:
        duration_s = _duration_s(act) / self._speed
        match act.verb.rules.effect:
            case VmEffect.PAUSE:
                await handler.freeze(duration_s)
            case VmEffect.REBOOT:
                await handler.reboot(is_abrupt=act.abrupt, down_s=duration_s)
            case VmEffect.SHUT_DOWN:
                await handler.shut_down()
            case VmEffect.BOOT:
                await handler.boot()
            case VmEffect.NONE:
                pass


def _duration_s(act: Act) -> float:
    usual_s = act.verb.rules.usual_duration_s
    return DOWN_S.get(act.verb) or (float(act.duration_s) if act.duration_s >= 0 else usual_s)
