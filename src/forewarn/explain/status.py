"""Explains the status of a host, scope, rollout or request: what is pending, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forewarn.core.cause import verb_noun
from forewarn.core.event import Event
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState, RolloutTally
from forewarn.explain.explanation import (
    Explanation,
    ExplanationLine,
    ScopeFacts,
    describe_event_status,
    describe_polling,
)
from forewarn.explain.phrases import ending_text, event_kind_text, join_names

_HEALTH_TEXT = {
    HostHealth.HEALTHY: "is healthy",
    HostHealth.DEGRADED: "is predicted to fail: its VMs are to leave it",
    HostHealth.FAILED: "has failed: its VMs are redeployed elsewhere",
}
_REQUEST_ENTRY_KINDS = frozenset(
    {
        EntryKind.REQUESTED,
        EntryKind.SKIPPED,
        EntryKind.PAUSED,
        EntryKind.RESUMED,
        EntryKind.STOPPED,
        EntryKind.COMPLETED,
    }
)
_MAX_LISTED_EVENTS = 8  # pending events told one by one; the others are counted
_MAX_NAMED_HOSTS = 3  # that are named; more are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWithFacts:
    """An event, with what is known around it."""

    event: Event
    facts: ScopeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """How far a rollout has come."""

    tally: RolloutTally
    next_update_domains: tuple[int, ...] = ()


def host_explanation(host: Host, vms: Sequence[Vm], told: Sequence[EventWithFacts]) -> Explanation:
    names = [vm.name for vm in vms]
    where = f"{host.location}, zone {host.zone}" if host.zone else host.location
    return Explanation(
        title=f"host {host.name}, in {where}",
        lines=_event_lines(told),
        now=(
            f"{host.name} {_HEALTH_TEXT[host.health]}.",
            f"{join_names(names)} {'is' if len(names) == 1 else 'are'} on it." if names else "No VM is on it.",
            *_pending_sentences(told, "Nothing is pending on it."),
        ),
    )


def scope_explanation(record: ScopeFacts, told: Sequence[EventWithFacts]) -> Explanation:
    names = [vm.name for vm in record.scope.present_vms]
    members = f"{join_names(names)} {'is' if len(names) == 1 else 'are'} in it." if names else "No VM is in it."
    return Explanation(
        title=f"{record.title} ({record.scope.id})",
        lines=_event_lines(told),
        now=(*describe_polling(record), members, *_pending_sentences(told, "Nothing is pending there.")),
    )


def rollout_explanation(
    request: MaintenanceRequest,
    rollout: Rollout,
    course: RolloutProgress,
    told: Sequence[EventWithFacts],
    entries: Iterable[HistoryEntry],
) -> Explanation:
    lines = (*_request_lines(entries), *_event_lines(told))
    return Explanation(
        title=f"R{rollout_title(request, rollout)[1:]}, asked for by {request.who}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(
            _progress_sentence(rollout, course.tally),
            *_update_domain_sentences(told, course),
            *_pending_sentences(told),
        ),
    )


def request_explanation(
    request: MaintenanceRequest, told: Sequence[EventWithFacts], entries: Iterable[HistoryEntry]
) -> Explanation:
    lines = (*_request_lines(entries), *_event_lines(told))
    return Explanation(
        title=f"{verb_noun(request.ask).capitalize()} of {join_names(request.targets)}, asked for by {request.who}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=tuple(_pending_sentences(told, "Nothing of it is pending.")),
    )


def rollout_title(request: MaintenanceRequest, rollout: Rollout) -> str:
    """A rollout as a sentence names it: `rollout ID, update over 6 hosts`."""
    if rollout.scope_id:
        over = f"scope {rollout.scope_id}"
    elif len(rollout.hosts) <= _MAX_NAMED_HOSTS:
        over = f"host{'s' if len(rollout.hosts) > 1 else ''} {join_names(rollout.hosts)}"
    else:
        over = f"{len(rollout.hosts)} hosts"
    return f"rollout {request.id}, {rollout.impact} over {over}"


def _event_lines(told: Sequence[EventWithFacts]) -> tuple[ExplanationLine, ...]:
    """One per event, in the order in which they began; of those that are pending the first ones."""
    live = [item for item in told if item.event.is_live]
    over = [item for item in told if not item.event.is_live]
    lines = [_event_line(item.event) for item in (*over, *live[:_MAX_LISTED_EVENTS])]
    return tuple(sorted(lines, key=lambda line: line.at))


def _event_line(event: Event) -> ExplanationLine:
    state = ending_text(event) if event.ending is not None else f"{event.status}"
    text = f"{event_kind_text(event)} of {join_names(event.vms)}, asked for by {event.who} ({event.cause}): {state}"
    return ExplanationLine(at=event.published_at, text=text, detail=f"event {event.id}")


def _request_lines(entries: Iterable[HistoryEntry]) -> Iterator[ExplanationLine]:
    """What was asked of it as a whole; its events tell the rest."""
    return (
        ExplanationLine(at=entry.at, text=entry.text)
        for entry in entries
        if entry.what in _REQUEST_ENTRY_KINDS and not entry.event_id
    )


def _pending_sentences(told: Sequence[EventWithFacts], nothing: str = "") -> Iterator[str]:
    live = [item for item in told if item.event.is_live]
    for item in live[:_MAX_LISTED_EVENTS]:
        title = f"{event_kind_text(item.event)} of {join_names(item.event.vms)} ({item.event.id})"
        yield f"{title}: {' '.join(describe_event_status(item.event, item.facts))}"
    if rest := live[_MAX_LISTED_EVENTS:]:
        yield f"{len(rest)} more {'is' if len(rest) == 1 else 'are'} pending."
    if not live and nothing:
        yield nothing


def _progress_sentence(rollout: Rollout, tally: RolloutTally) -> str:
    counts = {
        "failed": tally.failed,
        "withdrawn": tally.withdrawn,
        "started": tally.started,
        "scheduled": tally.scheduled,
        "never begun" if rollout.closed else "waiting": tally.waiting,
    }
    told = ", ".join([f"{tally.done} of {tally.total} VMs done", *(f"{n} {word}" for word, n in counts.items() if n)])
    return f"{_state_text(rollout, tally)}: {told}." + (f" Why: {rollout.why}." if rollout.why else "")


def _state_text(rollout: Rollout, tally: RolloutTally) -> str:
    if rollout.progress is RolloutState.COMPLETED and tally.failed:
        return f"It completed with {tally.failed} failed {'VM' if tally.failed == 1 else 'VMs'}"
    return {
        RolloutState.RUNNING: "It is running",
        RolloutState.PAUSED: "It is paused, and publishes nothing until it is resumed",
        RolloutState.STOPPED: "It stopped by itself",
        RolloutState.ABORTED: "It was aborted",
        RolloutState.COMPLETED: "It completed",
    }[rollout.progress]


def _update_domain_sentences(told: Sequence[EventWithFacts], course: RolloutProgress) -> Iterator[str]:
    """Which update domains it is at, and which come next."""
    live = [item for item in told if item.event.is_live]
    at = dict.fromkeys(f"update domain {item.event.update_domain} of {item.facts.title}" for item in live)
    if at:
        yield f"It is at {join_names(list(at))}."
    if following := course.next_update_domains:
        numbers = join_names([str(number) for number in following])
        yield f"Next {'is update domain' if len(following) == 1 else 'are update domains'} {numbers} of its scopes."
