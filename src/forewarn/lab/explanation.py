"""The history of a lab, and the explanation of one event or VM, as text.

Built from the store alone, so it also works after the lab is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import (
    Explanation,
    ScopeFacts,
    VmPoll,
    event_explanation,
    vm_explanation,
    vm_name,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.release import StartWait, WaitReason, describe_gate_wait, start_wait, waits_only_for_gate
from forewarn.core.scope import Scope, scope_title
from forewarn.lab.service import LabService

T = TypeVar("T")
_MAX_EVENTS = 10  # the newest


class LabReader(Protocol):
    """The part of a `Lab` that its events, VMs and faults use to read the service; `Lab` implements it."""

    def read(self, query: Callable[[LabService], T]) -> T:
        """Do everything that is due in the lab, then call `query` with its service and return the result."""


def history_lines(service: LabService, after: int = 0) -> tuple[str, ...]:
    """Return the history entries with a sequence number above `after`, oldest first, one line each."""
    return tuple(_entry_line(service, entry) for entry in service.store.history(after=after))


def explanation_of(service: LabService, thing: Event | Vm) -> Explanation:
    """Explain what happened to an event or a VM, why, and what it waits for, from the lab's store."""
    if isinstance(thing, Event):
        return event_explanation(thing, _explanation_input(service, thing.scope_id, [thing]))
    listed = [event for event in service.store.events(scope_id=thing.scope_id) if thing.name in event.vms]
    return vm_explanation(thing, listed, _explanation_input(service, thing.scope_id, listed))


def format_explanation(service: LabService, explanation: Explanation) -> str:
    """Format an explanation as text: its title, a line for each thing that happened, and lines about now."""
    lines = (
        f"  {_format_offset(service.started_at, line.at)}  {line.text}{_in_parentheses(line.detail)}"
        for line in explanation.lines
    )
    return "\n".join((explanation.title, *lines, *(f"  now  {sentence}" for sentence in explanation.now)))


def format_in_one_line(service: LabService, explanation: Explanation) -> str:
    """Format an explanation in one line for a `repr`: title, what happened, first sentence about now.

    Leaves out the details of each line, because test runners cut the middle of a long line.
    """
    lines = (f"{_format_offset(service.started_at, line.at)} {line.text}" for line in explanation.lines)
    return f"{explanation.title} · {' · '.join((*lines, *explanation.now[:1]))}"


def full_report(service: LabService) -> str:
    """Return the whole history of the lab, then the explanations of the ten newest events, as text."""
    events = service.store.events(limit=_MAX_EVENTS)
    return "\n".join(
        (
            *history_lines(service),
            *(f"\n{format_explanation(service, explanation_of(service, event))}" for event in events),
        )
    )


def _entry_line(service: LabService, entry: HistoryEntry) -> str:
    return f"{_format_offset(service.started_at, entry.at)}  {entry.kind:<10} {entry.text}"


def _in_parentheses(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _explanation_input(service: LabService, scope_id: str, events: Sequence[Event]) -> ScopeFacts:
    store = service.store
    scope = store.scope(scope_id) or Scope(id=scope_id)
    names = {vm.key: vm.name for vm in store.vms(scope_id=scope_id, removed=True)}
    return ScopeFacts(
        now=service.now(),
        scope=scope,
        title=scope_title(scope),
        # In virtual time: a test reads the same text on every machine.
        polls=[
            VmPoll(vm=vm_name(p.vm, names), silent_s=service.now() - p.at, version=p.version)
            for p in store.last_polls(scope_id=scope_id)
        ],
        deliveries=[delivery for event in events for delivery in store.deliveries(event_id=event.id)],
        entries=_entries(service, events),
        waits=dict(_waits(service, scope, events)),
        names=names,
        unanswered_s=service.control.executor.unanswered_s(),
        blocking_hosts=service.control.executor.blocking_hosts(),
        act_notes=service.control.executor.progress.notes(),
        awaited_hosts=service.control.executor.progress.awaited_hosts(),
        idle_s=service.control.transactions.policy.idle_s,
    )


def _entries(service: LabService, events: Iterable[Event]) -> list[HistoryEntry]:
    known = {entry.seq: entry for event in events for entry in service.store.history(event_id=event.id)}
    for request_id in {event.request_id for event in events}:
        known.update({entry.seq: entry for entry in service.store.history(request_id=request_id)})
    return list(known.values())


def _waits(service: LabService, scope: Scope, events: Iterable[Event]) -> Iterator[tuple[str, StartWait]]:
    context = service.control.transactions.context_for(scope)
    for event in events:
        wait = start_wait(scope, event, context) if event.status is EventState.SCHEDULED else None
        if wait is not None and wait.reason is WaitReason.GATE:
            wait = describe_gate_wait(event, _events_keeping_gate_closed(service, event.gate_id))
        if wait is not None:
            yield event.id, wait


def _events_keeping_gate_closed(service: LabService, gate_id: str) -> list[Event]:
    """The events of a gate that are not ready to start."""
    transactions = service.control.transactions
    behind = service.store.events(gate_id=gate_id, statuses=[EventState.SCHEDULED])
    scopes = ((event, service.store.scope(event.scope_id)) for event in behind)
    return [
        event
        for event, scope in scopes
        if scope is not None and not waits_only_for_gate(scope, event, transactions.context_for(scope))
    ]


def _format_offset(started_at: float, at: float) -> str:
    """The time from `started_at` to `at`, such as `+0:15:00` or `+7d 0:10:00`; never negative."""
    days, left = divmod(max(0, round(at - started_at)), 86_400)
    hours, left = divmod(left, 3_600)
    minutes, seconds = divmod(left, 60)
    return f"+{f'{days}d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"
