"""Explains one event or one VM: a timeline of what happened and why, and what it waits for now.

Uses only recorded facts: the event, the history, and which VM was given what and when. Sentences contain durations
rather than times of day; each line carries its time, which the reader's surface formats in its own time zone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from forewarn.base.duration import duration_text
from forewarn.base.times import LabTime, Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.cause import Verb, VmEffect, verb_noun
from forewarn.core.decision import Policy
from forewarn.core.event import Act, Ending, Event, EventState
from forewarn.core.explain.polling import SILENCE_LIMIT_S
from forewarn.core.fleet import PowerState, Vm, VmCondition, vm_key_in_scope
from forewarn.core.history import SERVICE_STARTED, SERVICE_STOPPED, EntryKind, EventDelivery, HistoryEntry
from forewarn.core.release import StartWait
from forewarn.core.scope import Scope, hours_text, scope_title_from_id

# Short texts about events, names and durations that explanations, previews and the portal share.


def started_without_notice(event: Event) -> bool:
    """Return True if the event started when it was published; False if it has not started."""
    # False for an event that somebody approved, even if both times are equal because lab time is paused.
    return event.started_at == event.published_at and (event.approved_at is None or event.approved_by == "policy")


def promised_notice(event: Event) -> str:
    """Return the time from publication to NotBefore in words, such as `15 min`."""
    return duration_text(math.floor(event.not_before - event.published_at))


def ending_text(event: Event) -> str:
    """Return how an event that is over ended, with its reason: `withdrawn, replaced by user redeploy`."""
    if event.ending is Ending.FINISHED:
        return "finished"
    return f"{event.ending}, {event.reason}" if event.reason else str(event.ending)


def notice_phrases(event: Event) -> Iterator[str]:
    """Yield exactly one phrase about the notice of an event, such as `15 min of notice promised`."""
    if not event.listed or started_without_notice(event):
        yield f"no notice{': ' + event.note if event.note else ''}"
        return
    promised = promised_notice(event)
    if event.started_at is None:
        yield f"{promised} of notice promised"
    else:
        yield f"{promised} of notice promised, {duration_text(event.started_at - event.published_at)} given"


def event_kind_text(event: Event) -> str:
    """Return the event's kind as VMs see it (`Reboot`); if they never see it, what is done (`Delete`)."""
    return str(event.rules.kind if event.listed and event.rules.kind else verb_noun(event.rules.verb).capitalize())


def join_names(names: Sequence[str]) -> str:
    """Return names as `a, b and c`; of more than four, the first three and `and N more`; "" for none."""
    if len(names) > 4:
        return first_names(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


class VmState(StrEnum):
    """The state of a VM in one word: what maintenance does to it, else its power state; see `vm_state`."""

    RUNNING = "running"  # it runs, and no event affects it now
    EVENT_SCHEDULED = "noticed"  # it runs, and an event that lists it is scheduled
    STARTED = "started"  # an act on it is in progress, other than the following
    FROZEN = "frozen"  # by a freeze in progress
    REBOOTING = "rebooting"  # a reboot or reimage is in progress
    MOVING = "moving"  # to another host: a live migration or redeployment is in progress
    STOPPED = "stopped"  # its power state
    DEALLOCATED = "deallocated"  # its power state
    GONE = "gone"  # it was removed from the fleet


_STATE_BY_POWER = {PowerState.STOPPED: VmState.STOPPED, PowerState.DEALLOCATED: VmState.DEALLOCATED}

# The states of a VM during maintenance.
MAINTENANCE_STATES = frozenset({VmState.STARTED, VmState.FROZEN, VmState.REBOOTING, VmState.MOVING})


def vm_state(vm: Vm, events: Iterable[Event]) -> VmState:
    """Return the state of a VM from its power state and the live events of its scope."""
    if vm.removed_at is not None:
        return VmState.GONE
    return combine_vm_states((vm_states_during(event).get(vm.key) for event in events), vm.power)


def vm_states_during(event: Event) -> Mapping[str, VmState]:
    """Return the state that an event puts each of its VMs into, by VM key."""
    match event.status:
        case EventState.SCHEDULED:
            return {vm_key_in_scope(event.scope_id, name): VmState.EVENT_SCHEDULED for name in event.vms}
        case EventState.STARTED:
            return {act.vm: _state_during(act.verb) for act in event.unfinished_acts}
        case _:
            return {}


def _state_during(verb: Verb) -> VmState:
    if verb.rules.moves:
        return VmState.MOVING
    return {VmEffect.PAUSE: VmState.FROZEN, VmEffect.REBOOT: VmState.REBOOTING}.get(verb.rules.effect, VmState.STARTED)


def combine_vm_states(states: Iterable[VmState | None], power: PowerState) -> VmState:
    """Return the state of a VM from its states during several events (None: not affected) and its power."""
    is_scheduled = False
    for state in states:
        if state in MAINTENANCE_STATES:
            return state
        is_scheduled = is_scheduled or state is VmState.EVENT_SCHEDULED
    return _STATE_BY_POWER.get(power) or (VmState.EVENT_SCHEDULED if is_scheduled else VmState.RUNNING)


_CLOCK_DIFFERENCE_S = 60.0  # from here on, a text says whether it means real time or lab time
_MAX_LISTED_VMS = 8  # deliveries to more VMs are counted instead of listed
_COPIED_ENTRY_KINDS = frozenset({EntryKind.SKIPPED, EntryKind.RETRIED})  # the event's own fields tell the others


class ExplanationLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a timeline: when, what happened, and a detail. The texts do not repeat the time `at`."""

    at: Timestamp
    text: str  # what happened, as a clause without a full stop
    detail: str = ""  # more about it; "": nothing


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """An explanation for people of one event, VM, host, scope, rollout or request."""

    title: str  # what it is about
    lines: tuple[ExplanationLine, ...]  # what happened, oldest first; for a VM one per event or change, newest first
    now: tuple[str, ...]  # sentences about the present: its state, and what it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPoll:
    """The last poll of one VM: how long ago it was, in real time and in lab time, and its api-version."""

    vm: str  # its name
    silent_s: float  # seconds of real time since the poll (spec §12); of lab time in a lab with virtual time
    version: str  # the api-version
    lab_s: float | None = None  # seconds of lab time since the poll; None: lab time is real time

    @property
    def _has_two_times(self) -> bool:
        """Whether real time and lab time since the poll differ so much that texts must name both."""
        return self.lab_s is not None and abs(self.lab_s - self.silent_s) >= _CLOCK_DIFFERENCE_S

    @property
    def _age_text(self) -> str:
        """How long ago it was: `3 s`, or `3 s of real time or 1 d of lab time` if the two differ."""
        real = duration_text(self.silent_s)
        if self.lab_s is None or not self._has_two_times:
            return real
        return f"{real} of real time or {duration_text(self.lab_s)} of lab time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFacts:
    """What is on record about one scope, for explanations of its events and VMs: a snapshot that the caller reads."""

    now: LabTime
    scope: Scope
    title: str  # the scope in words, such as `availability set web`
    polls: Sequence[VmPoll] = ()  # the last one of each VM that has polled
    deliveries: Sequence[EventDelivery] = ()  # of the events that are explained, to any VM, in any order
    entries: Sequence[HistoryEntry] = ()  # of events, unannounced changes, and starts of the service; oldest first
    waits: Mapping[str, StartWait] = field(default_factory=dict)  # scheduled event's id → why it has not started
    names: Mapping[str, str] = field(default_factory=dict)  # VM key → its name
    rollouts: Mapping[str, str] = field(default_factory=dict)  # request id → the rollout in words
    unanswered_s: Mapping[str, float] = field(default_factory=dict)  # act id → real seconds without an answer
    blocking_hosts: Mapping[str, str] = field(default_factory=dict)  # act id → the host whose other calls it waits for
    act_notes: Mapping[str, str] = field(default_factory=dict)  # act id → how it is going, as the hypervisor says
    awaited_hosts: Mapping[str, str] = field(default_factory=dict)  # act id → the unreachable host that it waits for
    unreachable_since: Mapping[str, float] = field(default_factory=dict)  # host → since when it does not answer
    hypervisor: str = ""  # what acts are performed on, such as `simulated processes`; "": not named
    idle_s: float = Policy().idle_s  # without polls for this much lab time, the scope is disabled


def vm_name(key: str, names: Mapping[str, str]) -> str:
    """Return the name of a VM from its key; a VM that left the scope, not in `names`, is named as its key ends."""
    return names.get(key) or key.rpartition("/")[2]


def event_explanation(event: Event, facts: ScopeFacts) -> Explanation:
    """Explain one event of the scope of `facts`: its timeline, its state now, and whether VMs poll."""
    lines = [
        *_request_lines(event, facts),
        *_delivery_lines(event, facts),
        *_history_lines(event, facts),
        *_lifecycle_lines(event),
        *_service_restart_lines(event, facts),
    ]
    return Explanation(
        title=f"{event_kind_text(event)} of {join_names(event.vms)}: {event.cause}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(*describe_event_status(event, facts), *describe_polling(facts)),
    )


def vm_explanation(vm: Vm, events: Iterable[Event], facts: ScopeFacts) -> Explanation:
    """Explain a VM of the scope, even a removed one: what happened to it, newest first, and its state now."""
    newest = sorted(events, key=lambda event: (event.published_at, event.seq), reverse=True)
    lines = [_event_summary_line(event, vm, facts) for event in newest]
    unannounced = [entry for entry in facts.entries if entry.kind is EntryKind.UNANNOUNCED and entry.vm == vm.name]
    lines += [ExplanationLine(at=timestamp(entry.at), text=entry.text) for entry in reversed(unannounced)]
    live = [event for event in newest if event.is_live]
    return Explanation(
        title=f"{vm.name}, {_scope_phrase(vm, facts.title)}",
        lines=tuple(sorted(lines, key=lambda line: -line.at)),
        now=(
            _vm_sentence(vm, live, facts.now),
            *_condition_sentences(vm, facts),
            *(("It sees only events that affect it (narrow delivery).",) if vm.narrow_delivery else ()),
            *(() if newest else ("No maintenance of it is recorded.",)),
            *(
                f"{event_kind_text(event)} ({event.id}): {text}"
                for event in live
                for text in describe_event_status(event, facts)
            ),
            *(describe_polling(facts) if vm.removed_at is None else ()),
            *_hypervisor_sentences(live, facts),
        ),
    )


def _request_lines(event: Event, facts: ScopeFacts) -> Iterator[ExplanationLine]:
    rollout = facts.rollouts.get(event.request_id)
    part = f", as part of {rollout}" if rollout else ""
    replaces = f", in place of event {join_names(event.replaces)}" if event.replaces else ""
    requested = f"{event.requested_by} requested it: {event.cause}{part}{replaces}"
    if not event.listed:
        text = f"{requested}; performed at once, without an event"
    elif started_without_notice(event):
        text = f"{requested}; it started without notice"
    else:
        text = f"{requested}; scheduled with {promised_notice(event)} of notice"
    yield ExplanationLine(at=timestamp(event.published_at), text=text, detail=event.note)


def _delivery_lines(event: Event, facts: ScopeFacts) -> Iterator[ExplanationLine]:
    for status in (EventState.SCHEDULED, EventState.STARTED):
        matching = sorted((d for d in facts.deliveries if _is_delivery_of(d, event, status)), key=lambda d: d.at)
        for delivery in matching[:_MAX_LISTED_VMS]:
            name = vm_name(delivery.vm, facts.names)
            detail = f"api-version {delivery.version}, incarnation {delivery.incarnation}"
            yield ExplanationLine(
                at=timestamp(delivery.at), text=f"delivered to {name} as {status.title()}", detail=detail
            )
        if rest := matching[_MAX_LISTED_VMS:]:
            yield ExplanationLine(
                at=timestamp(rest[-1].at), text=f"by now delivered to {len(rest)} more VMs as {status.title()}"
            )


def _is_delivery_of(delivery: EventDelivery, event: Event, status: EventState) -> bool:
    return delivery.event_id == event.id and delivery.status == status


def _lifecycle_lines(event: Event) -> Iterator[ExplanationLine]:
    if event.approved_at is not None and event.approved_by != "policy":
        early = duration_text(event.not_before - event.approved_at)
        yield ExplanationLine(
            at=timestamp(event.approved_at), text=f"{event.approved_by} approved it, {early} before its notice ended"
        )
    if event.started_at is not None and not started_without_notice(event):
        yield ExplanationLine(at=timestamp(event.started_at), text=f"it started: {_start_reason(event)}")
    for act in event.acts:
        if act.outcome is not None:
            yield _outcome_line(event, act)
    if event.over_at is not None:
        yield ExplanationLine(at=timestamp(event.over_at), text=f"it ended: {ending_text(event)}")


def _start_reason(event: Event) -> str:
    assert event.started_at is not None
    promised = promised_notice(event)
    if event.approved_at is not None:
        got = duration_text(event.started_at - event.published_at)
        return f"approved by {event.approved_by}, {got} into the {promised} of notice"
    late = event.started_at - event.not_before
    return f"its notice of {promised} ended" + (f" {duration_text(late)} before" if late >= 1 else "")


def _outcome_line(event: Event, act: Act) -> ExplanationLine:
    assert act.outcome is not None
    started_at = event.started_at if event.started_at is not None else event.published_at
    took = duration_text(act.outcome.at - started_at)
    moved = f" from {act.from_host} to {act.to_host}" if act.to_host and act.from_host else ""
    result = "was performed" if act.outcome.ok else "failed"
    text = f"{verb_noun(act.verb)} of {act.name}{moved} {result}, {took} after the start"
    return ExplanationLine(at=timestamp(act.outcome.at), text=text, detail=act.outcome.note)


def _history_lines(event: Event, facts: ScopeFacts) -> Iterator[ExplanationLine]:
    """Lines from the history that no field of the event tells: skipped VMs, retries, its gate."""
    for entry in facts.entries:
        about_host = entry.kind is EntryKind.RELEASED and (entry.request_id, entry.host) == (
            event.request_id,
            event.host,
        )
        if about_host or (entry.kind in _COPIED_ENTRY_KINDS and entry.event_id == event.id):
            yield ExplanationLine(at=timestamp(entry.at), text=entry.text)


def _service_restart_lines(event: Event, facts: ScopeFacts) -> Iterator[ExplanationLine]:
    """Restarts of the service meanwhile. A crash loses the deliveries of the last second or two."""
    end = event.over_at if event.over_at is not None else facts.now
    starts_and_stops = [
        entry
        for entry in facts.entries
        if entry.kind is EntryKind.SERVICE and entry.text.startswith((SERVICE_STARTED, SERVICE_STOPPED))
    ]
    for before, entry in zip([None, *starts_and_stops], starts_and_stops, strict=False):
        if entry.text.startswith(SERVICE_STOPPED) or not event.published_at < entry.at <= end:
            continue
        if before is not None and before.text.startswith(SERVICE_STOPPED):
            yield ExplanationLine(
                at=timestamp(entry.at),
                text=f"the service started again, {duration_text(entry.at - before.at)} after it stopped",
            )
        else:
            yield ExplanationLine(
                at=timestamp(entry.at), text="the service started again after a crash", detail=_LOST_DELIVERIES_TEXT
            )


_MAX_NOTED_ACTS = 8  # more acts with a note are counted
_LOST_DELIVERIES_TEXT = "deliveries in the two seconds before the crash may be missing here"


def describe_event_status(event: Event, facts: ScopeFacts) -> Iterator[str]:
    """Yield sentences about an event now: what it waits for, what is in progress, or how it ended."""
    if event.status is EventState.OVER:
        ago = duration_text(facts.now - (event.over_at or facts.now))
        yield f"It ended {ago} ago: {ending_text(event)}."
        if event.acts and facts.hypervisor:
            yield f"Acts are performed on {facts.hypervisor}."
    elif event.status is EventState.STARTED:
        yield from _running_acts_sentences(event, facts)
        yield from _progress_sentences(event, facts)
        yield from _unanswered_sentences(event, facts)
        yield from _last_retry_sentences(event, facts)
    else:
        yield _wait_sentence(event, facts)
        if unaware := _vms_without_delivery(event, facts):
            yield f"It was not delivered to {join_names(unaware)} yet."
    if event.is_live and event.listed and facts.scope.is_narrow:
        yield f"Only {join_names(event.vms)} can see it, because {facts.title} has narrow delivery."


def _hypervisor_sentences(live: Sequence[Event], facts: ScopeFacts) -> Iterator[str]:
    if facts.hypervisor and not any(event.status is EventState.STARTED and event.unfinished_acts for event in live):
        yield f"Acts are performed on {facts.hypervisor}."


def _running_acts_sentences(event: Event, facts: ScopeFacts) -> Iterator[str]:
    since = duration_text(facts.now - (event.started_at or facts.now))
    if event.unfinished_acts:
        names = join_names([act.name for act in event.unfinished_acts])
        yield f"It started {since} ago; the {verb_noun(event.rules.verb)} of {names} is in progress."
        if facts.hypervisor:
            yield f"Acts are performed on {facts.hypervisor}."
    else:
        failed = join_names([act.name for act in event.failed_acts])
        result = f"the {verb_noun(event.rules.verb)} of {failed} failed" if failed else "every act was performed"
        yield f"It started {since} ago, and {result}; it stays listed for the settling time."


def _progress_sentences(event: Event, facts: ScopeFacts) -> Iterator[str]:
    noted = [act for act in event.unfinished_acts if facts.act_notes.get(act.id)]
    for act in noted[:_MAX_NOTED_ACTS]:
        yield f"The hypervisor reports for {act.name}: {facts.act_notes[act.id]}."
    if rest := noted[_MAX_NOTED_ACTS:]:
        yield f"It reports on {len(rest)} more {'VM' if len(rest) == 1 else 'VMs'}."
    waiting: dict[str, list[str]] = {}
    for act in event.unfinished_acts:
        if act.id in facts.awaited_hosts:
            waiting.setdefault(facts.awaited_hosts[act.id], []).append(act.name)
    for host, names in waiting.items():
        yield f"The {verb_noun(event.rules.verb)} of {join_names(names)} waits for host {host}, which does not answer."


def _unanswered_sentences(event: Event, facts: ScopeFacts) -> Iterator[str]:
    noun = verb_noun(event.rules.verb)
    silent_s = {act.name: facts.unanswered_s[act.id] for act in event.unfinished_acts if act.id in facts.unanswered_s}
    if silent_s:
        longest = duration_text(max(silent_s.values()))
        yield f"The hypervisor has not answered the {noun} of {join_names(list(silent_s))} for {longest} of real time."
    waiting: dict[str, list[str]] = {}
    for act in event.unfinished_acts:
        if act.id in facts.blocking_hosts:
            waiting.setdefault(facts.blocking_hosts[act.id], []).append(act.name)
    for host, names in waiting.items():
        calls = f"calls to host {host}" if host else "calls"
        yield f"The {noun} of {join_names(names)} waits until earlier {calls} are answered."


def _last_retry_sentences(event: Event, facts: ScopeFacts) -> Iterator[str]:
    names = {act.name for act in event.unfinished_acts}
    retries = [e for e in facts.entries if e.kind is EntryKind.RETRIED and e.event_id == event.id and e.vm in names]
    if retries:
        yield f"{duration_text(facts.now - retries[-1].at)} ago: {retries[-1].text}."


def _wait_sentence(event: Event, facts: ScopeFacts) -> str:
    approved = f", was approved by {event.approved_by}," if event.approved_at is not None else ""
    wait = facts.waits.get(event.id)
    if wait is None:
        return f"It is scheduled{approved} and starts now."
    ends = f", at most {duration_text(wait.until - facts.now)}" if wait.until is not None else ""
    return f"It is scheduled{approved} and waits for {wait.text}{ends}."


def _vms_without_delivery(event: Event, facts: ScopeFacts) -> list[str]:
    aware = {vm_name(s.vm, facts.names) for s in facts.deliveries if s.event_id == event.id}
    return [name for name in event.vms if name not in aware]


def describe_polling(facts: ScopeFacts) -> Iterator[str]:
    """Yield two sentences: whether scheduled events are enabled for the scope, and which of its VMs poll."""
    latest = min(facts.polls, key=lambda poll: poll.silent_s, default=None)
    if facts.scope.is_enabled:
        yield f"Scheduled events are enabled for {facts.title}."
    else:
        of_lab_time = " of lab time" if latest is not None and latest._has_two_times else ""
        yield (
            f"Scheduled events are disabled for {facts.title}: none of its VMs has polled within "
            f"{hours_text(facts.idle_s)}{of_lab_time}. User operations are performed at once."
        )
    if latest is None:
        yield "No client there has polled yet."
    elif latest.silent_s > SILENCE_LIMIT_S:
        last = f"the last was {latest.vm} (api-version {latest.version})"
        yield f"No client there has polled for {latest._age_text}; {last}."
    else:
        yield f"{_active_pollers_text(facts)} (the last poll was {latest._age_text} ago, api-version {latest.version})."


def _active_pollers_text(facts: ScopeFacts) -> str:
    names = sorted(poll.vm for poll in facts.polls if poll.silent_s <= SILENCE_LIMIT_S)
    verb = "polls" if len(names) == 1 else "poll"
    silent = len(facts.scope.present_vms) - len(names)
    others = {0: "", 1: ", one other VM does not"}.get(max(silent, 0), f", {silent} other VMs do not")
    return f"{join_names(names)} {verb}{others}"


def _event_summary_line(event: Event, vm: Vm, facts: ScopeFacts) -> ExplanationLine:
    state = ending_text(event) if event.ending is not None else f"{event.status}"
    sentences = [
        *notice_phrases(event),
        *_delivery_phrases(event, vm, facts),
        *_approval_phrases(event),
        *_outcome_phrases(event, vm),
    ]
    sentences += [f"{line.text}: {line.detail}" for line in _service_restart_lines(event, facts) if line.detail]
    text = f"{event_kind_text(event)}, requested by {event.requested_by} ({event.cause}): {state}"
    if rollout := facts.rollouts.get(event.request_id):
        sentences.append(f"part of {rollout}")
    if event.scope_id != vm.scope_id:
        is_own = event.scope_id.startswith("vm:")
        sentences.append(f"then in {'a scope of its own' if is_own else scope_title_from_id(event.scope_id)}")
    return ExplanationLine(
        at=timestamp(event.published_at), text=text, detail="; ".join((*sentences, f"event {event.id}"))
    )


def _delivery_phrases(event: Event, vm: Vm, facts: ScopeFacts) -> Iterator[str]:
    deliveries = sorted((d for d in facts.deliveries if d.event_id == event.id), key=lambda d: d.at)
    own = next((d for d in deliveries if d.vm == vm.key), None)
    first = own or next(iter(deliveries), None)
    if first is None:
        if event.listed and event.status is not EventState.SCHEDULED:
            yield "delivered to no VM"
        return
    name = vm.name if own else vm_name(first.vm, facts.names)
    only = "" if own else f"never delivered to {vm.name}, but "
    after = duration_text(first.at - event.published_at)
    yield f"{only}delivered to {name} after {after} (api-version {first.version})"


def _approval_phrases(event: Event) -> Iterator[str]:
    if event.approved_at is not None:
        yield f"approved by {event.approved_by}"
    elif event.listed and event.started_at is not None and event.started_at != event.published_at:
        yield "not approved"


def _outcome_phrases(event: Event, vm: Vm) -> Iterator[str]:
    act = next((act for act in event.acts if act.vm == vm.key), None)
    if act is None:
        return
    yield _outcome_line(event, act).text if act.outcome is not None else f"{verb_noun(act.verb)} is in progress"


_STATE_PHRASES = {VmState.FROZEN: "frozen on", VmState.REBOOTING: "rebooting on", VmState.MOVING: "moving away from"}


def _vm_sentence(vm: Vm, live: Sequence[Event], now: float) -> str:
    if vm.removed_at is not None:
        return f"{vm.name} was removed {duration_text(now - vm.removed_at)} ago."
    if vm.power is PowerState.DEALLOCATED:
        return f"{vm.name} is deallocated and on no host."
    return f"{vm.name} is {_STATE_PHRASES.get(vm_state(vm, live), f'{vm.power} on')} {vm.host or 'no host'}."


_CONDITION_TEXTS = {
    VmCondition.PAUSED: "It is paused, and not by an act.",
    VmCondition.CRASHED: "It stopped without being asked to: start it. Planned reboots and redeployments boot it, too.",
    VmCondition.MISSING: "No host has it: define it again, or remove it from the fleet.",
    VmCondition.DUPLICATE: "Several hosts have it in memory: end all but one now, two copies destroy its disks.",
}


def _condition_sentences(vm: Vm, facts: ScopeFacts) -> Iterator[str]:
    if vm.removed_at is not None:
        return
    if vm.condition is VmCondition.CRASHED and vm.power is PowerState.RUNNING:
        yield "Its guest has crashed and does not run: restart it."
    elif vm.condition in _CONDITION_TEXTS:
        yield _CONDITION_TEXTS[vm.condition]
    if (since := facts.unreachable_since.get(vm.host)) is not None:
        silent = duration_text(facts.now - since)
        yield f"Its host {vm.host} has not answered for {silent}: whether {vm.name} runs is not known."


def _scope_phrase(vm: Vm, title: str) -> str:
    return f"of {title}" if vm.availability_set or vm.scale_set or vm.cloud_service else "a scope of its own"
