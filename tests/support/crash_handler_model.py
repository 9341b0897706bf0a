"""A model of a handler in virtual time, for `SimulatedStage`: good by default, bad in the ways that a test asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from forewarn.crash_test.answers import Concerns, ServiceAnswer, SpoiledAnswer
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.timeline import (
    Approved,
    DeliveredEvent,
    Observation,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    ResourcesSampled,
)
from forewarn.protocol.codec import InvalidDocument, Received, decode_document
from forewarn.protocol.dates import http_date

_BASE_TIME = 1_800_000_000.0
_PREPARE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a modelled handler does; the defaults are those of a good one."""

    polls_every_s: float = 2.0
    exits_at: float | None = None
    exits_on_bad_answer: bool = False
    reacts: bool = True
    recovers: bool = True
    reads_resources: bool = True
    approves_at_once: bool = False  # before it is prepared, and with every poll
    retries_approvals: bool = True
    pause_after_refusal_s: float = 0.0  # in which it does nothing else
    sends_header: bool = True
    loses_preparation: bool = False  # it is prepared for a second only, and prepares again
    keeps_state: bool = True  # over restarts
    has_timeout: bool = True
    timeout_s: float = 8.0  # of a request
    is_wasteful: bool = False  # memory, connections, processes, CPU and output


@dataclass
class PlatformEvent:
    """An event of the simulated platform."""

    id: str
    kind: str
    vms: tuple[str, ...]
    not_before: float | None
    started_at: float | None = None
    impact_until: float | None = None
    is_over: bool = False


def encode_events(listed: list[PlatformEvent]) -> tuple[bytes, tuple[DeliveredEvent, ...]]:
    """Return the document of these events, and how a timeline shows them."""
    elements = [
        {
            "EventId": event.id,
            "EventStatus": "Scheduled" if event.started_at is None else "Started",
            "EventType": event.kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(event.vms),
            "NotBefore": http_date(_BASE_TIME + (event.not_before or 0.0)) if event.started_at is None else "",
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        for event in listed
    ]
    shown = tuple(DeliveredEvent(id=event.id, kind=event.kind, status="Scheduled", vms=event.vms) for event in listed)
    return json.dumps({"DocumentIncarnation": 5 + len(listed), "Events": elements}).encode(), shown


@dataclass
class ModelledHandler:
    """One copy of the modelled handler, with the VM around it."""

    vm: str
    behaviour: Behaviour
    claims: HandlerClaims
    substitute: SpoiledAnswer | None = None
    substitute_times: int | None = None
    frozen_until: float = 0.0
    is_disk_full: bool = False
    approved: set[str] = field(default_factory=set)  # answered with success
    effective_approvals: set[str] = field(default_factory=set)  # that the service got
    _restart_at: float | None = 0.5
    _runs: int = 0
    _is_running: bool = False
    _next_poll: float = 0.0
    _next_sample: float = 0.0
    _prepare_at: dict[str, float] = field(default_factory=dict)  # event → when its preparation is done
    _prepared: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)
    _approve_at: dict[str, float] = field(default_factory=dict)
    _last_probe: dict[Probe, bool] = field(default_factory=dict)
    _answers: dict[tuple[bytes, str], tuple[int, Received | None]] = field(default_factory=dict)
    _pending: list[Observation] = field(default_factory=list)

    def stop(self, now: float, restart_at: float | None) -> None:
        """End the program: the case or the platform does; it starts again then, or never (None)."""
        if self._is_running:
            self._pending.append(ProgramExited(at=now, vm=self.vm, code=None, signal=9, by_case=True))
        self._is_running = False
        self._restart_at = restart_at
        self._prepare_at.clear()
        self._approve_at.clear()
        if not self.behaviour.keeps_state:
            self._prepared.clear()

    def step(self, now: float, listed: list[PlatformEvent]) -> list[Observation]:
        """Do what is due at this time, and return what is observed."""
        found, self._pending = self._pending, []
        if not self._is_running and self._restart_at is not None and now >= self._restart_at:
            self._runs += 1
            self._is_running, self._restart_at, self._next_poll = True, None, now + 0.5
            found.append(ProgramStarted(at=now, vm=self.vm, run=self._runs))
        exits_at = self.behaviour.exits_at
        if self._is_running and exits_at is not None and now >= exits_at:
            found.append(self._exit(now))
        if self._is_running and now >= self.frozen_until:
            found += self._work(now, listed)
        if self._is_running or self._restart_at is not None:
            found += self._probe(now)
        return found

    def _exit(self, now: float) -> Observation:
        self._is_running = False
        return ProgramExited(at=now, vm=self.vm, code=1)

    def _work(self, now: float, listed: list[PlatformEvent]) -> Iterator[Observation]:
        if now >= self._next_poll:
            yield from self._poll(now, listed)
        for event, at in list(self._prepare_at.items()):
            if now >= at and not self.is_disk_full:
                del self._prepare_at[event]
                self._prepared.add(event)
                self._approve_at.setdefault(event, now)
        if self.behaviour.loses_preparation and self._prepared and int(now) % 3 == 0:
            for event in self._prepared:
                self._prepare_at[event] = now + 1.0
            self._prepared.clear()
        for event, at in list(self._approve_at.items()):
            if now >= at:
                del self._approve_at[event]
                yield from self._approve(event, now)
        if now >= self._next_sample:
            self._next_sample = now + 1.0
            yield self._sample(now)
            if self.behaviour.is_wasteful:
                yield from (ProgramOutput(at=now, vm=self.vm, text="error") for _ in range(50))

    def _poll(self, now: float, listed: list[PlatformEvent]) -> Iterator[Observation]:
        self._next_poll = now + self.behaviour.polls_every_s
        answer = self._current_answer(Concerns.POLLS)
        if answer is not None and answer.refuses_connections:
            return
        body, _ = encode_events(listed)
        document: Received | None = None
        status: int | None = None
        answered_at: float | None = now
        name = "" if answer is None else answer.name
        if answer is not None and (answer.never_answers or answer.resets):
            answered_at = None
            if answer.never_answers:
                self._next_poll = now + (self.behaviour.timeout_s if self.behaviour.has_timeout else 1e9)
        else:
            if answer is not None:
                answered_at = now + answer.delay_s + answer.body_s
                self._next_poll = max(self._next_poll, answered_at)
            status, document = self._get(body, answer, now)
        yield Polled(
            at=now,
            vm=self.vm,
            by=Poller.HANDLER,
            status=status,
            version="2020-07-01",
            has_header=self.behaviour.sends_header,
            incarnation=None if document is None else document.incarnation,
            events=() if document is None else _shown(document),
            answered_at=answered_at,
            substitute=name,
        )
        if document is not None:
            yield from self._read(document, now)
        elif self.behaviour.exits_on_bad_answer:
            yield self._exit(now)

    def _get(self, body: bytes, answer: SpoiledAnswer | None, now: float) -> tuple[int, Received | None]:
        """Return the status and the document of an answer; remembers both, because huge documents take long."""
        key = (body, "" if answer is None else answer.name)
        if key not in self._answers:
            sent = ServiceAnswer(200, (("Date", http_date(_BASE_TIME + now)),), body)
            sent = sent if answer is None else answer.transform(sent)
            self._answers[key] = (sent.status, _decode(sent))
        return self._answers[key]

    def _read(self, document: Received, now: float) -> Iterator[Observation]:
        mine = [event for event in document.events if self._is_mine(event.resources)]
        shown = {event.id for event in mine}
        if self.behaviour.recovers:
            self._over |= self._prepared - shown
            self._prepared &= shown
        for event in mine if self.behaviour.reacts else []:
            if event.kind not in ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"):
                continue
            if event.kind == "Freeze" and self.claims.approves is Approves.NONE and self.behaviour.reads_resources:
                continue
            if self.behaviour.approves_at_once:
                yield from self._approve(event.id, now)
            if event.status == "Scheduled" and event.id not in self._prepared | set(self._prepare_at):
                self._prepare_at[event.id] = now + _PREPARE_S

    def _is_mine(self, resources: tuple[str, ...]) -> bool:
        if not self.behaviour.reads_resources:
            return True
        return self.vm.casefold() in {name.casefold() for name in resources}

    def _approve(self, event: str, now: float) -> Iterator[Observation]:
        if self.claims.approves is Approves.NONE and not self.behaviour.approves_at_once:
            return
        if event in self.approved and not self.behaviour.approves_at_once:
            return
        answer = self._current_answer(Concerns.APPROVALS)
        status: int | None = 200
        if answer is not None:
            has_answer = not (answer.never_answers or answer.resets or answer.refuses_connections)
            status = answer.transform(ServiceAnswer(200, (), b"")).status if has_answer else None
        if answer is None or not answer.withholds_request:
            self.effective_approvals.add(event)
        if status == 200:
            self.approved.add(event)
        elif self.behaviour.retries_approvals:
            self._approve_at[event] = now + max(2.0, self.behaviour.pause_after_refusal_s)
            self._next_poll = max(self._next_poll, now + self.behaviour.pause_after_refusal_s)
        if status is None and not self.behaviour.has_timeout:
            self._next_poll = 1e9
        yield Approved(
            at=now,
            vm=self.vm,
            by=Poller.HANDLER,
            event_ids=(event,),
            status=status,
            version="2020-07-01",
            has_header=self.behaviour.sends_header,
        )

    def _current_answer(self, kind: Concerns) -> SpoiledAnswer | None:
        answer = self.substitute
        if answer is None or answer.concerns not in (kind, Concerns.ALL) or self.substitute_times == 0:
            return None
        if self.substitute_times is not None:
            self.substitute_times -= 1
        return answer

    def _probe(self, now: float) -> Iterator[Observation]:
        states = {Probe.PREPARED: bool(self._prepared), Probe.RECOVERED: not self._prepared and self._is_running}
        for probe, is_yes in states.items():
            if self._last_probe.get(probe) is not is_yes:
                self._last_probe[probe] = is_yes
                yield ProbeAnswered(at=now, vm=self.vm, probe=probe, is_yes=is_yes)

    def _sample(self, now: float) -> ResourcesSampled:
        is_wasteful = self.behaviour.is_wasteful
        return ResourcesSampled(
            at=now,
            vm=self.vm,
            cpu_s=now if is_wasteful else 0.01 * now,
            memory_bytes=int((20 + (10 * now if is_wasteful else 0)) * 1024 * 1024),
            connections=50 if is_wasteful else 1,
            processes=100 if is_wasteful else 1,
        )


def _decode(answer: ServiceAnswer) -> Received | None:
    if answer.status != 200 or answer.header("Content-Length") is not None:
        return None
    try:
        return decode_document(answer.body)
    except InvalidDocument:
        return None


def _shown(document: Received) -> tuple[DeliveredEvent, ...]:
    return tuple(
        DeliveredEvent(id=event.id, kind=event.kind, status=event.status, vms=event.resources)
        for event in document.events[-20:]
    )
