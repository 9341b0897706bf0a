"""Builds timelines of crash tests by hand, for tests of judgements.

The usual timeline: the program starts at 0 and the reference poller polls every second. Event E1 of vm-1 is published
at 10 s with NotBefore at 40 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forewarn.crash_test.case import Demand, Observed
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.timeline import (
    Approved,
    DeliveredEvent,
    EventPublished,
    Observation,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    ProgramStarted,
    build_timeline,
)
from forewarn.crash_test.verdict import CaseOutcome

VM = "vm-1"
NEIGHBOUR = "vm-2"
PUBLISHED_AT = 10.0
NOT_BEFORE = 40.0
EVERYTHING = HandlerClaims(approves=Approves.OWN, prepares=True, recovers=True, survives_restart=True)


def published(
    event: str = "E1",
    *,
    at: float = PUBLISHED_AT,
    not_before: float | None = NOT_BEFORE,
    vms: tuple[str, ...] = (VM,),
    kind: str = "Reboot",
) -> EventPublished:
    """Return the publication of an event."""
    return EventPublished(at=at, event=event, kind=kind, vms=vms, not_before=not_before)


def polled(
    at: float,
    *events: str,
    by: Poller = Poller.HANDLER,
    vm: str = VM,
    takes_s: float | None = 0.0,
    status: int | None = 200,
    substitute: str = "",
    has_header: bool = True,
) -> Polled:
    """Return a poll that got a document with these events; `takes_s` None: it was never answered."""
    has_document = status == 200 and (not substitute or bool(events))
    return Polled(
        at=at,
        vm=vm,
        by=by,
        status=status,
        version="2020-07-01",
        has_header=has_header,
        incarnation=1 + len(events) if has_document else None,
        events=tuple(DeliveredEvent(id=event, kind="Reboot", status="Scheduled", vms=(VM,)) for event in events),
        answered_at=None if takes_s is None else at + takes_s,
        substitute=substitute,
    )


def polls(times: Iterable[float], *events: str) -> list[Polled]:
    """Return polls at these times, each with these events."""
    return [polled(at, *events) for at in times]


def approval(
    at: float, event: str = "E1", *, vm: str = VM, status: int | None = 200, was_prepared: bool | None = None
) -> Approved:
    """Return an approval of the handler on this VM; `was_prepared` is what a probe said when it arrived."""
    return Approved(
        at=at,
        vm=vm,
        by=Poller.HANDLER,
        event_ids=(event,),
        status=status,
        version="2020-07-01",
        was_prepared=was_prepared,
    )


def prepared(at: float, is_yes: bool = True) -> ProbeAnswered:
    """Return an answer of the probe `prepared` on vm-1."""
    return ProbeAnswered(at=at, vm=VM, probe=Probe.PREPARED, is_yes=is_yes)


def recovered_probe(at: float, is_yes: bool = True) -> ProbeAnswered:
    """Return an answer of the probe `recovered` on vm-1."""
    return ProbeAnswered(at=at, vm=VM, probe=Probe.RECOVERED, is_yes=is_yes)


def observe(
    *observations: Observation | Sequence[Observation],
    ended_at: float = 60.0,
    claims: HandlerClaims = EVERYTHING,
    probes: Iterable[Probe] = tuple(Probe),
    has_reference: bool = True,
    stalls: tuple[float, float] | None = None,
    has_start: bool = True,
) -> Observed:
    """Return what demands look at, with these observations.

    The reference poller polls every second, except from `stalls[0]` to `stalls[1]`, and gets each event when it is
    published.
    """
    items: list[Observation] = []
    for item in observations:
        items += item if isinstance(item, Sequence) else [item]
    events = [item for item in items if isinstance(item, EventPublished)]
    if has_start and not any(isinstance(item, ProgramStarted) for item in items):
        items.append(ProgramStarted(at=0.0, vm=VM, run=1))
    if has_reference:
        items += _reference_polls(events, ended_at, stalls)
    return Observed(
        timeline=build_timeline(items, ended_at),
        claims=claims,
        vm=VM,
        neighbours=(NEIGHBOUR,),
        events=tuple(item.event for item in events),
        probes=frozenset(probes),
    )


def outcome_of(demand: Demand, observed: Observed) -> CaseOutcome:
    """Return the outcome of a demand; what was seen must be a sentence without a full stop."""
    outcome, seen, times = demand.judge(observed)
    assert seen
    assert not seen.endswith(".")
    assert all(isinstance(at, float) for at in times)
    return outcome


def _reference_polls(
    events: Sequence[EventPublished], ended_at: float, stalls: tuple[float, float] | None
) -> list[Polled]:
    times = [number + 0.5 for number in range(int(ended_at))]
    if stalls is not None:
        times = [at for at in times if not stalls[0] <= at < stalls[1]]
    return [polled(at, *(item.event for item in events if item.at <= at), by=Poller.REFERENCE) for at in times]
