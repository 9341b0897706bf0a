"""The explain handler: resolves a name to a VM, host, scope, event or request, and explains it.

It collects what the caller may see; `forewarn.core.explain` words the explanations, and does not read the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.base.times import timestamp
from forewarn.control.event_facts import EventWaits, scope_facts
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import (
    Explanation,
    ExplanationLine,
    ScopeFacts,
    VmPoll,
    event_explanation,
    vm_explanation,
)
from forewarn.core.explain.status import (
    EventWithFacts,
    RolloutProgress,
    host_explanation,
    request_explanation,
    rollout_explanation,
    rollout_title,
    scope_explanation,
)
from forewarn.core.faults import Fault, FaultCategory
from forewarn.core.fleet import Host, Vm, vm_key_in_scope
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry, LastPoll
from forewarn.core.request import MaintenanceRequest
from forewarn.core.scope import Scope, scope_title, scope_title_of_vm
from forewarn.core.waves import settles_until
from forewarn.errors import NotFound, Refused, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.faults import fault_remaining_s, refresh_faults
from forewarn.web.polling_report import silent_seconds
from forewarn.web.queries import event_lists_vm, events_on_host, live_events
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.requests import next_update_domains, read_request_status, request_events, rollout_waits

T = TypeVar("T")


_MAX_VM_EVENTS = 100  # the newest events of a VM
_MAX_VM_ENTRIES = 1_000  # a VM's former scopes are searched in its newest history entries
_MAX_PAST_EVENTS = 10  # of a host, scope or rollout, beside the live ones
_MAX_HOST_ENTRIES = 20  # the newest history entries about a host itself
_RECENT_EVENTS = 10_000  # a host's past events are searched among these
_MAX_FAULT_LINES = 20  # the newest history entries about faults of a VM
_MAX_UNANNOUNCED = 100  # the newest history entries about what changed without an event


def explain_host(context: RequestContext, host: Host) -> Explanation:
    """Explain a host: its VMs, its live events, its ten latest past ones, and its own history entries."""
    recent = {event.id: event for event in (*live_events(context), *context.store.events(limit=_RECENT_EVENTS))}
    return host_explanation(
        host,
        context.store.vms(host=host.name),
        _events_with_facts(context, events_on_host(context, host.name, recent.values())),
        _host_entries(context, host),
        is_unreachable=host.name in context.control.unreachable_hosts(),
    )


def _host_entries(context: RequestContext, host: Host) -> list[HistoryEntry]:
    unrelated = context.store.history(scope_id="", event_id="", request_id="", vm="")
    kinds = (EntryKind.HOST, EntryKind.FLEET, EntryKind.UNANNOUNCED)
    return [entry for entry in unrelated if entry.host == host.name and entry.kind in kinds][-_MAX_HOST_ENTRIES:]


def explain_scope(context: RequestContext, scope: Scope) -> Explanation:
    """Explain a scope: its present VMs, whether they poll, its live events and its ten latest past ones."""
    events = _events_with_facts(context, context.store.events(scope_id=scope.id))
    return scope_explanation(_scope_facts(context, scope, scope_title(scope), [], [], []), events)


def explain_request(context: RequestContext, request: MaintenanceRequest) -> Explanation:
    """Explain a request or rollout: its state, its events, its history, and the progress of a rollout.

    Call `flush_observations` first, and check that the user may see the request.
    """
    events = request_events(context, request)
    entries = list(map(context.visibility.shown_entry, context.store.history(request_id=request.id)))
    rollout = request.rollout
    if rollout is None:
        state = read_request_status(context, request).state
        return request_explanation(request, state, _events_with_facts(context, events), entries)
    snapshot = context.control.rollouts.snapshot_of(request, rollout)
    tally = context.control.rollouts.tally_of(request, rollout, snapshot)
    progress = RolloutProgress(
        tally=tally,
        next_update_domains=next_update_domains(context, request, snapshot),
        is_settling=settles_until(rollout, context.now()) is not None,
        waits_for=rollout_waits(context, request, snapshot),
    )
    return rollout_explanation(request, rollout, progress, _events_with_facts(context, events), entries)


def _events_with_facts(context: RequestContext, events: Iterable[Event]) -> list[EventWithFacts]:
    every = list(events)
    past = [event for event in every if not event.is_live][-_MAX_PAST_EVENTS:]
    return [_event_with_facts(context, event) for event in (*past, *(event for event in every if event.is_live))]


def _event_with_facts(context: RequestContext, event: Event) -> EventWithFacts:
    scope = _load_scope(context, event.scope_id)
    deliveries = context.store.deliveries(event_id=event.id)
    facts = _scope_facts(context, scope, scope_title(scope), [event], _retry_entries(context, event), deliveries)
    return EventWithFacts(event=context.visibility.shown_event(event), facts=facts)


def _load_scope(context: RequestContext, scope_id: str) -> Scope:
    return context.store.scope(scope_id) or Scope(id=scope_id)


def explain_event(context: RequestContext, event: Event) -> Explanation:
    """Explain an event from its request to its end, with its deliveries to VMs.

    Call `flush_observations` first, and check that the user may see the event's scope.
    """
    scope = _load_scope(context, event.scope_id)
    of_request = context.visibility.visible_entries(context.store.history(request_id=event.request_id))
    by_seq = {entry.seq: entry for entry in (*of_request, *_retry_entries(context, event))}
    entries = [*by_seq.values(), *_service_entries(context)]
    deliveries = context.store.deliveries(event_id=event.id)
    facts = _scope_facts(context, scope, scope_title(scope), [event], entries, deliveries)
    return event_explanation(context.visibility.shown_event(event), facts)


async def explain_vm(context: RequestContext, vm: Vm) -> Explanation:
    """Explain a VM, present or removed: its 100 newest events, unannounced changes, and its polls.

    Call `flush_observations` first, and check that the user may see the VM.
    """
    explanation = _vm_explanation(context, vm)
    return await _with_fault_lines(context, vm, explanation) if context.can_see_everything() else explanation


def _vm_explanation(context: RequestContext, vm: Vm) -> Explanation:
    scope = _load_scope(context, vm.scope_id)
    scope_ids = (vm.scope_id, *_former_scope_ids(context, vm))
    listed = [e for id_ in scope_ids for e in context.store.events(scope_id=id_) if event_lists_vm(e, vm.name)]
    events = sorted(listed, key=lambda event: event.published_at)[-_MAX_VM_EVENTS:]
    deliveries = [delivery for event in events for delivery in context.store.deliveries(event_id=event.id)]
    retries = [
        entry for event in events if event.status is EventState.STARTED for entry in _retry_entries(context, event)
    ]
    entries = [*retries, *_unannounced_entries(context, vm), *_service_entries(context)]
    facts = _scope_facts(context, scope, scope_title_of_vm(vm), events, entries, deliveries)
    return vm_explanation(vm, map(context.visibility.shown_event, events), facts)


def _former_scope_ids(context: RequestContext, vm: Vm) -> list[str]:
    """The scopes that the VM was in before it was removed and added again, such as another availability set."""
    found = {entry.scope_id for entry in context.store.history(vm=vm.name, limit=_MAX_VM_ENTRIES)}
    return sorted(
        scope_id
        for scope_id in found - {"", vm.scope_id}
        if vm_key_in_scope(scope_id, vm.name) == vm.key and context.can_see_scope(scope_id)
    )


def _unannounced_entries(context: RequestContext, vm: Vm) -> list[HistoryEntry]:
    entries = context.store.history(scope_id=vm.scope_id, vm=vm.name)
    return [entry for entry in entries if entry.kind is EntryKind.UNANNOUNCED][-_MAX_UNANNOUNCED:]


def _retry_entries(context: RequestContext, event: Event) -> list[HistoryEntry]:
    return [entry for entry in context.store.history(event_id=event.id) if entry.kind is EntryKind.RETRIED]


def _scope_facts(
    context: RequestContext,
    scope: Scope,
    title: str,
    events: list[Event],
    entries: list[HistoryEntry],
    deliveries: list[EventDelivery],
) -> ScopeFacts:
    return scope_facts(
        context.control,
        scope,
        title,
        entries=entries,
        deliveries=deliveries,
        waits=EventWaits(context.control, context.can_see_scope).pending_waits(events),
        describe_poll=partial(_vm_poll, context),
        rollouts=_rollout_titles(context, events),
        hypervisor=context.dependencies.hypervisor_text,
    )


def _vm_poll(context: RequestContext, poll: LastPoll, name: str) -> VmPoll:
    now, _, is_lab = context.control.lab_clock.status()
    return VmPoll(
        vm=name,
        silent_s=silent_seconds(poll, context.dependencies.pace_of(poll.vm), now),
        version=poll.version,
        lab_s=now - poll.at if is_lab else None,
    )


def _rollout_titles(context: RequestContext, events: list[Event]) -> dict[str, str]:
    requests = (context.store.request(request_id) for request_id in {event.request_id for event in events})
    rollouts = ((request, request.rollout) for request in requests if request is not None)
    sees_title = context.can_see_everything()  # a title names hosts and scopes of other owners
    return {
        request.id: rollout_title(request, rollout) if sees_title else "a rollout"
        for request, rollout in rollouts
        if rollout is not None
    }


def _service_entries(context: RequestContext) -> list[HistoryEntry]:
    unrelated = context.store.history(scope_id="", event_id="", request_id="", vm="")
    return [entry for entry in unrelated if entry.kind is EntryKind.SERVICE]


async def _with_fault_lines(context: RequestContext, vm: Vm, explanation: Explanation) -> Explanation:
    await refresh_faults(context)
    now = [
        sentence
        for fault in context.control.faults.active.faults
        if fault.covers_request(scope_id=vm.scope_id, vm=vm.key)
        for sentence in _fault_sentences(context, fault, vm)
    ]
    entries = sorted(_fault_entries(context, vm), key=lambda entry: entry.seq)[-_MAX_FAULT_LINES:]
    if not now and not entries:
        return explanation
    lines = [
        *explanation.lines,
        *(ExplanationLine(at=timestamp(entry.at), text=entry.text) for entry in reversed(entries)),
    ]
    return replace(explanation, lines=tuple(sorted(lines, key=lambda line: -line.at)), now=(*explanation.now, *now))


def _fault_sentences(context: RequestContext, fault: Fault, vm: Vm) -> Iterator[str]:
    remaining_s = fault_remaining_s(context, fault)
    parts = [f"it began {duration_text(context.now() - fault.set_at)} ago"]
    parts += [f"it ends in {duration_text(remaining_s)}"] if remaining_s is not None else []
    parts += [f"{fault.remaining} of {fault.count} left"] if fault.count is not None else []
    yield f"Fault {fault.id} ({fault.kind}) is on for {fault.name}, set by {fault.set_by}: {', '.join(parts)}."
    if fault.category is FaultCategory.TRANSPORT:
        count = fault.applied_by_vm.get(vm.key, 0)
        last = (
            f", the last {duration_text(context.now() - fault.last_applied_at)} ago"
            if fault.last_applied_at and count
            else ""
        )
        yield f"It has affected {count} request{'' if count == 1 else 's'} of {vm.name}{last}."
    elif fault.applied:
        yield f"It has affected {fault.applied} event{'' if fault.applied == 1 else 's'}."


def _fault_entries(context: RequestContext, vm: Vm) -> Iterator[HistoryEntry]:
    own = context.store.history(scope_id=vm.scope_id, vm=vm.name)
    shared = context.store.history(scope_id=vm.scope_id, vm="")
    unrelated = context.store.history(scope_id="", event_id="", request_id="", vm="")
    for entry in (*own, *shared, *unrelated):
        if entry.kind is EntryKind.FAULT:
            yield entry


async def explain(context: RequestContext, call: HandlerCall) -> Explanation:
    """Explain what happened to a VM, event, host, scope, rollout or request, and why."""
    thing = call.path_params["thing"]
    await context.dependencies.flush_observations()
    # A name may match several kinds: the likeliest is tried first.
    if (vm := _find_or_none(context.directory.find_any, thing)) is not None:
        return await explain_vm(context, vm)
    if context.can_see_everything() and (host := _find_or_none(context.find_host, thing)) is not None:
        return explain_host(context, host)
    if (scope := _find_or_none(context.find_scope, thing)) is not None:
        return explain_scope(context, scope)
    if (request := _find_or_none(context.find_request, thing)) is not None:
        return explain_request(context, request)
    event = _find_or_none(context.find_event, thing)
    rollout = _find_or_none(context.find_rollout, thing) if event is None or not _is_full_id(thing, event) else None
    if event is not None and rollout is not None:
        raise Refused(
            f"{thing!r} is ambiguous, event {event.id} and rollout {rollout.id} start with it: give more of the id"
        )
    if event is not None:
        return explain_event(context, event)
    if rollout is not None:
        return explain_request(context, rollout)
    suggestion = context.similar_name(thing)
    text = f"{thing!r} is not a VM, host, scope, event, rollout or request{suggestion}"
    raise NotFound(text, Remedy.LIST_EXPLAINABLE)


def _is_full_id(thing: str, event: Event) -> bool:
    return thing.strip().upper() == event.id


def _find_or_none(find: Callable[[str], T], name: str) -> T | None:
    try:
        return find(name)
    except NotFound:
        return None
