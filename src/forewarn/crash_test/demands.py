"""Demands on noticing an event, preparing for it and recovering from it.

All are pure functions of what was observed.

`approval_demands` and `program_demands` have those on approvals, and on polls, exits and what the program uses. `event`
is the number of the event in the order in which the script published them, from 0. Each deadline has two limits: until
the first it is in time, until the second it is slow.
"""

from __future__ import annotations

from dataclasses import replace

from forewarn.crash_test import remedies
from forewarn.crash_test.approval_demands import approved
from forewarn.crash_test.case import Demand, Observed
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.fair_time import (
    START_UP_S,
    counted_s,
    deadline_after,
    obstructed_spans,
    why_machine_was_slow,
)
from forewarn.crash_test.judgement import (
    PROBE_LAG_S,
    Deadline,
    Judgement,
    ended_event,
    event_name,
    judge_deadline,
    not_published,
    probe_state,
    published_event,
    started_at,
    turns_to_no,
    turns_to_yes,
    why_notice_is_too_short,
)
from forewarn.crash_test.timeline import EventPublished, Impact, Probe
from forewarn.crash_test.verdict import CaseOutcome


def noticed(event: int = 0, *, within_s: float | None = None, at_most_s: float | None = None) -> Demand:
    """Demand that a poll gets the event within `within_s` of its publication; slow until `at_most_s`.

    Polls of the handler on the judged VM count, including those that got a substitute document with the event. `event`
    is its number in the order of publication, from 0; limits are seconds of the service's clock. By default the limits
    are the poll interval that the handler claims plus 2 s, and three intervals plus 5 s. A poll after NotBefore is a
    failure, unless the first limit is later. Time in which the handler could not poll does not count. The outcome is
    unknown if the machine was too slow, the event was never published, or no poll got it in time and, before the second
    limit, it disappeared or the case ended. Applies to all handlers.
    """
    limit = "its claimed poll interval" if within_s is None else f"{within_s:g} s"

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        every_s = observed.claims.polls_every_s
        soon_s = every_s + 2.0 if within_s is None else within_s
        late_s = max(soon_s, 3 * every_s + 5.0 if at_most_s is None else at_most_s)
        spans = obstructed_spans(observed)
        soon, late = deadline_after(spans, found.at, soon_s), deadline_after(spans, found.at, late_s)
        if found.not_before is not None:
            late = max(soon, min(late, found.not_before))
        deadline = Deadline(start=found.at, soon=soon, late=late, event=found.event)
        judged = _judge_notice(observed, found, event, deadline)
        ended = ended_event(observed, found)
        if judged[0] is CaseOutcome.FAIL and ended is not None and ended.at < deadline.late:
            return CaseOutcome.UNKNOWN, f"{judged[1]}; it was listed for only {ended.at - found.at:.1f} s", judged[2]
        return judged

    return Demand(text=f"it gets {event_name(event)} within {limit}", judge=judge, remedy=remedies.POLL_OFTEN)


def noticed_before_start(
    event: int = 0, *, margin_s: float = 10.0, least_s: float = 2.0, despite_disturbance: bool = False
) -> Demand:
    """Demand that a poll gets the event `margin_s` seconds before its NotBefore or earlier.

    Polls of the handler on the judged VM count. A poll until `least_s` before NotBefore is slow; later or never is a
    failure. `event` is its number in the order of publication, from 0. The outcome is unknown if the event had no
    notice or was never published, the machine was too slow, the case left too little time to poll, or ended before the
    second limit without such a poll. With `despite_disturbance`, substitute answers are no excuse: a handler must be
    able to use them. Applies to all handlers.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        if found.not_before is None:
            return CaseOutcome.UNKNOWN, f"{event_name(event)} had no notice", ()
        deadline = Deadline(
            start=found.at,
            soon=found.not_before - margin_s,
            late=found.not_before - least_s,
            event=found.event,
        )
        judged = _judge_notice(observed, found, event, deadline)
        return _excuse(observed, found, deadline.late, judged, despite_disturbance)

    text = f"it gets {event_name(event)} at least {margin_s:g} s before NotBefore"
    return Demand(text=text, judge=judge, remedy=remedies.POLL_OFTEN)


def prepared_before_start(event: int = 0, *, margin_s: float = 1.0, already_counts: bool = False) -> Demand:
    """Demand that the handler is prepared `margin_s` before the event starts; until the start it is slow.

    A yes of the probe up to 1.5 s after the start is not too late yet. If the event started before NotBefore, because
    it was approved, a yes by then is in time. A probe that says yes before the event was published proves nothing
    (unknown), because an earlier event may be why; with `already_counts` it passes. The outcome is also unknown if the
    event had no notice or was never published, the machine was too slow, the case left too little time to poll or ended
    before the start, or the handler may have been prepared before its VM went down. Needs the probe `prepared`; applies
    to handlers that claim to prepare. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        return _judge_preparation(observed, event, margin_s, already_counts)

    text = f"it is prepared before {event_name(event)} starts"
    return Demand(text=text, judge=judge, remedy=remedies.PREPARE_EARLY, applies=_prepares, probe=Probe.PREPARED)


def reacted(event: int = 0, *, already_counts: bool = False, despite_disturbance: bool = False) -> Demand:
    """Demand a visible reaction before the event starts: the handler is prepared, or it approves.

    For cases in which a handler must understand a document. If it claims to prepare and the user gave the probe
    `prepared`, only the preparation counts, as in `prepared_before_start` without a margin, even one from before the
    publication if `already_counts`. Otherwise an approval counts, as in `approved`; if a handler that claims to prepare
    does not approve before NotBefore, the outcome is unknown. With `despite_disturbance`, substitute answers are no
    excuse. Applies to handlers that claim to prepare or to approve. `event` is its number in the order of publication,
    from 0.
    """

    def judge(observed: Observed) -> Judgement:
        if observed.claims.prepares and Probe.PREPARED in observed.probes:
            return _judge_preparation(observed, event, 0.0, already_counts, despite_disturbance)
        outcome, seen, times = approved(event, despite_disturbance=despite_disturbance).judge(observed)
        if observed.claims.prepares and outcome not in (CaseOutcome.PASS, CaseOutcome.SLOW):
            seen = f"only a probe can tell whether it was prepared for {event_name(event)}: give --prepared COMMAND"
            return CaseOutcome.UNKNOWN, seen, ()
        return outcome, seen, times

    text = f"it reacts to {event_name(event)} before it starts"
    return Demand(
        text=text,
        judge=judge,
        remedy=remedies.REACT,
        applies=lambda claims: claims.prepares or claims.approves is not Approves.NONE,
    )


def stays_prepared(event: int = 0) -> Demand:
    """Demand that the handler, once prepared, stays prepared until the event starts: it takes no new work.

    Any no of the probe after its first yes is a failure. The outcome is unknown if the probe did not turn to yes
    between the publication and the start (or the end of the case), or the event was never published. Needs the probe
    `prepared`; applies to handlers that claim to prepare. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        end = min(started_at(observed, found) or observed.timeline.ended_at, observed.timeline.ended_at)
        first = next(iter(turns_to_yes(observed, Probe.PREPARED, found.at, end)), None)
        if first is None:
            return CaseOutcome.UNKNOWN, f"it was never prepared for {event_name(event)}", ()
        lost = turns_to_no(observed, Probe.PREPARED, first, end)
        if lost:
            return CaseOutcome.FAIL, f"it was prepared, and {lost[0] - first:.1f} s later it no longer was", (lost[0],)
        return CaseOutcome.PASS, f"it stayed prepared for the {end - first:.1f} s until the start", (first,)

    text = f"it stays prepared until {event_name(event)} starts"
    return Demand(text=text, judge=judge, remedy=remedies.STAY_PREPARED, applies=_prepares, probe=Probe.PREPARED)


def prepared_at_start(event: int = 0) -> Demand:
    """Demand that a handler that was prepared for the event still is, or is again, when it starts.

    If the platform acts on its VM only later, that moment counts. A handler that lost its preparation needs a claimed
    poll interval and 5 s before the start to prepare again: with less, the outcome is unknown. It is also unknown if
    the handler was never prepared, the machine was too slow, or the event was never published or has no known start.
    Needs the probe `prepared`; applies to handlers that claim to prepare. `event` is its number in the order of
    publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        start = None if found is None else started_at(observed, found)
        if found is None or start is None:
            return not_published(event)
        impacts = [item.at for item in observed.timeline.of(Impact, observed.vm) if item.event == found.event]
        end = max(start, impacts[0]) if impacts else start
        if not turns_to_yes(observed, Probe.PREPARED, found.at, end):
            return CaseOutcome.UNKNOWN, f"it was never prepared for {event_name(event)}", ()
        lost = turns_to_no(observed, Probe.PREPARED, found.at, end)
        if probe_state(observed, Probe.PREPARED, end):
            return CaseOutcome.PASS, f"it was prepared when {event_name(event)} started", (start,)
        deadline = lost[-1] + observed.claims.polls_every_s + START_UP_S
        seen = f"it was no longer prepared at {lost[-1]:.1f} s, {_distance(start, lost[-1])} the start"
        reason = why_machine_was_slow(observed, lost[-1], start, found.event)
        if deadline > start:
            reason = reason or "that was too late to prepare again"
        return (
            (CaseOutcome.UNKNOWN, f"{seen}; {reason}", (lost[-1],)) if reason else (CaseOutcome.FAIL, seen, (lost[-1],))
        )

    text = f"it is prepared when {event_name(event)} starts"
    return Demand(text=text, judge=judge, remedy=remedies.PREPARE_AGAIN, applies=_prepares, probe=Probe.PREPARED)


def not_prepared_for(event: int = 0) -> Demand:
    """Demand that the handler does not prepare for this event, which is for another VM or needs nothing.

    Only what the handler does until the script publishes the next event counts. The outcome is unknown if no poll got
    the event, it was never published, or the handler was prepared before. Needs the probe `prepared`; applies to
    handlers that claim to prepare. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        following = published_event(observed, event + 1)
        end = observed.timeline.ended_at if following is None else following.at
        if probe_state(observed, Probe.PREPARED, found.at):
            return _yes_before(event)
        turned = turns_to_yes(observed, Probe.PREPARED, found.at, end)
        if turned:
            after_s = turned[0] - found.at
            return (
                CaseOutcome.FAIL,
                f"it prepared {after_s:.1f} s after {event_name(event)} was published",
                (turned[0],),
            )
        delivered = observed.timeline.delivered_at(found.event, observed.vm)
        if delivered is None or delivered > end:
            return CaseOutcome.UNKNOWN, f"no poll got {event_name(event)}, so this cannot be judged", ()
        seen = f"it got {event_name(event)}, and did not prepare in the {end - delivered:.1f} s afterwards"
        return CaseOutcome.PASS, seen, (delivered,)

    text = f"it does not prepare for {event_name(event)}"
    return Demand(text=text, judge=judge, remedy=remedies.ONLY_OWN_EVENTS, applies=_prepares, probe=Probe.PREPARED)


def prepared_at_most_once(event: int = 0, *, until_start: bool = False) -> Demand:
    """Demand that the handler prepares for the same event at most once, even after a restart.

    Each turn of the probe `prepared` to yes after the publication is a preparation. Preparations after the next event
    was published do not count; with `until_start`, only those before the event starts do. A handler that does not
    prepare passes. Needs that probe; applies to handlers that claim to prepare. `event` is its number in the order of
    publication, from 0; the outcome is unknown if it was never published.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        following = published_event(observed, event + 1)
        end = observed.timeline.ended_at if following is None else following.at
        if until_start:
            end = min(end, started_at(observed, found) or end)
        turned = turns_to_yes(observed, Probe.PREPARED, found.at, end)
        if len(turned) > 1:
            seen = f"it prepared {len(turned)} times, the second time {turned[1] - turned[0]:.1f} s after the first"
            return CaseOutcome.FAIL, seen, tuple(turned)
        if not turned:
            return CaseOutcome.PASS, f"it did not prepare for {event_name(event)}", ()
        return CaseOutcome.PASS, f"it prepared once, {turned[0] - found.at:.1f} s after the publication", tuple(turned)

    text = f"it prepares for {event_name(event)} at most once"
    return Demand(text=text, judge=judge, remedy=remedies.PREPARE_ONCE, applies=_prepares, probe=Probe.PREPARED)


def recovered(event: int = 0, *, within_s: float = 10.0, at_most_s: float = 25.0) -> Demand:
    """Demand that the application works again within `within_s` of the event's end.

    Until `at_most_s` it is slow; both limits are seconds of the service's clock, not counting those in which the
    handler could not poll, plus 1.5 s for the probe. The application must still work when the case ends. The event may
    have been carried out or withdrawn. The outcome is unknown if the event was never published or still listed at the
    end, the machine was too slow, or the case ended before the second limit. Needs the probe `recovered`; applies to
    handlers that claim to recover. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        ended = ended_event(observed, found)
        if ended is None:
            return CaseOutcome.UNKNOWN, f"{event_name(event)} was still listed when the case ended", ()
        final = observed.timeline.ended_at
        lost = turns_to_no(observed, Probe.RECOVERED, ended.at, final)
        at = _works_since(observed, ended.at)
        if at is None and lost and turns_to_yes(observed, Probe.RECOVERED, ended.at, final):
            seen = f"it worked again, but not when the case ended: the probe said no at {lost[-1]:.1f} s"
            return CaseOutcome.FAIL, seen, (lost[-1],)
        spans = obstructed_spans(observed)
        deadline = Deadline(
            start=ended.at,
            soon=deadline_after(spans, ended.at, within_s) + PROBE_LAG_S,
            late=deadline_after(spans, ended.at, max(within_s, at_most_s)) + PROBE_LAG_S,
        )
        return judge_deadline(
            observed,
            at,
            deadline,
            seen=f"it worked again {0.0 if at is None else max(0.0, at - ended.at):.1f} s after the end of the event",
            missing=f"it did not work again in the {final - ended.at:.1f} s after the end of the event",
        )

    text = f"the application works again within {within_s:g} s of the end of {event_name(event)}"
    return Demand(
        text=text, judge=judge, remedy=remedies.RECOVER, applies=lambda claims: claims.recovers, probe=Probe.RECOVERED
    )


def if_survives_restart(demand: Demand) -> Demand:
    """Return a copy of the demand that applies only to handlers that claim to survive a restart.

    It also applies only where the given demand does; for other handlers the outcome is not applicable.
    """
    return replace(demand, applies=lambda claims: claims.survives_restart and demand.applies(claims))


def _judge_preparation(
    observed: Observed, index: int, margin_s: float, already_counts: bool, despite_disturbance: bool = False
) -> Judgement:
    found = published_event(observed, index)
    if found is None:
        return not_published(index)
    name = event_name(index)
    start = started_at(observed, found)
    if start is None:
        return CaseOutcome.UNKNOWN, f"{name} had no notice", ()
    if probe_state(observed, Probe.PREPARED, found.at):
        if already_counts:
            return CaseOutcome.PASS, f"it was prepared already before {name} was published", (found.at,)
        return _yes_before(index)
    is_early = found.not_before is not None and start < found.not_before - PROBE_LAG_S
    late = start + PROBE_LAG_S
    deadline = Deadline(start=found.at, soon=late if is_early else start - margin_s, late=late, event=found.event)
    at = next(iter(turns_to_yes(observed, Probe.PREPARED, found.at, observed.timeline.ended_at)), None)
    after_s = 0.0 if at is None else at - found.at
    judged = judge_deadline(
        observed,
        at,
        deadline,
        seen=f"it was prepared {after_s:.1f} s after {name} was published, {_distance(start, at)} its start",
        missing=f"it was never prepared; {name} started {start - found.at:.1f} s after its publication",
    )
    if judged[0] is CaseOutcome.FAIL and at is not None and not _has_polled_since_impact(observed, found, at):
        return CaseOutcome.UNKNOWN, f"{judged[1]}; it may have been prepared before the VM went down", judged[2]
    return _excuse(observed, found, start, judged, despite_disturbance)


def _has_polled_since_impact(observed: Observed, event: EventPublished, at: float) -> bool:
    """Return whether the handler polled between the event's impact and `at`, or there was no impact."""
    # If not, what a probe says then was done before the impact: files survive it.
    impacts = [item.at for item in observed.timeline.of(Impact, observed.vm) if item.event == event.event]
    if not impacts or at < impacts[0]:
        return True
    return any(impacts[0] < poll.at < at for poll in observed.timeline.polls(observed.vm))


def _judge_notice(observed: Observed, event: EventPublished, index: int, deadline: Deadline) -> Judgement:
    at = observed.timeline.delivered_at(event.event, observed.vm)
    seen = f"the first poll with {event_name(index)} came {(at or event.at) - event.at:.1f} s after it was published"
    if event.not_before is not None:
        seen += f", {_distance(event.not_before, at)} NotBefore"
    left_s = max(0.0, observed.timeline.ended_at - event.at)
    missing = f"no poll got {event_name(index)} in the {left_s:.1f} s from its publication to the end of the case"
    return judge_deadline(observed, at, deadline, seen=seen, missing=missing)


def _excuse(
    observed: Observed, event: EventPublished, until: float, judged: Judgement, despite_disturbance: bool
) -> Judgement:
    """Return the judgement, or unknown if the case left the handler too little time before `until`."""
    outcome, seen, times = judged
    if outcome not in (CaseOutcome.SLOW, CaseOutcome.FAIL):
        return judged
    reason = why_notice_is_too_short(observed, event)
    spans = obstructed_spans(observed, despite_disturbance=despite_disturbance)
    counted = counted_s(spans, event.at, until)
    needed = min(observed.claims.polls_every_s + START_UP_S, until - event.at)
    if not reason and counted < needed - 0.5:
        reason = f"the case left it only {counted:.1f} s in which it could poll"
    return (CaseOutcome.UNKNOWN, f"{seen}; {reason}", times) if reason else judged


def _works_since(observed: Observed, start: float) -> float | None:
    final = observed.timeline.ended_at
    if not probe_state(observed, Probe.RECOVERED, final):
        return None
    lost = turns_to_no(observed, Probe.RECOVERED, start, final)
    if not lost and probe_state(observed, Probe.RECOVERED, start):
        return start
    turned = turns_to_yes(observed, Probe.RECOVERED, lost[-1] if lost else start, final)
    return turned[0] if turned else None


def _yes_before(index: int) -> Judgement:
    seen = f"the probe said yes already before {event_name(index)} was published, so it proves nothing"
    return CaseOutcome.UNKNOWN, seen, ()


def _distance(reference: float, at: float | None) -> str:
    if at is None:
        return ""
    return f"{abs(reference - at):.1f} s {'before' if at <= reference else 'after'}"


def _prepares(claims: HandlerClaims) -> bool:
    return claims.prepares
