"""A stage of crash tests in virtual time, with modelled handlers: runs the script of a case in milliseconds.

The stage records the same observations as a live one. It proves that the demands of a case fit its script: a modelled
good handler passes, and at least one modelled bad handler fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forewarn.crash_test.answers import SpoiledAnswer
from forewarn.crash_test.case import Case, Layout, Observed
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.stage import StageEvent
from forewarn.crash_test.timeline import (
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Observation,
    Polled,
    Poller,
    Probe,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    ResourcesSampled,
    build_timeline,
)
from tests.support.crash_handler_model import Behaviour, ModelledHandler, PlatformEvent, encode_events

OF_THE_PROCESS = (ProgramStarted, ProgramExited, ProgramOutput, ResourcesSampled)
STEP_S = 0.25
SETTLE_S = 5.0
IMPACT_S = {"Freeze": 9.0, "Reboot": 2.0, "Redeploy": 3.0}
USUAL_NOTICE_S = {"Preempt": 30.0, "Redeploy": 600.0}
VMS = {
    Layout.SINGLE: ("web-0",),
    Layout.CAPITALS: ("Web-0",),
    Layout.SPOT: ("spot-0",),
    Layout.SET: ("db-0", "db-1", "db-2"),
    Layout.SCALE_SET: ("workers_0", "workers_1", "workers_2"),
}


@dataclass
class SimulatedStage:
    """A `Stage` in virtual time; its handlers behave as `behaviour` says."""

    vm: str
    neighbours: tuple[str, ...]
    handlers: dict[str, ModelledHandler]
    now: float = 0.0
    observations: list[Observation] = field(default_factory=list)
    events: list[PlatformEvent] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    is_attached: bool = False  # acts of the platform do not reach the handlers
    _substitutes: dict[str, Disturbance] = field(default_factory=dict)
    _next_reference: float = 0.0

    async def publish(self, kind: str, *, vm: str | None = None, notice_s: float | None = None) -> StageEvent:
        notice = USUAL_NOTICE_S.get(kind, 900.0) if notice_s is None else notice_s
        return self._add(kind, vm or self.vm, self.now + notice)

    async def fail_host(self, *, vm: str | None = None) -> StageEvent:
        event = self._add("Redeploy", vm or self.vm, None)
        self._start(self.events[-1])
        return event

    async def withdraw(self, event: StageEvent) -> None:
        found = self._find(event)
        self.calls.append("withdraw")
        if found.started_at is None:
            self._end(found, is_withdrawn=True)

    async def until_polled(self, *, vm: str | None = None, times: int = 1, within_s: float = 30.0) -> bool:
        name, before = vm or self.vm, len(self._polls(vm or self.vm))
        return self._run(lambda: len(self._polls(name)) >= before + times, within_s)

    async def until_delivered(self, event: StageEvent, *, vm: str | None = None, within_s: float = 30.0) -> bool:
        name = vm or self.vm
        return self._run(
            lambda: any(event.id in {shown.id for shown in poll.events} for poll in self._polls(name)), within_s
        )

    async def until_approved(self, event: StageEvent, *, within_s: float) -> bool:
        return self._run(lambda: event.id in self.accepted, within_s)

    async def until_started(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        return self._run(lambda: self._find(event).started_at is not None, within_s)

    async def until_over(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        return self._run(lambda: self._find(event).is_over, within_s)

    async def wait(self, seconds: float) -> None:
        self._run(lambda: False, seconds)

    def substitute(self, answer: SpoiledAnswer | None, *, vm: str | None = None, times: int | None = None) -> None:
        name = vm or self.vm
        self.calls.append("substitute")
        handler = self.handlers[name]
        handler.substitute, handler.substitute_times = answer, times
        begun = self._substitutes.pop(name, None)
        if begun is not None:
            self.observations.append(Disturbance(at=begun.at, vm=name, text=begun.text, until=self.now))
        if answer is not None:
            self._substitutes[name] = Disturbance(at=self.now, vm=name, text=answer.name)

    async def kill_handler(self, *, vm: str | None = None, restart_after_s: float | None = 1.0) -> None:
        self.calls.append("kill_handler")
        restart_at = None if restart_after_s is None else self.now + restart_after_s
        self.handlers[vm or self.vm].stop(self.now, restart_at)

    async def reboot_vm(self, *, vm: str | None = None) -> None:
        self.calls.append("reboot_vm")
        begun, name = self.now, vm or self.vm
        self.handlers[name].stop(self.now, self.now + 2.0)
        self._run(lambda: False, 2.0 + STEP_S)
        self.observations.append(Disturbance(at=begun, vm=name, text="the VM rebooted", until=self.now))

    async def fill_disk(self, *, vm: str | None = None) -> None:
        self.calls.append("fill_disk")
        self.handlers[vm or self.vm].is_disk_full = True

    async def free_disk(self, *, vm: str | None = None) -> None:
        self.calls.append("free_disk")
        self.handlers[vm or self.vm].is_disk_full = False

    @property
    def accepted(self) -> set[str]:
        """The ids of events whose approval was answered with success, even if that had no effect."""
        return {event for handler in self.handlers.values() for event in handler.approved}

    def _add(self, kind: str, vm: str, not_before: float | None) -> StageEvent:
        event = PlatformEvent(id=f"E{len(self.events) + 1}", kind=kind, vms=(vm,), not_before=not_before)
        self.events.append(event)
        self.calls.append("publish")
        self.observations.append(
            EventPublished(at=self.now, event=event.id, kind=kind, vms=event.vms, not_before=not_before)
        )
        return StageEvent(id=event.id, kind=kind, vms=event.vms)

    def _find(self, event: StageEvent) -> PlatformEvent:
        return next(item for item in self.events if item.id == event.id)

    def _polls(self, vm: str) -> list[Polled]:
        return [
            item
            for item in self.observations
            if isinstance(item, Polled) and item.vm == vm and item.by is Poller.HANDLER
        ]

    def _run(self, is_done: Callable[[], bool], within_s: float) -> bool:
        until = self.now + within_s
        while self.now < until and not is_done():
            self._step()
        return is_done()

    def _step(self) -> None:
        self.now += STEP_S
        for event in self.events:
            self._advance(event)
        listed = [event for event in self.events if not event.is_over]
        if self.now >= self._next_reference:
            self._next_reference = self.now + 1.0
            self.observations.append(self._reference_poll(listed))
        for handler in self.handlers.values():
            self.observations += handler.step(self.now, listed)

    def _advance(self, event: PlatformEvent) -> None:
        if event.is_over:
            return
        if event.started_at is None:
            is_due = event.not_before is not None and self.now >= event.not_before
            if is_due or any(event.id in handler.effective_approvals for handler in self.handlers.values()):
                self._start(event)
        elif event.impact_until is not None and self.now >= event.impact_until + SETTLE_S:
            self._end(event)

    def _start(self, event: PlatformEvent) -> None:
        event.started_at = self.now
        self.observations.append(EventStarted(at=self.now, event=event.id))
        duration = IMPACT_S.get(event.kind)
        event.impact_until = None if duration is None else self.now + duration
        for vm in event.vms:
            until = event.impact_until
            self.observations.append(Impact(at=self.now, vm=vm, verb=event.kind.lower(), until=until, event=event.id))
            handler = self.handlers.get(vm)
            if handler is None or self.is_attached:
                continue
            if event.kind == "Freeze":
                handler.frozen_until = until or self.now
            else:
                handler.stop(self.now, until)

    def _end(self, event: PlatformEvent, is_withdrawn: bool = False) -> None:
        event.is_over = True
        self.observations.append(EventEnded(at=self.now, event=event.id, is_withdrawn=is_withdrawn))

    def _reference_poll(self, listed: list[PlatformEvent]) -> Polled:
        return Polled(
            at=self.now,
            vm=self.vm,
            by=Poller.REFERENCE,
            status=200,
            incarnation=1,
            events=encode_events(listed)[1],
            answered_at=self.now,
        )


async def simulate_case(
    case: Case, profile: HandlerProfile, claims: HandlerClaims, behaviour: Behaviour, *, is_attached: bool = False
) -> tuple[SimulatedStage, Observed]:
    """Run the script of a case with handlers that behave like this; return the stage and what was observed.

    With `is_attached`, one handler runs elsewhere: it is never stopped, and its process is not observed.
    """
    vms = VMS[case.layout]
    with_handler = vms if profile is HandlerProfile.CLUSTER and not is_attached else vms[:1]
    handlers = {vm: ModelledHandler(vm=vm, behaviour=behaviour, claims=claims) for vm in with_handler}
    stage = SimulatedStage(vm=vms[0], neighbours=vms[1:], handlers=handlers, is_attached=is_attached)
    await case.script(stage)
    if is_attached:
        stage.observations = [item for item in stage.observations if not isinstance(item, OF_THE_PROCESS)]
    for name, begun in stage._substitutes.items():
        stage.observations.append(Disturbance(at=begun.at, vm=name, text=begun.text))
    observed = Observed(
        timeline=build_timeline(stage.observations, stage.now),
        claims=claims,
        vm=stage.vm,
        neighbours=stage.neighbours,
        events=tuple(event.id for event in stage.events),
        probes=frozenset(Probe),
        is_attached=is_attached,
    )
    return stage, observed
