"""The history of a lab, and the explanation of one event or VM, as text.

Built from the store alone, so it also works after the lab is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.release import StartWait, WaitReason, describe_gate_wait, start_wait, waits_only_for_gate
from forewarn.core.scope import Scope
from forewarn.explain.explanation import Explanation, ScopeFacts, VmPoll, event_explanation, vm_explanation
from forewarn.lab.service import LabService

T = TypeVar("T")
_MAX_EVENTS = 10  # the newest


class LabReader(Protocol):
    """A lab, as far as its things need it."""

    def read(self, look: Callable[[LabService], T]) -> T:
        """What `look` finds once everything due is done."""


def history_lines(service: LabService, after: int = 0) -> tuple[str, ...]:
    return tuple(_entry_line(service, entry) for entry in service.store.history(after=after))


def explanation_of(service: LabService, thing: Event | Vm) -> Explanation:
    if isinstance(thing, Event):
        return event_explanation(thing, _explanation_input(service, thing.scope_id, [thing]))
    listed = [event for event in service.store.events(scope_id=thing.scope_id) if thing.name in event.vms]
    return vm_explanation(thing, listed, _explanation_input(service, thing.scope_id, listed))


def format_explanation(service: LabService, story: Explanation) -> str:
    """One line under the other."""
    lines = (
        f"  {format_offset(service.started_at, line.at)}  {line.text}{_in_parentheses(line.detail)}"
        for line in story.lines
    )
    return "\n".join((story.title, *lines, *(f"  now  {sentence}" for sentence in story.now)))


def format_in_one_line(service: LabService, story: Explanation) -> str:
    """For a `repr`, which test runners cut in the middle: what it is comes first, where it stands last."""
    lines = (f"{format_offset(service.started_at, line.at)} {line.text}" for line in story.lines)
    return f"{story.title} · {' · '.join((*lines, *story.now[:1]))}"


def full_report(service: LabService) -> str:
    """For whoever has to find out why a test failed: everything that happened, then event by event."""
    events = service.store.events(limit=_MAX_EVENTS)
    return "\n".join(
        (
            *history_lines(service),
            *(f"\n{format_explanation(service, explanation_of(service, event))}" for event in events),
        )
    )


def _entry_line(service: LabService, entry: HistoryEntry) -> str:
    return f"{format_offset(service.started_at, entry.at)}  {entry.what:<10} {entry.text}"


def _in_parentheses(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _explanation_input(service: LabService, scope_id: str, events: Sequence[Event]) -> ScopeFacts:
    store = service.store
    scope = store.scope(scope_id) or Scope(id=scope_id)
    names = {vm.key: vm.name for vm in store.vms(scope_id=scope_id, removed=True)}
    return ScopeFacts(
        now=service.now(),
        scope=scope,
        title=_scope_title(scope),
        polls=[
            VmPoll(vm=names.get(p.vm, p.vm), at=p.at, version=p.version) for p in store.last_polls(scope_id=scope_id)
        ],
        deliveries=[sighting for event in events for sighting in store.deliveries(event_id=event.id)],
        entries=_entries(service, events),
        waits=dict(_waits(service, scope, events)),
        names=names,
    )


def _scope_title(scope: Scope) -> str:
    vm = scope.vms[0] if scope.vms else None
    if vm is None:
        return scope.id
    sets = (("cloud service", vm.cloud_service), ("scale set", vm.scale_set), ("availability set", vm.availability_set))
    return next((f"{sort} {name}" for sort, name in sets if name), f"VM {vm.name}")


def _entries(service: LabService, events: Iterable[Event]) -> list[HistoryEntry]:
    known = {entry.seq: entry for event in events for entry in service.store.history(event_id=event.id)}
    for request_id in {event.request_id for event in events}:
        known.update({entry.seq: entry for entry in service.store.history(request_id=request_id)})
    return list(known.values())


def _waits(service: LabService, scope: Scope, events: Iterable[Event]) -> Iterator[tuple[str, StartWait]]:
    around = service.control.transactions.decision_context(dry_run=True)
    for event in events:
        wait = start_wait(scope, event, around) if event.status is EventState.SCHEDULED else None
        if wait is not None and wait.reason is WaitReason.GATE:
            wait = describe_gate_wait(event, _events_keeping_gate_closed(service, event.gate_id))
        if wait is not None:
            yield event.id, wait


def _events_keeping_gate_closed(service: LabService, gate_id: str) -> list[Event]:
    """Those behind a gate that keep it closed."""
    around = service.control.transactions.decision_context(dry_run=True)
    behind = service.store.events(gate_id=gate_id, statuses=[EventState.SCHEDULED])
    scopes = ((event, service.store.scope(event.scope_id)) for event in behind)
    return [event for event, scope in scopes if scope is not None and not waits_only_for_gate(scope, event, around)]


def format_offset(began_at: float, at: float) -> str:
    """`+0:15:00`, `+7d 0:10:00`: the same in every run, whatever the time of day."""
    days, left = divmod(max(0, round(at - began_at)), 86_400)
    hours, left = divmod(left, 3_600)
    minutes, seconds = divmod(left, 60)
    return f"+{f'{days}d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"
