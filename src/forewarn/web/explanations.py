"""Collects the records that explain a VM, event, host, scope or request, as the caller may see them.

The explanations themselves are worded by forewarn.explain, which does not read the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from forewarn.core.event import Event, EventState
from forewarn.core.faults import Fault, FaultCategory
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry
from forewarn.core.release import StartWait
from forewarn.core.request import MaintenanceRequest
from forewarn.core.scope import Scope
from forewarn.explain.explanation import (
    Explanation,
    ExplanationLine,
    ScopeFacts,
    VmPoll,
    event_explanation,
    vm_explanation,
)
from forewarn.explain.phrases import duration_text
from forewarn.explain.status import (
    EventWithFacts,
    RolloutProgress,
    host_explanation,
    request_explanation,
    rollout_explanation,
    rollout_title,
    scope_explanation,
)
from forewarn.web.context import RequestContext
from forewarn.web.lab_views import fault_remaining_s, refresh_faults
from forewarn.web.queries import event_lists_vm, events_on_host
from forewarn.web.request_views import next_update_domains, request_events
from forewarn.web.view_builder import ViewBuilder, scope_title, scope_title_of_vm

_MAX_VM_EVENTS = 100  # of a VM's life, the newest
_MAX_PAST_EVENTS = 10  # of a host, a scope or a rollout, beside those that are pending
_RECENT_EVENTS = 10_000


def explain_host(context: RequestContext, host: Host) -> Explanation:
    recent = {event.id: event for event in (*_live_events(context), *context.store.events(limit=_RECENT_EVENTS))}
    return host_explanation(
        host,
        context.store.vms(host=host.name),
        _event_records(context, events_on_host(context, host.name, recent.values())),
    )


def explain_scope(context: RequestContext, scope: Scope) -> Explanation:
    told = _event_records(context, context.store.events(scope_id=scope.id))
    return scope_explanation(_build_record(context, scope, scope_title(scope), [], [], []), told)


def explain_request(context: RequestContext, request: MaintenanceRequest) -> Explanation:
    events = request_events(context, request)
    entries = context.store.history(request_id=request.id)
    rollout = request.rollout
    if rollout is None:
        return request_explanation(request, _event_records(context, events), entries)
    reach = context.control.rollouts.snapshot_of(request, rollout)
    tally = context.control.rollouts.tally_of(request, rollout, reach)
    course = RolloutProgress(tally=tally, next_update_domains=next_update_domains(context, request, reach))
    return rollout_explanation(request, rollout, course, _event_records(context, events), entries)


def _live_events(context: RequestContext) -> list[Event]:
    return context.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])


def _event_records(context: RequestContext, events: Iterable[Event]) -> list[EventWithFacts]:
    """Those that are pending, and the last ones that are over."""
    listed = list(events)
    over = [event for event in listed if not event.is_live][-_MAX_PAST_EVENTS:]
    return [_event_record(context, event) for event in (*over, *(event for event in listed if event.is_live))]


def _event_record(context: RequestContext, event: Event) -> EventWithFacts:
    scope = _load_scope(context, event.scope_id)
    sightings = context.store.deliveries(event_id=event.id)
    record = _build_record(context, scope, scope_title(scope), [event], _retry_entries(context, event), sightings)
    return EventWithFacts(event=event, facts=record)


def _load_scope(context: RequestContext, scope_id: str) -> Scope:
    return context.store.scope(scope_id) or Scope(id=scope_id)


def explain_event(context: RequestContext, event: Event) -> Explanation:
    scope = _load_scope(context, event.scope_id)
    asked = [
        entry for entry in context.store.history(request_id=event.request_id) if context.visibility.can_see_entry(entry)
    ]
    known = {entry.seq: entry for entry in (*asked, *_retry_entries(context, event))}
    entries = [*known.values(), *_service_entries(context)]
    sightings = context.store.deliveries(event_id=event.id)
    return event_explanation(event, _build_record(context, scope, scope_title(scope), [event], entries, sightings))


async def explain_vm(context: RequestContext, vm: Vm) -> Explanation:
    """With the faults that are on for it. The caller has seen to `observe`."""
    return await _with_fault_lines(context, vm, _vm_explanation(context, vm))


def _vm_explanation(context: RequestContext, vm: Vm) -> Explanation:
    scope = _load_scope(context, vm.scope_id)
    events = [event for event in context.store.events(scope_id=vm.scope_id) if event_lists_vm(event, vm.name)][
        -_MAX_VM_EVENTS:
    ]
    sightings = [sighting for event in events for sighting in context.store.deliveries(event_id=event.id)]
    setbacks = [
        entry for event in events if event.status is EventState.STARTED for entry in _retry_entries(context, event)
    ]
    entries = [*setbacks, *_service_entries(context)]
    return vm_explanation(vm, events, _build_record(context, scope, scope_title_of_vm(vm), events, entries, sightings))


def _retry_entries(context: RequestContext, event: Event) -> list[HistoryEntry]:
    """Where a hypervisor did not do at once what the event owes."""
    return [entry for entry in context.store.history(event_id=event.id) if entry.what is EntryKind.RETRIED]


def _build_record(
    context: RequestContext,
    scope: Scope,
    title: str,
    events: list[Event],
    entries: list[HistoryEntry],
    sightings: list[EventDelivery],
) -> ScopeFacts:
    names = {vm.key: vm.name for vm in context.store.vms(scope_id=scope.id, removed=True)}
    polls = context.store.last_polls(scope_id=scope.id)
    return ScopeFacts(
        now=context.now(),
        scope=scope,
        title=title,
        polls=[VmPoll(vm=names.get(p.vm, p.vm), at=p.at, version=p.version) for p in polls],
        deliveries=sightings,
        entries=entries,
        waits=_pending_waits(context, events),
        names=names,
        rollouts=_rollout_titles(context, events),
    )


def _rollout_titles(context: RequestContext, events: list[Event]) -> dict[str, str]:
    requests = (context.store.request(request_id) for request_id in {event.request_id for event in events})
    rollouts = ((request, request.rollout) for request in requests if request is not None)
    whole = context.can_see_everything()  # its hosts and scopes are others' too
    return {
        request.id: rollout_title(request, of) if whole else "a rollout" for request, of in rollouts if of is not None
    }


def _pending_waits(context: RequestContext, events: list[Event]) -> dict[str, StartWait]:
    view_builder = ViewBuilder(context)
    waits = ((event.id, view_builder.pending_wait(event)) for event in events)
    return {event_id: wait for event_id, wait in waits if wait is not None}


def _service_entries(context: RequestContext) -> list[HistoryEntry]:
    """What the service said of itself is about no scope, event, request or VM."""
    about_nothing = context.store.history(scope_id="", event_id="", request_id="", vm="")
    return [entry for entry in about_nothing if entry.what is EntryKind.SERVICE]


_MAX_FAULT_LINES = 20


async def _with_fault_lines(context: RequestContext, vm: Vm, story: Explanation) -> Explanation:
    """The VM's story with the faults that are on for it, and what is on record of earlier ones."""
    await refresh_faults(context)
    book = context.control.faults.active
    now = [
        sentence
        for fault in book.faults
        if _fault_covers_vm(fault, vm)
        for sentence in _fault_sentences(context, fault, vm)
    ]
    told = sorted(_fault_entries(context, vm), key=lambda entry: entry.seq)[-_MAX_FAULT_LINES:]
    if not now and not told:
        return story
    lines = [*story.lines, *(ExplanationLine(at=entry.at, text=entry.text) for entry in reversed(told))]
    return replace(story, lines=tuple(sorted(lines, key=lambda line: -line.at)), now=(*story.now, *now))


def _fault_covers_vm(fault: Fault, vm: Vm) -> bool:
    return fault.covers_request(scope_id=vm.scope_id, vm=vm.key)


def _fault_sentences(context: RequestContext, fault: Fault, vm: Vm) -> Iterator[str]:
    left_s = fault_remaining_s(context, fault)
    parts = [f"it began {duration_text(context.now() - fault.set_at)} ago"]
    parts += [f"it ends in {duration_text(left_s)}"] if left_s is not None else []
    parts += [f"{fault.remaining} more of {fault.count}"] if fault.count is not None else []
    yield f"Fault {fault.id} ({fault.kind}) is on for {fault.name}, set by {fault.who}: {', '.join(parts)}."
    if fault.category is FaultCategory.TRANSPORT:
        touched = fault.touched_by_vm.get(vm.key, 0)
        last = (
            f", the last {duration_text(context.now() - fault.touched_at)} ago" if fault.touched_at and touched else ""
        )
        yield f"It has touched {touched} request{'' if touched == 1 else 's'} of {vm.name}{last}."
    elif fault.touched:
        yield f"It has touched {fault.touched} event{'' if fault.touched == 1 else 's'}."


def _fault_entries(context: RequestContext, vm: Vm) -> Iterator[HistoryEntry]:
    """Entries about faults of this VM, of its scope, and of everything."""
    own = context.store.history(scope_id=vm.scope_id, vm=vm.name)
    shared = context.store.history(scope_id=vm.scope_id, vm="")
    about_nothing = context.store.history(scope_id="", event_id="", request_id="", vm="")
    everybodys = filter(context.visibility.can_see_entry, about_nothing)
    for entry in (*own, *shared, *everybodys):
        if entry.what is EntryKind.FAULT:
            yield entry
