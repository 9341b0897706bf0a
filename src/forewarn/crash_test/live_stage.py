"""The stage of a case that runs for real: a lab with a running clock, proxies, and handlers on VMs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forewarn.base.clock import ClockSetting, LabClock, read_real_time
from forewarn.base.times import RealTime
from forewarn.core.cause import Verb, VmEffect
from forewarn.core.decision import DecisionContext, EnablementMode, Policy
from forewarn.core.event import Act, Event
from forewarn.core.fleetfile.reader import DeclaredFleet
from forewarn.core.request import RequestedOperation, RolloutImpact
from forewarn.core.scope import Scope
from forewarn.crash_test.answers import SpoiledAnswer
from forewarn.crash_test.case_recorder import CaseRecorder, commit_recorder
from forewarn.crash_test.handler_machine import HandlerMachine
from forewarn.crash_test.handler_process import HandlerProcess
from forewarn.crash_test.proxy import AskPrepared, Proxy
from forewarn.crash_test.stage import StageEvent
from forewarn.crash_test.timeline import (
    Approved,
    Disturbance,
    EventEnded,
    EventStarted,
    Impact,
    Observation,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    Timeline,
)
from forewarn.errors import Refused, Rejected
from forewarn.lab import requests as lab_requests
from forewarn.lab.requests import RequestedNotice, find_vm
from forewarn.lab.service import TEST_ACTOR, LabService, open_lab_service
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.versions import NEWEST_VERSION

# Runs the user's probes beside a handler, and records when their answers change.

PROBE_INTERVAL_S = 0.5  # real time from the end of one round to the next
PROBE_TIMEOUT_S = 5.0  # real time; a probe that takes longer gives no answer
_LAST_LOOK_TIMEOUT_S = 3.0
_APPROVAL_TIMEOUT_S = 1.0  # real time that an approval is held for the probe: less than handlers wait for an answer
_CANNOT_RUN = {126: "is not executable", 127: "was not found"}  # exit statuses of shells


class ProbeRunner:
    """The probes of one VM: shell commands that say yes with exit status 0, and no with any other.

    The recorder gets an answer if it is the first one or differs from the last; its time is when that run of the probe
    began, or when the approval arrived for which the probe was run. A probe that a signal ended gives no answer; one
    that the shell cannot run is a problem of the case.
    """

    def __init__(
        self, handler: HandlerProcess, commands: Mapping[Probe, str], *, vm: str, recorder: CaseRecorder
    ) -> None:
        self._handler = handler
        self._commands = commands
        self._vm = vm
        self._recorder = recorder
        self._last: dict[Probe, bool] = {}

    async def run_forever(self) -> None:
        """Run all probes, one after the other, again and again until cancelled; return at once without probes."""
        while self._commands:
            await self.run_once(PROBE_TIMEOUT_S)
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def look_before_impact(self) -> None:
        """Run all probes once more and record changed answers, because the platform is about to act on the VM."""
        await self.run_once(_LAST_LOOK_TIMEOUT_S)

    async def ask_prepared(self, at: float) -> bool | None:
        """Run the probe `prepared` because an approval arrived at this time, and return whether it says yes.

        The approval is held meanwhile, so this is the state in which the handler approved.
        """
        command = self._commands.get(Probe.PREPARED)
        if command is None:
            return None
        status = await self._handler.run_command(command, _APPROVAL_TIMEOUT_S)
        if status is None or status in _CANNOT_RUN:
            return None
        self._take_answer(Probe.PREPARED, status, at)
        return status == 0

    async def run_once(self, timeout_s: float) -> None:
        """Run each probe once and record changed answers."""
        for probe, command in self._commands.items():
            at = self._recorder.now()
            status = await self._handler.run_command(command, timeout_s)
            if status is not None:
                self._take_answer(probe, status, at)

    def _take_answer(self, probe: Probe, status: int, at: float) -> None:
        if status in _CANNOT_RUN:
            command = self._commands[probe]
            self._recorder.report_problem(
                f"the command of --{probe} {_CANNOT_RUN[status]} (exit status {status}): correct {command!r}"
            )
            return
        is_yes = status == 0
        if self._last.get(probe) is not is_yes:
            self._last[probe] = is_yes
            self._recorder.record(ProbeAnswered(at=at, vm=self._vm, probe=probe, is_yes=is_yes))


# The reference poller beside the handler, which tells a slow machine from a slow handler.

POLL_INTERVAL_S = 1.0  # real time between the starts of two polls
_TIMEOUT_S = 10.0
_READ_BYTES = 65536
_REQUEST = (
    f"GET /metadata/scheduledevents?api-version={NEWEST_VERSION} HTTP/1.1\r\n"
    "Host: 169.254.169.254\r\nMetadata: true\r\nUser-Agent: forewarn-reference\r\nConnection: close\r\n\r\n"
).encode()


async def poll_forever(address: tuple[str, int]) -> None:
    """Poll the endpoint at this address (IP, port) once a second until cancelled; errors are ignored."""
    loop = asyncio.get_running_loop()
    while True:
        next_at = loop.time() + POLL_INTERVAL_S
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await _poll_once(address)
        await asyncio.sleep(max(0.0, next_at - loop.time()))


async def _poll_once(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(_REQUEST)
        answer = bytearray()
        while data := await reader.read(_READ_BYTES):
            answer += data
        return bytes(answer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


# The hypervisor of a crash test: carries acts out on the VMs where handlers run.

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


RESTART_AFTER_EXIT_S = 1.0  # real time after which a one-shot handler is started again
SETTLE_S = 2.0  # for how long an event is still listed after it was carried out, by the service's clock
_UNPLANNED_DOWN_S = 2.0  # how long a VM is down that the script reboots
_OPERATIONS: dict[str, RequestedOperation] = {
    "Reboot": RequestedOperation.RESTART,
    "Redeploy": RequestedOperation.REDEPLOY,
    "Preempt": RequestedOperation.EVICT,
    "Terminate": RequestedOperation.DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetup:
    """What `open_live_stage` makes a live stage from: fleet, machines of handlers, probes and clock."""

    fleet: DeclaredFleet  # its first VM is the one whose handler is judged
    machines: Mapping[str, HandlerMachine]  # of the VMs with a handler, by name; their creator closes them afterwards
    probes: Mapping[Probe, str] = field(default_factory=dict)  # shell commands, run on each VM with a handler
    is_one_shot: bool = False  # the handler is started again a second (real time) after it has ended by itself
    speed: float = 1.0  # seconds of the service's clock per second of real time
    clock_offset_s: float = 0.0  # seconds that the service's clock is ahead of real time; below 0: behind
    first_incarnation: int = 1  # of the first document of the judged VM


class LiveStage:
    """A `Stage` on which the handler really runs; `open_live_stage` makes it, for one case."""

    def __init__(
        self,
        service: LabService,
        recorder: CaseRecorder,
        *,
        vms: tuple[str, ...],
        handlers: Mapping[str, HandlerProcess],
        proxies: Mapping[str, Proxy],
        hypervisor: VmHypervisor,
        speed: float,
    ) -> None:
        self.vm, *others = vms
        self.neighbours = tuple(others)
        self.events: list[StageEvent] = []  # that the script published, in order
        self._service = service
        self._recorder = recorder
        self._handlers = handlers
        self._proxies = proxies
        self._hypervisor = hypervisor
        self._speed = speed
        self._substitutes: dict[str, Disturbance] = {}  # VM → the substitute answer in use, since when

    async def publish(self, kind: str, *, vm: str | None = None, notice_s: float | None = None) -> StageEvent:
        name, notice = vm or self.vm, RequestedNotice(notice_s)
        if kind == "Freeze":
            event = await lab_requests.request_host_maintenance(self._service, RolloutImpact.UPDATE, name, notice)
        elif kind in _OPERATIONS:
            event = await lab_requests.request_for_vm(self._service, _OPERATIONS[kind], name, notice)
        else:
            raise Rejected(f"a case cannot publish {kind!r}: use Freeze, {', '.join(_OPERATIONS)}")
        return self._remember(event)

    async def fail_host(self, *, vm: str | None = None) -> StageEvent:
        row = find_vm(self._service, vm or self.vm)
        events = await lab_requests.fail_host(self._service, row.host)
        return self._remember(next(event for event in events if row.name in event.vms))

    async def withdraw(self, event: StageEvent) -> None:
        requests = self._service.control.requests
        try:
            await requests.withdraw(event.id, who=TEST_ACTOR)
        except Refused:
            why = "it had started" if requests.event(event.id).is_live else "it was over"
            self._disturb(f"the event could not be withdrawn, because {why}")
        await self._service.settle()

    async def until_polled(self, *, vm: str | None = None, times: int = 1, within_s: float = 30.0) -> bool:
        name, now = vm or self.vm, self._recorder.now()
        return await self._recorder.wait_for(
            lambda seen: isinstance(seen, Polled) and (seen.by, seen.vm) == (Poller.HANDLER, name) and seen.at >= now,
            times=times,
            within_s=within_s,
        )

    async def until_delivered(self, event: StageEvent, *, vm: str | None = None, within_s: float = 30.0) -> bool:
        name = vm or self.vm
        return await self._recorder.wait_for(lambda seen: _is_delivery(seen, event.id, name), within_s=within_s)

    async def until_approved(self, event: StageEvent, *, within_s: float) -> bool:
        return await self._recorder.wait_for(lambda seen: _is_success(seen, event.id), within_s=within_s)

    async def until_started(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        return await self._recorder.wait_for(
            lambda seen: isinstance(seen, EventStarted) and seen.event == event.id, within_s=within_s
        )

    async def until_over(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        return await self._recorder.wait_for(
            lambda seen: isinstance(seen, EventEnded) and seen.event == event.id, within_s=within_s
        )

    async def wait(self, seconds: float) -> None:
        await self._recorder.sleep(seconds)

    def substitute(self, answer: SpoiledAnswer | None, *, vm: str | None = None, times: int | None = None) -> None:
        name = vm or self.vm
        self._proxy(name).substitute(answer, times)
        self._end_substitute(name, self._recorder.now())
        if answer is not None:
            self._substitutes[name] = Disturbance(at=self._recorder.now(), vm=name, text=answer.name)

    async def kill_handler(self, *, vm: str | None = None, restart_after_s: float | None = 1.0) -> None:
        name, at = vm or self.vm, self._recorder.now()
        restart_after_s = None if restart_after_s is None else restart_after_s / self._speed
        if await self._handler(name).kill(restart_after_s=restart_after_s):
            self._recorder.record(Disturbance(at=at, vm=name, text="the handler was killed"))
        else:
            self._recorder.report_problem(f"the handler on VM {name!r} could not be killed: the VM is down")

    async def reboot_vm(self, *, vm: str | None = None) -> None:
        name, at = vm or self.vm, self._recorder.now()
        if await self._handler(name).reboot(is_abrupt=True, down_s=_UNPLANNED_DOWN_S / self._speed):
            self._recorder.record(Disturbance(at=at, vm=name, text="the VM rebooted", until=self._recorder.now()))
        else:
            self._recorder.report_problem(f"VM {name!r} could not be rebooted: it is down")

    async def fill_disk(self, *, vm: str | None = None) -> None:
        name = vm or self.vm
        if await self._handler(name).fill_disk():
            self._disturb("the disk was filled", vm=name)
        else:
            self._recorder.report_problem(
                f"the disk of VM {name!r} could not be filled within 20 s: the VM is down, frozen or too slow"
            )

    async def free_disk(self, *, vm: str | None = None) -> None:
        name = vm or self.vm
        if await self._handler(name).free_disk():
            self._disturb("the disk has space again", vm=name)

    @property
    def problem(self) -> str:
        """Why this case must not be judged, as a sentence, such as that a probe cannot run; "" if it may be."""
        return self._recorder.problem

    async def until_at_rest(self, *, within_s: float, settles_within_s: float) -> bool:
        """Wait until the handler has polled twice, and begin the timeline anew; False if it does not poll.

        Then waits up to `settles_within_s` until the probe `prepared` has said no once, because the handler may have to
        recover from an earlier case.
        """
        if not await self.until_polled(times=2, within_s=within_s):
            return False
        await self._recorder.wait_for(
            lambda seen: isinstance(seen, ProbeAnswered) and seen.probe is Probe.PREPARED and not seen.is_yes,
            within_s=settles_within_s,
        )
        self._recorder.restart()
        return True

    def finish(self) -> Timeline:
        """Stop recording, and return the timeline of the case, which ends now. Call it once."""
        for name in list(self._substitutes):
            self._end_substitute(name, None)
        self._hypervisor.record_running_impacts()
        return self._recorder.finish()

    def _remember(self, event: Event) -> StageEvent:
        published = StageEvent(id=event.id, kind=str(event.rules.kind or event.rules.verb), vms=event.vms)
        self.events.append(published)
        return published

    def _handler(self, vm: str) -> HandlerProcess:
        if vm not in self._handlers:
            raise Refused(f"no handler runs on VM {vm!r}: use one of {', '.join(self._handlers)}")
        return self._handlers[vm]

    def _proxy(self, vm: str) -> Proxy:
        self._handler(vm)
        return self._proxies[vm]

    def _disturb(self, text: str, *, vm: str = "") -> None:
        self._recorder.record(Disturbance(at=self._recorder.now(), vm=vm, text=text))

    def _end_substitute(self, vm: str, until: float | None) -> None:
        begun = self._substitutes.pop(vm, None)
        if begun is not None:
            self._recorder.record(Disturbance(at=begun.at, vm=vm, text=begun.text, until=until))


@asynccontextmanager
async def open_live_stage(setup: StageSetup) -> AsyncIterator[LiveStage]:
    """Start the lab, the proxies, the reference poller and the handlers, for the time of a block."""
    # Call `LiveStage.finish` in the block: what happens while the stage closes does not belong to the timeline.
    real = read_real_time()
    clock = LabClock(ClockSetting(lab_at=real + setup.clock_offset_s, real_at=RealTime(real), speed=setup.speed))
    recorder = CaseRecorder(clock)
    restart_s = RESTART_AFTER_EXIT_S if setup.is_one_shot else None
    handlers = {
        vm: HandlerProcess(machine, vm=vm, recorder=recorder, restart_after_exit_s=restart_s)
        for vm, machine in setup.machines.items()
    }
    probes = {vm: ProbeRunner(handler, setup.probes, vm=vm, recorder=recorder) for vm, handler in handlers.items()}
    hypervisor = VmHypervisor(
        handlers, recorder, speed=setup.speed, before_impact=lambda vm: probes[vm].look_before_impact()
    )
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            open_lab_service(
                setup.fleet,
                at=clock.now(),
                policy=Policy(enablement=EnablementMode.ALWAYS, settle_s=SETTLE_S),
                running_clock=clock,
                hypervisor=hypervisor,
                rules=EndpointRules(max_wait_s=0),  # Azure holds no poll, so a handler must poll often enough
            )
        )
        stack.callback(service.store.subscribe(commit_recorder(recorder)))
        vms = tuple(vm.name for vm in setup.fleet.vms)
        await _raise_incarnation(service, vms[0], setup.first_incarnation)
        reference_address = await _open_reference_proxy(stack, service, recorder, vms[0])
        proxies: dict[str, Proxy] = {}
        for vm, handler in handlers.items():
            stack.push_async_callback(handler.close)
            ask_prepared = probes[vm].ask_prepared
            proxies[vm] = await _open_proxy(
                stack, service, recorder, vm, await handler.open(), ask_prepared=ask_prepared
            )
            handler.count_connections = partial(_open_connections, proxies[vm])
        stack.push_async_callback(hypervisor.close)  # before the handlers close
        run = _background_runner(stack, recorder)
        run(service.control.reconciler.run())
        run(poll_forever(reference_address))
        for vm, handler in handlers.items():
            await handler.boot()
            run(handler.sample_forever())
            run(probes[vm].run_forever())
        yield LiveStage(
            service,
            recorder,
            vms=vms,
            handlers=handlers,
            proxies=proxies,
            hypervisor=hypervisor,
            speed=setup.speed,
        )


async def _raise_incarnation(service: LabService, vm: str, incarnation: int) -> None:
    """Raise the incarnation of the VM's document to this one, unless it is as high already."""

    def decide(scope: Scope, context: DecisionContext) -> Scope:
        return scope.with_incarnation_increased(max(0, incarnation - scope.incarnation))

    await service.control.transactions.run(find_vm(service, vm).scope_id, decide)


async def _open_reference_proxy(
    stack: AsyncExitStack, service: LabService, recorder: CaseRecorder, vm: str
) -> tuple[str, int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    address, port = listener.getsockname()[:2]
    await _open_proxy(stack, service, recorder, vm, listener, Poller.REFERENCE)
    return address, port


async def _open_proxy(
    stack: AsyncExitStack,
    service: LabService,
    recorder: CaseRecorder,
    vm: str,
    listener: socket.socket,
    by: Poller = Poller.HANDLER,
    ask_prepared: AskPrepared | None = None,
) -> Proxy:
    endpoint = urlsplit(service.publisher.lab_endpoint(find_vm(service, vm)))
    upstream = (endpoint.hostname or "", endpoint.port or 0)
    proxy = Proxy(
        listener=listener,
        upstream=upstream,
        vm=vm,
        by=by,
        now=recorder.now,
        record=recorder.record,
        ask_prepared=ask_prepared,
    )
    stack.push_async_callback(proxy.close)
    await proxy.start()
    return proxy


def _open_connections(proxy: Proxy) -> int:
    return proxy.open_connections


def _background_runner(stack: AsyncExitStack, recorder: CaseRecorder) -> Callable[[Coroutine[Any, Any, None]], None]:
    tasks: set[asyncio.Task[None]] = set()

    def on_done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            recorder.report_problem(f"a part of the crash test failed: {type(error).__name__}: {error}")

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(on_done)

    async def cancel_all() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stack.push_async_callback(cancel_all)
    return run


def _is_delivery(seen: Observation, event_id: str, vm: str) -> bool:
    return (
        isinstance(seen, Polled)
        and (seen.by, seen.vm) == (Poller.HANDLER, vm)
        and seen.answered_at is not None
        and any(shown.id == event_id for shown in seen.events)
    )


def _is_success(seen: Observation, event_id: str) -> bool:
    return (
        isinstance(seen, Approved)
        and seen.by is Poller.HANDLER
        and event_id in seen.event_ids
        and seen.status is not None
        and 200 <= seen.status < 300
    )
