"""Explains the status of a host, scope, rollout or request: what is pending, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forewarn.base.times import timestamp
from forewarn.core.cause import verb_noun
from forewarn.core.event import Event
from forewarn.core.explain.explanation import (
    Explanation,
    ExplanationLine,
    ScopeFacts,
    describe_event_status,
    describe_polling,
    ending_text,
    event_kind_text,
    join_names,
)
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState, RolloutTally
from forewarn.core.request_state import RequestState
from forewarn.core.waves import rollout_target_text, wave_title

_HEALTH_TEXT = {
    HostHealth.HEALTHY: "is healthy",
    HostHealth.DEGRADED: "is predicted to fail: its VMs will be moved to other hosts",
    HostHealth.FAILED: "has failed: its VMs are redeployed to other hosts",
}
_REQUEST_STATE_TEXT = {
    RequestState.IN_PROGRESS: "It is in progress.",
    RequestState.SUCCEEDED: "It succeeded.",
    RequestState.FAILED: "It failed.",
    RequestState.CANCELED: "It was canceled: nothing of it was done.",
}
_REQUEST_ENTRY_KINDS = frozenset(
    {
        EntryKind.REQUESTED,
        EntryKind.SKIPPED,
        EntryKind.PAUSED,
        EntryKind.RESUMED,
        EntryKind.WAVE,
        EntryKind.STOPPED,
        EntryKind.COMPLETED,
    }
)
_MAX_LISTED_EVENTS = 8  # more pending events are counted instead of listed
_MAX_NAMED_HOSTS = 3  # more hosts are counted instead of named


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWithFacts:
    """An event with the facts of its own scope, because the events of a host or rollout may be of several scopes."""

    event: Event
    facts: ScopeFacts  # the scope, its polls, deliveries and history entries, and what its events wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """The progress of a rollout, as the caller has computed it for `rollout_explanation`."""

    tally: RolloutTally  # how many VMs are in which state
    next_update_domains: tuple[int, ...] = ()  # numbers of those that it takes next, in any of its scopes; (): none
    is_settling: bool = False  # its current wave settles: nothing comes next before that has passed
    waits_for: tuple[str, ...] = ()  # what keeps it from publishing more, in clauses: settling, budgets, other rollouts


def host_explanation(
    host: Host,
    vms: Sequence[Vm],
    events: Sequence[EventWithFacts],
    entries: Iterable[HistoryEntry] = (),
    *,
    is_unreachable: bool = False,
) -> Explanation:
    """Explain a host: what happened, oldest first, its health, the VMs on it (`vms`), what is pending."""
    lines = (*(ExplanationLine(at=timestamp(entry.at), text=entry.text) for entry in entries), *_event_lines(events))
    names = [vm.name for vm in vms]
    where = f"{host.location}, zone {host.zone}" if host.zone else host.location
    return Explanation(
        title=f"host {host.name}, in {where}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(
            f"{host.name} {_HEALTH_TEXT[host.health]}.",
            *_reachability_sentences(host, is_unreachable),
            f"{join_names(names)} {'is' if len(names) == 1 else 'are'} on it." if names else "No VM is on it.",
            *_pending_sentences(events, "Nothing is pending on it."),
        ),
    )


def _reachability_sentences(host: Host, is_unreachable: bool) -> Iterator[str]:
    if is_unreachable:
        yield "It is unreachable: it does not answer the hypervisor, and acts on its VMs wait. Its VMs may still run."
    if host.confirmed_down:
        yield "An operator has confirmed that it is down: its VMs may be started elsewhere."


def scope_explanation(facts: ScopeFacts, events: Sequence[EventWithFacts]) -> Explanation:
    """Explain a scope: its events, oldest first, whether its VMs poll, which are in it, what is pending."""
    names = [vm.name for vm in facts.scope.present_vms]
    members = f"{join_names(names)} {'is' if len(names) == 1 else 'are'} in it." if names else "No VM is in it."
    return Explanation(
        title=facts.title,
        lines=_event_lines(events),
        now=(*describe_polling(facts), members, *_pending_sentences(events, "Nothing is pending there.")),
    )


def rollout_explanation(
    request: MaintenanceRequest,
    rollout: Rollout,
    progress: RolloutProgress,
    events: Sequence[EventWithFacts],
    entries: Iterable[HistoryEntry],
) -> Explanation:
    """Explain a rollout: what happened, oldest first, its progress, and the update domains it works on."""
    lines = (*_request_lines(entries), *_event_lines(events))
    return Explanation(
        title=f"R{rollout_title(request, rollout)[1:]}, requested by {request.requested_by}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(
            _progress_sentence(rollout, progress.tally),
            *_update_domain_sentences(events, rollout, progress),
            *(f"It waits: {wait}." for wait in progress.waits_for),
            *_pending_sentences(events),
        ),
    )


def request_explanation(
    request: MaintenanceRequest,
    state: RequestState,
    events: Sequence[EventWithFacts],
    entries: Iterable[HistoryEntry],
) -> Explanation:
    """Explain a request other than a rollout: what happened, oldest first, its state, what is pending."""
    lines = (*_request_lines(entries), *_event_lines(events))
    return Explanation(
        title=f"{verb_noun(request.operation).capitalize()} of {join_names(request.targets)}, "
        f"requested by {request.requested_by}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(_REQUEST_STATE_TEXT[state], *_pending_sentences(events)),
    )


def rollout_title(request: MaintenanceRequest, rollout: Rollout) -> str:
    """Return a rollout in words: `rollout ID, update over 6 hosts`, or `… over web`."""
    if not rollout.hosts:
        over = rollout_target_text(rollout)
    elif len(rollout.hosts) <= _MAX_NAMED_HOSTS:
        over = f"host{'s' if len(rollout.hosts) > 1 else ''} {join_names(rollout.hosts)}"
    else:
        over = f"{len(rollout.hosts)} hosts"
    return f"rollout {request.id}, {rollout.impact} over {over}"


def _event_lines(events: Sequence[EventWithFacts]) -> tuple[ExplanationLine, ...]:
    live = [item for item in events if item.event.is_live]
    over = [item for item in events if not item.event.is_live]
    lines = [_event_line(item.event) for item in (*over, *live[:_MAX_LISTED_EVENTS])]
    return tuple(sorted(lines, key=lambda line: line.at))


def _event_line(event: Event) -> ExplanationLine:
    state = ending_text(event) if event.ending is not None else f"{event.status}"
    requested = f"requested by {event.requested_by} ({event.cause})"
    text = f"{event_kind_text(event)} of {join_names(event.vms)}, {requested}: {state}"
    return ExplanationLine(at=timestamp(event.published_at), text=text, detail=f"event {event.id}")


def _request_lines(entries: Iterable[HistoryEntry]) -> Iterator[ExplanationLine]:
    return (
        ExplanationLine(at=timestamp(entry.at), text=entry.text)
        for entry in entries
        if entry.kind in _REQUEST_ENTRY_KINDS and not entry.event_id
    )


def _pending_sentences(events: Sequence[EventWithFacts], nothing: str = "") -> Iterator[str]:
    live = [item for item in events if item.event.is_live]
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
        "not needed": tally.not_needed,
        "started": tally.started,
        "scheduled": tally.scheduled,
        "never started" if rollout.closed else "waiting": tally.waiting,
    }
    done = f"{tally.done} of {tally.total} VMs done"
    progress = ", ".join([done, *(f"{count} {state}" for state, count in counts.items() if count)])
    return f"{_state_text(rollout, tally)}: {progress}." + (f" Reason: {rollout.reason}." if rollout.reason else "")


def _state_text(rollout: Rollout, tally: RolloutTally) -> str:
    if rollout.progress is RolloutState.COMPLETED and tally.failed:
        return f"It completed with {tally.failed} failed {'VM' if tally.failed == 1 else 'VMs'}"
    return {
        RolloutState.RUNNING: "It is running",
        RolloutState.PAUSED: "It is paused and publishes no events until it is resumed",
        RolloutState.STOPPED: "It stopped by itself",
        RolloutState.ABORTED: "It was aborted",
        RolloutState.COMPLETED: "It completed",
    }[rollout.progress]


def _update_domain_sentences(
    events: Sequence[EventWithFacts], rollout: Rollout, progress: RolloutProgress
) -> Iterator[str]:
    live = [item for item in events if item.event.is_live]
    at = dict.fromkeys(f"update domain {item.event.update_domain} of {item.facts.title}" for item in live)
    if at:
        yield f"It works on {join_names(list(at))}."
    following = progress.next_update_domains
    if progress.is_settling:
        what = "The next wave begins" if following else "It completes"
        resumed = " and it is resumed" if rollout.progress is RolloutState.PAUSED and following else ""
        yield f"{what} when {wave_title(rollout, rollout.wave)} has settled{resumed}."
    elif following:
        numbers = join_names([str(number) for number in following])
        yield f"Next {'is update domain' if len(following) == 1 else 'are update domains'} {numbers} of its scopes."
