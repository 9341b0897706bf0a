"""Demands on approvals: whose events, when, how often, and after what. Pure functions, like `demands`."""

from __future__ import annotations

from collections import Counter

from forewarn.crash_test import remedies
from forewarn.crash_test.case import Demand, Observed
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.fair_time import counted_s, deadline_after, obstructed_spans
from forewarn.crash_test.judgement import (
    PROBE_LAG_S,
    Deadline,
    Judgement,
    approvals_of,
    ended_event,
    event_name,
    is_accepted,
    judge_deadline,
    not_published,
    probe_state,
    published_event,
    turns_to_yes,
    why_notice_is_too_short,
)
from forewarn.crash_test.timeline import Approved, EventPublished, Poller, Probe
from forewarn.crash_test.verdict import CaseOutcome

_TIME_TO_APPROVE_S = 5.0  # that a handler must have had before it can be said that it did not try


def approved(event: int = 0, *, margin_s: float = 2.0, despite_disturbance: bool = False) -> Demand:
    """Demand that the handler approves the event `margin_s` before NotBefore or earlier; later is slow.

    An approval after NotBefore, or none, is a failure; only approvals that got a 2xx count. A handler that claims to
    approve for its scope may do so on any VM, other handlers only on a VM of the event. Applies to handlers that claim
    to approve. The outcome is unknown if the event was withdrawn before an approval, had no notice or was never
    published, if the machine was too slow, if the case left too little time to poll, or if it ended before NotBefore
    without an approval; with `despite_disturbance`, substitute answers are no excuse. `event` is its number in the
    order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        if found.not_before is None:
            return CaseOutcome.UNKNOWN, f"{event_name(event)} started at once, and needed no approval", ()
        accepted = [item for item in _counted_approvals(observed, found) if is_accepted(item)]
        at = accepted[0].at if accepted else None
        ended = ended_event(observed, found)
        if at is None and ended is not None and ended.is_withdrawn:
            return CaseOutcome.UNKNOWN, f"{event_name(event)} was withdrawn before it was approved", ()
        seen = "" if at is None else _when(at, found)
        missing = f"it did not approve {event_name(event)}"
        deadline = Deadline(start=found.at, soon=found.not_before - margin_s, late=found.not_before, event=found.event)
        judged = judge_deadline(observed, at, deadline, seen=seen, missing=missing)
        return _excuse(observed, found, judged, despite_disturbance)

    text = f"it approves {event_name(event)} before NotBefore"
    return Demand(text=text, judge=judge, remedy=remedies.APPROVE_IN_TIME, applies=_approves)


def approved_at_most(event: int = 0, *, times: int = 1) -> Demand:
    """Demand that at most `times` approvals of the event are accepted (2xx) from each copy of the handler.

    `event` is its number in the order of publication, from 0; the outcome is unknown if it was never published. Applies
    to handlers that claim to approve. A handler without approvals passes.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        accepted = [item for item in approvals_of(observed, found, on_all_vms=True) if is_accepted(item)]
        vm, count = next(iter(Counter(item.vm for item in accepted).most_common(1)), ("", 0))
        at = tuple(item.at for item in accepted if item.vm == vm)
        if count > times:
            return (
                CaseOutcome.FAIL,
                f"it approved {event_name(event)} {count} times on {vm}, last at {at[-1]:.1f} s",
                at,
            )
        return CaseOutcome.PASS, f"it approved {event_name(event)} {_times(count)}", at

    text = f"it approves {event_name(event)} at most {_times(times)}"
    return Demand(text=text, judge=judge, remedy=remedies.APPROVE_ONCE, applies=_approves)


def not_approved(event: int = 0) -> Demand:
    """Demand that the handler on the judged VM sends no approval of this event, not even a refused one.

    `event` is its number in the order of publication, from 0. Applies to handlers that do not claim to approve for
    their scope. Without an approval, the outcome is unknown if no poll got the event, or it was never published.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        wrong = approvals_of(observed, found)
        if wrong:
            at = wrong[0].at
            return (
                CaseOutcome.FAIL,
                f"it approved {event_name(event)} {at - found.at:.1f} s after its publication",
                (at,),
            )
        if observed.timeline.delivered_at(found.event, observed.vm) is None:
            return CaseOutcome.UNKNOWN, f"no poll got {event_name(event)}, so this cannot be judged", ()
        return CaseOutcome.PASS, f"it got {event_name(event)}, and did not approve it", ()

    text = f"it does not approve {event_name(event)}"
    return Demand(
        text=text,
        judge=judge,
        remedy=remedies.APPROVE_OWN_ONLY,
        applies=lambda claims: claims.approves is not Approves.SCOPE,
    )


def approves_only_own() -> Demand:
    """Demand that no copy of the handler sends an approval of an event that is only for other VMs.

    Refused approvals count too; approvals of ids that were never published do not. A handler that sends none passes.
    Applies to handlers that do not claim to approve for their scope.
    """

    def judge(observed: Observed) -> Judgement:
        approvals = _handler_approvals(observed)
        for approval in approvals:
            for event in approval.event_ids:
                found = _published_by_id(observed, event)
                if found is not None and approval.vm not in found.vms:
                    seen = f"at {approval.at:.1f} s, {approval.vm} approved an event that is for {', '.join(found.vms)}"
                    return CaseOutcome.FAIL, seen, (approval.at,)
        return CaseOutcome.PASS, f"it sent {_count_approvals(len(approvals))}, none of them for other VMs", ()

    text = "it approves events of its own VM only"
    return Demand(
        text=text,
        judge=judge,
        remedy=remedies.APPROVE_OWN_ONLY,
        applies=lambda claims: claims.approves is not Approves.SCOPE,
    )


def approves_nothing() -> Demand:
    """Demand that the handler sends no approval on any VM, not even one that is refused.

    Applies to handlers that claim never to approve.
    """

    def judge(observed: Observed) -> Judgement:
        approvals = _handler_approvals(observed)
        if approvals:
            at = approvals[0].at
            return CaseOutcome.FAIL, f"it sent {_count_approvals(len(approvals))}, the first at {at:.1f} s", (at,)
        return CaseOutcome.PASS, "it sent no approval", ()

    text = "it approves nothing, as it claims"
    return Demand(
        text=text, judge=judge, remedy=remedies.APPROVE_NOTHING, applies=lambda claims: claims.approves is Approves.NONE
    )


def approved_only_after_prepared(event: int = 0) -> Demand:
    """Demand that the handler on the judged VM approves the event only once it is prepared.

    The probe `prepared` (a command of the user) decides, by its answer when the first approval arrived, accepted or
    refused. If it gave no answer then, it must have turned to yes after the publication, and at most 1.5 s after the
    approval. A handler that does not approve passes. The outcome is unknown if the probe said yes before the event was
    published, or the event was never published. Needs the probe `prepared`; applies to handlers that claim to approve
    and to prepare. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        sent = approvals_of(observed, found)
        if not sent:
            return CaseOutcome.PASS, f"it did not approve {event_name(event)}, so it did not approve it too early", ()
        at = sent[0].at
        if probe_state(observed, Probe.PREPARED, found.at):
            return CaseOutcome.UNKNOWN, f"the probe said yes already before {event_name(event)} was published", (at,)
        if sent[0].was_prepared:
            return CaseOutcome.PASS, f"it was prepared when it approved {event_name(event)} at {at:.1f} s", (at,)
        turned = turns_to_yes(observed, Probe.PREPARED, found.at, observed.timeline.ended_at)
        if sent[0].was_prepared is None and turned and turned[0] <= at + PROBE_LAG_S:
            return CaseOutcome.PASS, f"it was prepared at {turned[0]:.1f} s and approved at {at:.1f} s", (turned[0], at)
        turned = [later for later in turned if later > at]
        prepared = f"was prepared only at {turned[0]:.1f} s" if turned else "was never prepared"
        return CaseOutcome.FAIL, f"it approved {event_name(event)} at {at:.1f} s and {prepared}", (at, *turned[:1])

    text = f"it approves {event_name(event)} only after it is prepared"
    return Demand(
        text=text,
        judge=judge,
        remedy=remedies.APPROVE_AFTER_PREPARING,
        applies=lambda claims: claims.approves is not Approves.NONE and claims.prepares,
        probe=Probe.PREPARED,
    )


def retried_after_refusal(event: int = 0, *, within_s: float = 10.0, at_most_s: float = 20.0) -> Demand:
    """Demand that, after the last refused approval, one is accepted within `within_s` seconds.

    Accepted means a 2xx, refused any other answer or none; refusals after the first acceptance do not count. Until
    `at_most_s` the outcome is slow; later or never is a failure. Both limits are seconds of the service's clock, not
    counting those in which the handler could not poll. A handler that never tried to approve fails if it had the event
    and 5 s for it, otherwise its outcome is unknown. The outcome is also unknown if no approval was refused, the event
    was never published, the machine was too slow, or the case ended before `at_most_s` without an accepted one. Applies
    to handlers that claim to approve. `event` is its number in the order of publication, from 0.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        sent = _counted_approvals(observed, found)
        accepted = [item for item in sent if is_accepted(item)]
        refused = [item for item in sent if not is_accepted(item) and (not accepted or item.at <= accepted[0].at)]
        if not sent:
            outcome = CaseOutcome.FAIL if _could_approve(observed, found) else CaseOutcome.UNKNOWN
            return outcome, f"it never tried to approve {event_name(event)}", ()
        if not refused:
            return CaseOutcome.UNKNOWN, f"no approval of {event_name(event)} was refused, so this cannot be judged", ()
        last = refused[-1].at
        at = accepted[0].at if accepted else None
        spans = obstructed_spans(observed)
        deadline = Deadline(
            start=last,
            soon=deadline_after(spans, last, within_s),
            late=deadline_after(spans, last, max(within_s, at_most_s)),
        )
        return judge_deadline(
            observed,
            at,
            deadline,
            seen=f"{_count_approvals(len(refused))} got a refusal; one was accepted {(at or last) - last:.1f} s later",
            missing=f"{_count_approvals(len(refused))} got a refusal, the last at {last:.1f} s; it did not try again",
        )

    text = f"it approves {event_name(event)} again after a refusal, within {within_s:g} s"
    return Demand(text=text, judge=judge, remedy=remedies.RETRY_APPROVAL, applies=_approves)


def approvals_sent_at_most(event: int = 0, *, times: int = 10) -> Demand:
    """Demand that the handler on the judged VM sends at most `times` approvals of this event.

    Refused approvals count too. `event` is its number in the order of publication, from 0; the outcome is unknown if it
    was never published. Applies to handlers that claim to approve.
    """

    def judge(observed: Observed) -> Judgement:
        found = published_event(observed, event)
        if found is None:
            return not_published(event)
        sent = approvals_of(observed, found)
        outcome = CaseOutcome.FAIL if len(sent) > times else CaseOutcome.PASS
        seen = f"it sent {_count_approvals(len(sent))} of {event_name(event)}"
        return outcome, seen, tuple(item.at for item in sent[:10])

    text = f"it sends at most {times} approvals of {event_name(event)}"
    return Demand(text=text, judge=judge, remedy=remedies.APPROVE_WITH_PAUSES, applies=_approves)


def approvals_are_well_formed() -> Demand:
    """Demand that every approval has `Metadata: true`, an api-version and a body with StartRequests.

    The approvals on all VMs count, refused ones too. The outcome is unknown if there is none. Applies to handlers that
    claim to approve.
    """

    def judge(observed: Observed) -> Judgement:
        sent = _handler_approvals(observed)
        for approval in sent:
            problem = approval.problem or ("" if approval.has_header else "it had no header `Metadata: true`")
            problem = problem or ("" if approval.version else "it named no api-version")
            if problem:
                at = approval.at
                return CaseOutcome.FAIL, f"an approval at {at:.1f} s was not well-formed: {problem}", (at,)
        if not sent:
            return CaseOutcome.UNKNOWN, "it sent no approval, so this cannot be judged", ()
        return CaseOutcome.PASS, f"{_count_approvals(len(sent))} had the header, an api-version and a readable body", ()

    text = "its approvals have the header, an api-version and a readable body"
    return Demand(text=text, judge=judge, remedy=remedies.SEND_WELL_FORMED_APPROVALS, applies=_approves)


def _approves(claims: HandlerClaims) -> bool:
    return claims.approves is not Approves.NONE


def _handler_approvals(observed: Observed) -> list[Approved]:
    return [item for item in observed.timeline.of(Approved) if item.by is Poller.HANDLER]


def _counted_approvals(observed: Observed, event: EventPublished) -> list[Approved]:
    """Return the approvals that count: those on the event's VMs; on all VMs with approval for the scope."""
    found = approvals_of(observed, event, on_all_vms=True)
    return found if observed.claims.approves is Approves.SCOPE else [item for item in found if item.vm in event.vms]


def _published_by_id(observed: Observed, event: str) -> EventPublished | None:
    published = observed.timeline.of(EventPublished)
    return next((item for item in published if item.event.casefold() == event.casefold()), None)


def _could_approve(observed: Observed, event: EventPublished) -> bool:
    delivered = observed.timeline.delivered_at(event.event, observed.vm)
    if delivered is None or why_notice_is_too_short(observed, event):
        return False
    until = observed.timeline.ended_at if event.not_before is None else event.not_before
    counted = counted_s(obstructed_spans(observed), delivered, min(until, observed.timeline.ended_at))
    return counted >= _TIME_TO_APPROVE_S


def _excuse(observed: Observed, event: EventPublished, judged: Judgement, despite_disturbance: bool) -> Judgement:
    """Return the judgement, or unknown if the case left the handler too little time before NotBefore."""
    outcome, seen, times = judged
    if outcome not in (CaseOutcome.SLOW, CaseOutcome.FAIL):
        return judged
    reason = why_notice_is_too_short(observed, event)
    until = event.at if event.not_before is None else event.not_before
    counted = counted_s(obstructed_spans(observed, despite_disturbance=despite_disturbance), event.at, until)
    if not reason and observed.claims.approves is Approves.OWN and counted < observed.claims.polls_every_s:
        reason = f"the case left it only {counted:.1f} s in which it could poll"
    return (CaseOutcome.UNKNOWN, f"{seen}; {reason}", times) if reason else judged


def _when(at: float, event: EventPublished) -> str:
    text = f"it was approved {at - event.at:.1f} s after its publication"
    if event.not_before is None:
        return text
    side = "before" if at <= event.not_before else "after"
    return f"{text}, {abs(event.not_before - at):.1f} s {side} NotBefore"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _count_approvals(count: int) -> str:
    return "1 approval" if count == 1 else f"{count} approvals"
