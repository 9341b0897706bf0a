"""Decides when a scheduled event may start, and says what it waits for until then (spec §6.2)."""

# When does a scheduled event start?
#
# The invariant. An event starts only when its VMs had the notice that they were promised, or one of them has approved;
# when no other act is moving its VM; when no other update domain of the scope is in planned maintenance; and together
# with the other events of its host (spec §6.2, §6.4). In doubt it waits. Waiting too long costs an operator time, and
# the wait has a text that says for what; starting too early cannot be taken back.
#
# Everything is derived, nothing is counted down. `start_wait` reads the scope and the context and returns the first
# thing that is in the way. It stores nothing and has no memory, so a crash cannot lose a step of it. Its answer also
# says until when: the scope's next wake-up is the earliest `until` of its events (`core.reconcile.next_wake_at`),
# stored in the same commit as the decision. A wait without an `until` ends by a commit that somebody else makes, and
# each of these commits leads back here: an approval, an outcome or a withdrawal changes the scope itself; a hold that
# is lifted and checks that become clear decide the scopes of the events that they held (`reconcile_scopes_of`); a gate
# is decided again whenever a commit changes a scope with an event behind it (`core.commit.scope_commit` wakes it).
#
# The order of the checks. May it start? does not depend on it, because all of them must pass. What people read does,
# and also when the scope is looked at next: the first wait is shown. Move comes first, since even an approved event
# waits for it: an act is performed where the VM is, and when the move has ended the event may not be needed any more.
# Then what only time or a person ends (notice, window, hold, checks, the two graces), then what other events end
# (Terminates of the placement group, another update domain), and the gate last, because behind it wait events that lack
# nothing else.
#
# What an approval overrides. A VM that approves says that it is ready now. So an approved event does not wait for
# notice, window, hold, checks or either grace. It still waits for a move, for another update domain and for its gate:
# these protect other VMs, for which it cannot speak.
#
# Gates. Work on a whole host starts in several scopes, and no transaction spans scopes. A gate does it in three steps:
#
# - all events behind it wait for nothing but the gate (`waits_only_for_gate`), and none is still to be published;
# - the release is stored, and the gate stays due;
# - each scope starts its events in a transaction of its own, where `start_wait` is asked once more.
#
# Then the gate is not due any more. Ready means *free to start*, not only approved: a gate that was released as soon as
# all of its events were approved could find another update domain down in one of the scopes, and half of the host would
# start. Reserving the update domain for a gate instead would let two gates that share two scopes wait for each other
# for ever. As it is, nothing is reserved; the price is that a gate is looked at often.
#
# A release is a statement about one moment. Windows close and holds are set, while the events behind the gate start one
# after the other. Therefore two rules, which pull in opposite directions:
#
# - Once one event behind it has started, the release is final. The others no longer wait for window, hold, checks and
#   graces (`_is_gate_released` in each of them): a host that is half in maintenance is worse than one that is late.
#   They still wait for their notice, for a move and for another update domain.
# - As long as none has started, the release is void (`control.scope_transactions.is_gate_released`), and the gate is
#   decided again.
#
# A released gate counts as a start for the other update domains of its scopes (`_has_precedence`). Without that, an
# event that is approved between the release and the starts could take the scope, and the gate's own event would be left
# behind.
#
# What a crash leaves:
#
# - Before the release: facts (approved at, NotBefore). The next process reads the same scope and decides the same.
# - After the release, before the first start: a void release. The gate is still due, is decided by what is true now,
#   and the history says that its events must wait again.
# - After the first start: a gate that is due, and events that wait for it. They start in the next pass.
# - After the last start, before the gate is stored as no longer due: a gate that is due with nothing behind it.
#
# After any of these `resumed_at` is set, and an event whose notice ended while nobody could poll waits for the grace
# period. A control node that takes over within seconds sets none, because VMs could poll. If the node of a single host
# was silent, the silence grace does the same for the VMs there, for at most MAX_SILENCE_S: a host that never returns
# must not stop the work.
#
# What was tried and taken back:
#
# - A stored release counted at once and for good. When the service ended between release and starts, the events started
#   at any later time: outside of their window, during a hold, without the grace period. Hence the void release.
# - Approvals that do not wake their gate while another VM of the host must still approve. It saved two writes of a row
#   that does not change, and made approvals in a cluster about a fifth faster. It needed a memory of what each gate
#   waits for, and that memory was wrong after a write that the store gave up waiting for and saved later: it was taken
#   for one that did not happen, and the gate slept until NotBefore. Waiting for the decisions under way instead let a
#   steady stream of approvals delay a pass. To get that speed safely, the two things that a wake does must be kept. It
#   has the gate looked at again: an approval may leave that out if another event behind the gate is not approved, and
#   its NotBefore is not before the gate's next look. And it raises the gate's version, on which a decision conflicts
#   that has read the events before: without that, a gate's commit would have to name the approved events behind it.
#   Both are safe only as conditions in the transaction of the commit, which sees every write before it, confirmed or
#   not; `on_commit` comes too late. Not built: two more conditions of commits in each store, for one kind of write.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forewarn.base.times import LabTime
from forewarn.base.wording import first_names
from forewarn.core.acts import act_to_wait_for
from forewarn.core.cause import RECOMMENDATION_S, verb_noun
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.request import ROLLOUT_CAUSES
from forewarn.core.scope import Scope
from forewarn.core.windows import local_time_text, next_start, window_source
from forewarn.protocol.document import Kind

MAX_SILENCE_S = 600.0  # how long after its NotBefore an event waits for VMs whose node is silent
_MAX_NAMED_VMS = 4  # more VMs are counted instead of named


class WaitReason(StrEnum):
    """Why a scheduled event does not start yet."""

    NOTICE = "notice"  # neither approved nor at its NotBefore; or it has no impact, and never starts
    MOVE = "move"  # another event is bringing one of its VMs to a host, or taking it off its host
    WINDOW = "window"  # no maintenance window is open, and it is not approved
    HOLD = "hold"  # all rollouts are on hold, and it is not approved
    CHECKS = "checks"  # the health checks of its rollout are unclear and hold its events, and it is not approved
    GRACE = "grace"  # the service was down when its notice ended
    SILENCE = "silence"  # the node of a VM's host was silent when its notice ended
    GATE = "gate"  # other VMs on its host are not ready
    UPDATE_DOMAIN = "update domain"  # maintenance of another update domain is in progress, or its gate is released
    TERMINATES = "terminates"  # other Terminates of its placement group are not approved


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWait:
    """What a scheduled event waits for, in words for people, and until when, if that is known."""

    reason: WaitReason
    text: str  # completes the sentence "it waits for …"
    until: LabTime | None = None  # of its latest end, or for SILENCE of the next look; None: not by time alone


def start_wait(scope: Scope, event: Event, context: DecisionContext) -> StartWait | None:
    """Return the first thing that a scheduled event waits for; None: it may start now. Changes nothing.

    Does not check that the event is scheduled. An event without impact always waits, until it ends.
    """
    return (
        _recommendation_wait(event)
        or _move_wait(scope, event)
        or _notice_wait(event, context)
        or _window_wait(event, context)
        or _hold_wait(event, context)
        or _grace_wait(event, context)
        or _silence_wait(scope, event, context)
        or _terminate_wait(scope, event, context)
        or _update_domain_wait(scope, event, context)
        or _gate_wait(event, context)
    )


def waits_only_for_gate(scope: Scope, event: Event, context: DecisionContext) -> bool:
    """Return whether a scheduled event waits for nothing, or only for its gate."""
    # Terminates and events without impact have no gate, so what only they wait for is not checked.
    return (
        _notice_wait(event, context) is None
        and _window_wait(event, context) is None
        and _hold_wait(event, context) is None
        and _grace_wait(event, context) is None
        and _silence_wait(scope, event, context) is None
        and _move_wait(scope, event) is None
        and _update_domain_wait(scope, event, context) is None
    )


def describe_gate_wait(event: Event, unready: Sequence[Event]) -> StartWait:
    """Return the wait of `event` for its gate. For operators only: it names VMs of other scopes."""
    names = list(dict.fromkeys(name for other in unready for name in other.vms))
    if not names:
        return _closed_gate_wait(event)
    are = "is" if len(names) == 1 else "are"
    text = f"{first_names(names, _MAX_NAMED_VMS)} on host {event.host}, which {are} not ready yet"
    return StartWait(reason=WaitReason.GATE, text=text)


def _recommendation_wait(event: Event) -> StartWait | None:
    """A recommendation has no impact, so nothing starts it (spec §14.4)."""
    if event.rules.has_impact:
        return None
    text = "its end ten minutes after its publication, or an eviction"
    return StartWait(reason=WaitReason.NOTICE, text=text, until=event.published_at + RECOMMENDATION_S)


def _notice_wait(event: Event, context: DecisionContext) -> StartWait | None:
    # Also behind a released gate: each VM is owed its notice, or approves.
    if event.is_ready(context.now):
        return None
    return StartWait(reason=WaitReason.NOTICE, text="an approval, or the end of its notice", until=event.not_before)


def _window_wait(event: Event, context: DecisionContext) -> StartWait | None:
    """If something else held it back until its window closed, it waits for the next one (spec §13.3)."""
    if event.calendar is None or event.approved_at is not None or _is_gate_released(event, context):
        return None
    opens = next_start(event.calendar, context.now)
    if opens is None:
        source = window_source(event.calendar)
        return StartWait(reason=WaitReason.WINDOW, text=f"an approval: it has no maintenance window{source} left")
    # Asked anew each time: a window that has closed while something else held the event counts no more.
    if opens <= context.now:
        return None
    when = local_time_text(event.calendar, opens)
    text = f"an approval, or its next maintenance window{window_source(event.calendar)}, {when}"
    return StartWait(reason=WaitReason.WINDOW, text=text, until=opens)


def _hold_wait(event: Event, context: DecisionContext) -> StartWait | None:
    """A hold or unclear checks keep a rollout's events from starting without an approval (spec §13.5)."""
    # Operations of users go on: a hold stops what rollouts have planned.
    is_held = bool(context.hold) and event.cause in ROLLOUT_CAUSES
    if not (is_held or event.request_id in context.held_rollouts) or event.approved_at is not None:
        return None
    if _is_gate_released(event, context):
        return None  # other events of the gate may have started already
    if not is_held:  # readers of the scope do not see what the checks found
        return StartWait(reason=WaitReason.CHECKS, text="an approval, or clear health checks of its rollout")
    return StartWait(
        reason=WaitReason.HOLD, text=f"an approval, or the end of the hold on all rollouts ({context.hold})"
    )


def _grace_wait(event: Event, context: DecisionContext) -> StartWait | None:
    """If its notice ended while the service was down, VMs get some time to poll before it starts."""
    resumed_at = context.resumed_at
    if resumed_at is None or event.approved_at is not None or event.not_before > resumed_at:
        return None
    if _is_gate_released(event, context):
        return None  # other events of the gate may have started already
    until = resumed_at + context.policy.grace_s
    if context.now >= until:
        return None
    return StartWait(reason=WaitReason.GRACE, text="VMs that could not poll while the service was down", until=until)


def _silence_wait(scope: Scope, event: Event, context: DecisionContext) -> StartWait | None:
    """If the node of a VM's host was silent at the end of the notice, the VM gets some time to poll."""
    # The event starts when the node was back for the grace period, but at the latest MAX_SILENCE_S after NotBefore.
    if not context.host_silences or event.approved_at is not None or _is_gate_released(event, context):
        return None
    latest = event.not_before + MAX_SILENCE_S
    for vm in map(scope.vm, event.vms):
        silence = context.host_silences.get(vm.host) if vm is not None else None
        # Silent only after the notice had ended: the VM could poll all of it.
        if vm is None or silence is None or silence.since >= event.not_before or vm.host in context.failed_hosts:
            continue
        # It was back in time to show the end of the notice.
        if silence.until is not None and silence.until < event.not_before:
            continue
        # Nobody knows when a node returns: look again in a second, up to the latest time.
        back_at = context.now + 1 if silence.until is None else silence.until  # at the earliest
        until = min(latest, back_at + context.policy.grace_s)
        if context.now < until:
            text = f"{vm.name}, which cannot poll: the node of its host {vm.host} is silent"
            if silence.until is not None:
                text = f"{vm.name}, which could not poll while the node of its host {vm.host} was silent"
            return StartWait(reason=WaitReason.SILENCE, text=text, until=until)
    return None


def _move_wait(scope: Scope, event: Event) -> StartWait | None:
    """An act is performed where the VM is, so it waits while another one moves or removes it (spec §6.4)."""
    act = act_to_wait_for(scope, event)
    if act is None:
        return None
    if not act.to_host:
        return StartWait(reason=WaitReason.MOVE, text=f"the {verb_noun(act.verb)} of {act.name}, which has started")
    why = f" because host {act.from_host} failed" if act.abrupt and act.from_host else ""
    return StartWait(reason=WaitReason.MOVE, text=f"{act.name}, which is being moved to {act.to_host}{why}")


def _update_domain_wait(scope: Scope, event: Event, context: DecisionContext) -> StartWait | None:
    """Planned platform maintenance takes one update domain of a scope at a time, over all rollouts."""
    if not event.rules.planned:
        return None
    for other in scope.live_events():
        # Operations of users do not count: an owner may restart two domains at once.
        if not other.rules.planned or other.update_domain == event.update_domain:
            continue
        if other.status is EventState.STARTED or _has_precedence(other, event, context):
            what = "has started" if other.status is EventState.STARTED else "is released and starts first"
            text = f"update domain {other.update_domain}, where event {other.id} {what}"
            return StartWait(reason=WaitReason.UPDATE_DOMAIN, text=text)
    return None


def _has_precedence(other: Event, event: Event, context: DecisionContext) -> bool:
    """A released gate counts as a start: no event may start between the release and the starts it allows."""
    return _is_gate_released(other, context) and not _is_gate_released(event, context)


def _terminate_wait(scope: Scope, event: Event, context: DecisionContext) -> StartWait | None:
    """Terminates of a placement group start together, but none later than its own NotBefore."""
    if not scope.is_placement_group or event.rules.kind is not Kind.TERMINATE or context.now >= event.not_before:
        return None
    for other in scope.live_events(EventState.SCHEDULED):
        # Only the waits that an approval of the other one would end.
        waits = _notice_wait(other, context) or _grace_wait(other, context) or _silence_wait(scope, other, context)
        if other.rules.kind is Kind.TERMINATE and waits:
            text = f"event {other.id}, a Terminate of the same placement group that is not approved yet"
            return StartWait(reason=WaitReason.TERMINATES, text=text, until=event.not_before)
    return None


def _is_gate_released(event: Event, context: DecisionContext) -> bool:
    return event.gate_id in context.released_gates


def _gate_wait(event: Event, context: DecisionContext) -> StartWait | None:
    if not event.gate_id or _is_gate_released(event, context):
        return None
    return _closed_gate_wait(event)


def _closed_gate_wait(event: Event) -> StartWait:
    return StartWait(reason=WaitReason.GATE, text=f"the other VMs on host {event.host}, which are not ready yet")
