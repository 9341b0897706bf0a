"""A lab for tests of handlers: a whole service in this process, on loopback, in virtual time.

    with Lab(vms=["web-0", "web-1"]) as lab:
        event = lab.reboot("web-0")
        run_my_handler(lab.vm("web-0").endpoint)
        lab.advance("1m")
        assert event.approved_by == "web-0"
        assert event.finished

Every call may come from any thread, and returns when everything that follows from it has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from forewarn.clock import read_real_time
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.policy import Enablement, Policy
from forewarn.core.proposal import read_fleet
from forewarn.core.request import Ask, Impact, Rollout
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.hypervisor.behaviour import Behaviour
from forewarn.testing import lab_request as request
from forewarn.testing.lab_event import LabEvent
from forewarn.testing.lab_fleet import fleet_text, proposal_from_file
from forewarn.testing.lab_request import Notice, find
from forewarn.testing.lab_service import WHO, LabService, lab_service
from forewarn.testing.lab_span import Span, instant_of, seconds_of
from forewarn.testing.lab_stage import Stage
from forewarn.testing.lab_story import history_of, whole_story
from forewarn.testing.lab_vm import LabFault, LabVm

__tracebackhide__ = True  # pytest shows the line of the test, not ours

T = TypeVar("T")
_MOST_STEPS = 100_000  # from one thing that is due to the next
_LOOKS_EVERY_S = 0.01  # real time


class Lab:
    def __init__(
        self,
        vms: Sequence[str] = (),
        *,
        spot: Sequence[str] = (),
        availability_set: str = "",
        fleet: str | Path | None = None,
        at: datetime | None = None,
        enablement: str = "always",
        simulate: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """VMs by their names, or a fleet file; with neither, one VM, `vm-0`. It begins `at`, or now. `simulate` says
        how acts on VMs depart from the ideal, in the words of the setting of this name.
        """
        if fleet is not None and (vms or spot or availability_set):
            raise Rejected("a lab has a fleet file or names of VMs, and both were given: leave one out")
        if fleet is None:
            named = vms or (() if spot else ("vm-0",))
            self._proposal = read_fleet(
                fleet_text(named, spot=spot, availability_set=availability_set), source="the names of its VMs"
            )
        else:
            self._proposal = proposal_from_file(fleet)
        self._began_at = _beginning(at)
        self._enablement = _enablement(enablement)
        self._behaviour = Behaviour.from_rules(simulate)
        self._stage: Stage[LabService] | None = None
        self._service: LabService | None = None
        self._is_open = False

    @classmethod
    def from_text(cls, text: str, **options: Any) -> Self:
        """With the fleet that this text, a fleet file, describes; options as above."""
        lab = cls(**options)
        lab._proposal = read_fleet(text, source="the text")
        return lab

    def open(self) -> Self:
        if self._stage is not None:
            raise Refused("the lab has been opened before, and is opened once: make another")
        policy = Policy(enablement=self._enablement)
        serve = partial(lab_service, self._proposal, at=self._began_at, policy=policy, behaviour=self._behaviour)
        self._stage = Stage(serve)
        self._service = self._stage.open()
        self._is_open = True
        return self

    def close(self) -> None:
        """Sockets, thread and loop go; what happened can still be read. Closing again is harmless."""
        try:
            if self._stage is not None:
                self._stage.close()
        finally:
            self._is_open = False  # only now: until then the stage may be at work on what others would read

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, sort: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None and self.story not in str(error):
            error.add_note(f"what happened in the lab:\n{self.story}")

    @property
    def now(self) -> datetime:
        return instant_of(self.read(LabService.now))

    def advance(self, by: Span) -> tuple[str, ...]:
        """Let so much time pass; what happened meanwhile, line by line."""
        return self._advance(seconds_of(by))

    def run_until(self, condition: Callable[[], T], *, within: Span = "30d") -> T:
        """Let time pass, from one thing that is due to the next, until the condition holds."""
        end = self.read(LabService.now) + seconds_of(within)
        for _ in range(_MOST_STEPS):
            if given := condition():
                return given
            now, wake = self.read(lambda service: (service.now(), service.control.reconciler.next_wake()))
            if now >= end:
                break
            self._advance(max(min(end if wake is None else wake, end) - now, 1e-6))
        raise AssertionError(f"it did not happen within {within} of lab time:\n{self.story}")

    def wait_for(self, condition: Callable[[], T], *, within: Span = "10s") -> T:
        """Wait in real time, while the lab's stands still, until a handler that runs beside the test has done it."""
        deadline = time.monotonic() + seconds_of(within)
        while not (given := condition()):
            if time.monotonic() >= deadline:
                raise AssertionError(f"it did not happen within {within} of real time:\n{self.story}")
            time.sleep(_LOOKS_EVERY_S)
        return given

    def reboot(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """Its user restarts it: a Reboot, 15 minutes ahead."""
        return self._ask(Ask.RESTART, vm, notice)

    def redeploy(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """Its user has it moved to another host: a Redeploy, 10 minutes ahead."""
        return self._ask(Ask.REDEPLOY, vm, notice)

    def evict(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """The platform wants a Spot VM's place: a Preempt, 30 seconds ahead."""
        return self._ask(Ask.EVICT, vm, notice)

    def terminate(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """Its user deletes it: a Terminate, as far ahead as its terminate notification says."""
        return self._ask(Ask.DELETE, vm, notice)

    delete = terminate

    def freeze(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """Its host is updated: a Freeze of nine seconds, 15 minutes ahead."""
        return self._ask_platform(Impact.UPDATE, vm, notice)

    def migrate(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """It is moved to another host while it runs: a Freeze of five seconds, 15 minutes ahead."""
        return self._ask_platform(Impact.MIGRATE, vm, notice)

    def reboot_host(self, vm: str, *, notice: Span | None = None) -> LabEvent:
        """Its host is maintained in a way that it does not live through: a Reboot by the platform."""
        return self._ask_platform(Impact.REBOOT, vm, notice)

    def roll_out(self, vm: str, *, impact: str = "update", notice: Span | None = None) -> tuple[LabEvent, ...]:
        """Over all VMs that share this one's document, one update domain at a time: the events of the first."""
        rollout = Rollout(impact=request.impact_called(impact), scope_id=self._scope_id(vm))
        return self._events(self._do(lambda service: request.roll_out(service, rollout, Notice(notice))))

    def degrade(self, host: str, *, in_: Span = "7d") -> tuple[LabEvent, ...]:
        """The host is predicted to fail: a Redeploy for each of its VMs."""
        return self._events(self._do(lambda service: request.degrade(service, host, Notice(in_))))

    def fail_host(self, host: str) -> tuple[LabEvent, ...]:
        """The host is gone: its VMs are redeployed, with no notice at all."""
        return self._events(self._do(lambda service: request.fail(service, host)))

    def power_off(self, vm: str) -> LabEvent:
        """At once, without an event that VMs could see."""
        return self._ask(Ask.POWER_OFF, vm, None)

    def start(self, vm: str) -> LabEvent:
        """At once, after it was stopped or evicted."""
        return self._ask(Ask.START, vm, None)

    def approve(self, event: LabEvent) -> None:
        """Somebody outside of the VMs lets it start."""
        self._do(lambda service: service.control.requests.approve(event.id, who=WHO))

    def withdraw(self, event: LabEvent) -> None:
        """Taken back before it started."""
        self._do(lambda service: service.control.requests.withdraw(event.id, who=WHO))

    def fault(
        self,
        kind: str,
        *,
        vm: str | None = None,
        times: int | None = None,
        lasts: Span | None = None,
        **parameters: Span,
    ) -> LabFault:
        """Something goes wrong, for one VM or for all: `docs/faults.md` has the kinds and their parameters."""
        wish = self.read(lambda service: request.wish(service, kind, vm, times, lasts, parameters))
        fault = self._do(lambda service: service.control.faults.set(wish, who=WHO))
        return LabFault(self, fault.id, str(fault.kind))

    def fail_next_polls(self, times: int, *, vm: str | None = None) -> LabFault:
        """So many requests, polls and approvals, are answered 500."""
        return self.fault("internal-error", vm=vm, times=times)

    def clear_faults(self) -> None:
        self._do(lambda service: service.control.faults.clear(lambda fault: True, who=WHO))

    @property
    def vms(self) -> tuple[LabVm, ...]:
        return self.read(lambda service: tuple(self._vm(service, vm) for vm in service.store.vms(removed=True)))

    def vm(self, name: str) -> LabVm:
        return self.read(lambda service: self._vm(service, find(service, name)))

    @property
    def events(self) -> tuple[LabEvent, ...]:
        """All that there ever were, the oldest first."""
        return self._events(self.read(lambda service: service.store.events()))

    @property
    def history(self) -> tuple[str, ...]:
        return self.read(history_of)

    @property
    def story(self) -> str:
        """The history, then event by event who was told, who approved, and what it waits for."""
        return self.read(whole_story)

    def explain(self, thing: LabEvent | LabVm | str) -> str:
        """Why it came as it did, and what it waits for."""
        return str(self.vm(thing) if isinstance(thing, str) else thing)

    def __repr__(self) -> str:
        names = ", ".join(vm.name for vm in self._proposal.vms)
        return f"<lab of {names}, {'open' if self._is_open else 'not open'}>"

    def read(self, look: Callable[[LabService], T]) -> T:
        """What `look` finds once everything due is done; of a closed lab, what was so at its end."""
        if not self._is_open and self._service is not None:
            return look(self._service)

        async def settle_and_look(service: LabService) -> T:
            await service.settle()
            return look(service)

        return self._on_stage(settle_and_look)

    def _vm(self, service: LabService, vm: Vm) -> LabVm:
        return LabVm(self, vm.key, vm.name, service.mouth.endpoint_of(vm))

    def _scope_id(self, vm: str) -> str:
        return self.read(lambda service: find(service, vm).scope_id)

    def _ask(self, what: Ask, vm: str, notice: Span | None) -> LabEvent:
        return self._event(self._do(lambda service: request.ask(service, what, vm, Notice(notice))))

    def _ask_platform(self, impact: Impact, vm: str, notice: Span | None) -> LabEvent:
        return self._event(self._do(lambda service: request.ask_platform(service, impact, vm, Notice(notice))))

    def _event(self, event: Event) -> LabEvent:
        return LabEvent(self, event.id)

    def _events(self, events: Sequence[Event]) -> tuple[LabEvent, ...]:
        return tuple(map(self._event, events))

    def _advance(self, by_s: float) -> tuple[str, ...]:
        before = self.read(lambda service: service.store.last_seq())
        self._do(lambda service: service.control.labtime.advance(by_s))
        return self.read(lambda service: history_of(service, after=before))

    def _do(self, work: Callable[[LabService], Coroutine[Any, Any, T]]) -> T:
        """Do it on the stage, and let what follows from it happen."""

        async def do_and_settle(service: LabService) -> T:
            given = await work(service)
            await service.settle()
            return given

        return self._on_stage(do_and_settle)

    def _on_stage(self, work: Callable[[LabService], Coroutine[Any, Any, T]]) -> T:
        if self._stage is None:
            raise Refused("the lab is not open: use it in a `with` block, or call open() first")
        try:
            return self._stage.do(work)
        except ForewarnError as error:
            raise error.with_traceback(None) from None  # a mistake of the test's: the service's lines tell nothing


def _beginning(at: datetime | None) -> float:
    """A whole second, as documents show them."""
    if at is None:
        return float(int(read_real_time()))
    if at.tzinfo is None:
        raise Rejected(f"{at.isoformat()} is in no time zone: say which, as in datetime(2026, 1, 5, 12, tzinfo=UTC)")
    return at.timestamp()


def _enablement(name: str) -> Enablement:
    try:
        return Enablement(name)
    except ValueError:
        raise Rejected(f"there is no enablement {name!r}: choose from {', '.join(Enablement)}") from None
