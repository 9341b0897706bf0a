"""How a host, a scope, a rollout or a request stands, for people: what is pending there, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forewarn.core.cause import noun
from forewarn.core.event import Event
from forewarn.core.fleet import Health, Host, Vm
from forewarn.core.history import Entry, What
from forewarn.core.request import Progress, Request, Rollout, Tally
from forewarn.core.story import Line, Record, Story, audience, ending, kind_of, listed, standing

_HEALTH = {
    Health.HEALTHY: "is healthy",
    Health.DEGRADED: "is predicted to fail: its VMs are to leave it",
    Health.FAILED: "has failed: its VMs are redeployed elsewhere",
}
_STEPS = frozenset({What.REQUESTED, What.SKIPPED, What.PAUSED, What.RESUMED, What.STOPPED, What.COMPLETED})
_SHOWN = 8  # pending events told one by one; the others are counted
_OVER_HOSTS = 3  # that are named; more are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An event, with what is known around it."""

    event: Event
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far a rollout has come."""

    tally: Tally
    next_update_domains: tuple[int, ...] = ()


def story_of_host(host: Host, vms: Sequence[Vm], told: Sequence[Told]) -> Story:
    names = [vm.name for vm in vms]
    where = f"{host.location}, zone {host.zone}" if host.zone else host.location
    return Story(
        title=f"host {host.name}, in {where}",
        lines=_lines(told),
        now=(
            f"{host.name} {_HEALTH[host.health]}.",
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} on it." if names else "No VM is on it.",
            *_pending(told, "Nothing is pending on it."),
        ),
    )


def story_of_scope(record: Record, told: Sequence[Told]) -> Story:
    names = [vm.name for vm in record.scope.present]
    members = f"{listed(names)} {'is' if len(names) == 1 else 'are'} in it." if names else "No VM is in it."
    return Story(
        title=f"{record.title} ({record.scope.id})",
        lines=_lines(told),
        now=(*audience(record), members, *_pending(told, "Nothing is pending there.")),
    )


def story_of_rollout(
    request: Request, rollout: Rollout, course: Course, told: Sequence[Told], entries: Iterable[Entry]
) -> Story:
    lines = (*_steps(entries), *_lines(told))
    return Story(
        title=f"R{called(request, rollout)[1:]}, asked for by {request.who}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(_progress(rollout, course.tally), *_whereabouts(told, course), *_pending(told)),
    )


def story_of_request(request: Request, told: Sequence[Told], entries: Iterable[Entry]) -> Story:
    lines = (*_steps(entries), *_lines(told))
    return Story(
        title=f"{noun(request.ask).capitalize()} of {listed(request.targets)}, asked for by {request.who}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=tuple(_pending(told, "Nothing of it is pending.")),
    )


def called(request: Request, rollout: Rollout) -> str:
    """A rollout as a sentence names it: `rollout ID, update over 6 hosts`."""
    if rollout.scope_id:
        over = f"scope {rollout.scope_id}"
    elif len(rollout.hosts) <= _OVER_HOSTS:
        over = f"host{'s' if len(rollout.hosts) > 1 else ''} {listed(rollout.hosts)}"
    else:
        over = f"{len(rollout.hosts)} hosts"
    return f"rollout {request.id}, {rollout.impact} over {over}"


def _lines(told: Sequence[Told]) -> tuple[Line, ...]:
    """One per event, in the order in which they began; of those that are pending the first ones."""
    live = [item for item in told if item.event.is_live]
    over = [item for item in told if not item.event.is_live]
    lines = [_line(item.event) for item in (*over, *live[:_SHOWN])]
    return tuple(sorted(lines, key=lambda line: line.at))


def _line(event: Event) -> Line:
    state = ending(event) if event.ending is not None else f"{event.status}"
    text = f"{kind_of(event)} of {listed(event.vms)}, asked for by {event.who} ({event.cause}): {state}"
    return Line(at=event.published_at, text=text, detail=f"event {event.id}")


def _steps(entries: Iterable[Entry]) -> Iterator[Line]:
    """What was asked of it as a whole; its events tell the rest."""
    return (Line(at=entry.at, text=entry.text) for entry in entries if entry.what in _STEPS and not entry.event_id)


def _pending(told: Sequence[Told], nothing: str = "") -> Iterator[str]:
    live = [item for item in told if item.event.is_live]
    for item in live[:_SHOWN]:
        title = f"{kind_of(item.event)} of {listed(item.event.vms)} ({item.event.id})"
        yield f"{title}: {' '.join(standing(item.event, item.record))}"
    if rest := live[_SHOWN:]:
        yield f"{len(rest)} more {'is' if len(rest) == 1 else 'are'} pending."
    if not live and nothing:
        yield nothing


def _progress(rollout: Rollout, tally: Tally) -> str:
    counts = {
        "failed": tally.failed,
        "withdrawn": tally.withdrawn,
        "started": tally.started,
        "scheduled": tally.scheduled,
        "never begun" if rollout.closed else "waiting": tally.waiting,
    }
    told = ", ".join([f"{tally.done} of {tally.total} VMs done", *(f"{n} {word}" for word, n in counts.items() if n)])
    return f"{_state(rollout, tally)}: {told}." + (f" Why: {rollout.why}." if rollout.why else "")


def _state(rollout: Rollout, tally: Tally) -> str:
    if rollout.progress is Progress.COMPLETED and tally.failed:
        return f"It completed with {tally.failed} failed {'VM' if tally.failed == 1 else 'VMs'}"
    return {
        Progress.RUNNING: "It is running",
        Progress.PAUSED: "It is paused, and publishes nothing until it is resumed",
        Progress.STOPPED: "It stopped by itself",
        Progress.ABORTED: "It was aborted",
        Progress.COMPLETED: "It completed",
    }[rollout.progress]


def _whereabouts(told: Sequence[Told], course: Course) -> Iterator[str]:
    """Which update domains it is at, and which come next."""
    live = [item for item in told if item.event.is_live]
    at = dict.fromkeys(f"update domain {item.event.update_domain} of {item.record.title}" for item in live)
    if at:
        yield f"It is at {listed(list(at))}."
    if following := course.next_update_domains:
        numbers = listed([str(number) for number in following])
        yield f"Next {'is update domain' if len(following) == 1 else 'are update domains'} {numbers} of its scopes."
