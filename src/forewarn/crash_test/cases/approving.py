"""Cases on approving: in time, once, after preparing, again after a refusal, and never for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.answers import Concerns, SpoiledAnswer
from forewarn.crash_test.approval_demands import (
    approvals_are_well_formed,
    approvals_sent_at_most,
    approved,
    approved_at_most,
    approved_only_after_prepared,
    approves_nothing,
    approves_only_own,
    not_approved,
    retried_after_refusal,
)
from forewarn.crash_test.case import Case, Layout, Need, Script
from forewarn.crash_test.cases.scripts import (
    APPROVERS,
    CLUSTER,
    DOCUMENTATION,
    EVERY_PROFILE,
    LONGEST_PAUSE_S,
    MAINTENANCE,
    NOTICE_S,
    SETTLE_S,
    announce,
    begin,
)
from forewarn.crash_test.program_demands import does_not_exit, polls_regularly, still_polls
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_RETRY_NOTICE_S = 50.0  # for two retries with a pause of twenty seconds, which 15 minutes of notice leave time for
_PACEMAKER_AGENT = "https://github.com/ClusterLabs/resource-agents/blob/main/heartbeat/azure-events-az.in"


def _approval_with(answer: Callable[[], SpoiledAnswer], *, times: int | None = None, notice_s: float = 20.0) -> Script:
    async def script(stage: Stage) -> None:
        await begin(stage)
        stage.substitute(answer(), times=times)
        event = await stage.publish("Reboot", notice_s=notice_s)
        await stage.until_started(event, within_s=notice_s + 5.0)
        stage.substitute(None)
        await stage.wait(SETTLE_S)

    return script


async def _two_neighbours(stage: Stage) -> None:
    await begin(stage)
    for name in stage.neighbours[:2]:
        await stage.publish("Reboot", vm=name, notice_s=60.0)
    await stage.until_polled(times=3, within_s=20.0)
    await stage.wait(5.0)


async def _approver_dies(stage: Stage) -> None:
    await begin(stage)
    event = await stage.publish("Reboot", vm=stage.neighbours[0], notice_s=NOTICE_S + 5.0)
    await stage.kill_handler(restart_after_s=None)
    await stage.until_started(event, within_s=NOTICE_S + 10.0)
    await stage.wait(SETTLE_S)


_REFUSED = Case(
    id="approving-refused-429",
    title="The first two approvals are answered with 429.",
    reason="A POST is throttled like any request; the service's text was seen in production as the answer to an "
    "approval. A handler that does not read the status believes that it has approved.",
    sources=("https://github.com/VijayRod/demo", "https://github.com/giantswarm/azure-scheduled-events"),
    profiles=APPROVERS,
    severity=Severity.DELAYS_PLATFORM,
    layout=Layout.SET,
    script=_approval_with(lambda: answers.approval_refused(429, retry_after=1), times=2, notice_s=_RETRY_NOTICE_S),
    demands=(retried_after_refusal(within_s=8.0, at_most_s=LONGEST_PAUSE_S), does_not_exit()),
)

CASES: tuple[Case, ...] = (
    Case(
        id="approving-in-time",
        title="A reboot is announced, and the platform waits for an approval.",
        reason="Without an approval the platform waits for the whole notice: restarts took 15 to 18 minutes, and "
        "nobody knew why.",
        sources=("Azure/AKS#2062", "scylladb/scylla-cluster-tests#5608"),
        profiles=APPROVERS,
        severity=Severity.DELAYS_PLATFORM,
        layout=Layout.SET,
        script=announce("Reboot"),
        demands=(approved(), approved_at_most(times=2), does_not_exit()),
    ),
    Case(
        id="approving-after-preparing",
        title="A reboot is announced, and starts as soon as it is approved.",
        reason="An approval gives the rest of the notice away. A service that approves every event as soon as it sees "
        "it leaves no time to prepare anything.",
        sources=("https://github.com/microsoft/AzureScheduledEventsService", DOCUMENTATION),
        profiles=APPROVERS,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=announce("Reboot"),
        demands=(approved_only_after_prepared(), does_not_exit()),
    ),
    Case(
        id="approving-for-others",
        title="Both neighbours will be rebooted, and are not prepared yet.",
        reason="Any VM of a scope can approve any event in it. A handler that approves for others before they are "
        "ready takes their notice away.",
        sources=("https://github.com/microsoft/AzureScheduledEventsService", _PACEMAKER_AGENT),
        profiles=APPROVERS,
        severity=Severity.TOUCHES_ANOTHER_VM,
        layout=Layout.SET,
        script=_two_neighbours,
        demands=(approves_only_own(), not_approved(0), not_approved(1), does_not_exit()),
    ),
    Case(
        id="approving-although-it-claims-not-to",
        title="A reboot is announced to a handler that claims never to approve.",
        reason="Never approving is allowed. A handler that approves although it claims not to starts events that "
        "nobody has prepared for.",
        sources=(DOCUMENTATION,),
        profiles=EVERY_PROFILE,
        severity=Severity.LOSES_WORK,
        script=announce("Reboot"),
        demands=(approves_nothing(),),
    ),
    Case(
        id="approving-well-formed",
        title="A reboot is announced, and every part of the approval is checked.",
        reason="One client sent its approvals without the Metadata header, and each was refused. Another sends JSON "
        "with the Content-Type of a form.",
        sources=("https://github.com/ledgerscope/Azure.ScheduledEvents", _PACEMAKER_AGENT),
        profiles=APPROVERS,
        severity=Severity.DELAYS_PLATFORM,
        layout=Layout.SET,
        script=announce("Reboot"),
        demands=(approvals_are_well_formed(), approved()),
    ),
    _REFUSED,
    replace(
        _REFUSED,
        id="approving-refused-500",
        title="The first two approvals are answered with 500.",
        script=_approval_with(lambda: answers.approval_refused(500), times=2, notice_s=_RETRY_NOTICE_S),
    ),
    replace(
        _REFUSED,
        id="approving-refused-503",
        title="The first two approvals are answered with 503 and Retry-After.",
        script=_approval_with(lambda: answers.approval_refused(503, retry_after=2), times=2, notice_s=_RETRY_NOTICE_S),
    ),
    Case(
        id="approving-answer-lost",
        title="The connection is reset after the approval was sent, and the event has not started.",
        reason="The handler cannot know whether it has approved. Approving again is harmless; stopping, or approving "
        "without end, is not.",
        sources=(DOCUMENTATION,),
        profiles=MAINTENANCE,
        severity=Severity.DELAYS_PLATFORM,
        is_rare=True,
        script=_approval_with(
            lambda: replace(answers.resets_connections(concerns=Concerns.APPROVALS), withholds_request=True),
            times=1,
            notice_s=NOTICE_S,
        ),
        demands=(does_not_exit(), still_polls(), approvals_sent_at_most(times=5)),
    ),
    Case(
        id="approving-never-answered",
        title="An approval never gets an answer.",
        reason="A handler that waits for the answer without a time limit does not see that the event has started, or "
        "any event after it.",
        sources=("aws-deadline/deadline-cloud-worker-agent#1083", "aws-deadline/deadline-cloud-worker-agent#1010"),
        profiles=MAINTENANCE,
        severity=Severity.DELAYS_PLATFORM,
        is_rare=True,
        script=_approval_with(
            lambda: replace(answers.never_answers(concerns=Concerns.APPROVALS), withholds_request=True), notice_s=32.0
        ),
        demands=(
            does_not_exit(),
            polls_regularly(within_s=15.0, at_most_s=22.0).with_remedy(remedies.KEEP_POLLING),
        ),
    ),
    Case(
        id="approving-refused-for-long",
        title="Every approval is refused with 400 until the event starts.",
        reason="A request that is refused as wrong is still wrong a moment later. Retries need a pause and an end.",
        sources=("canonical/cloud-init#4470", "https://github.com/webdevops/azure-scheduledevents-manager"),
        profiles=MAINTENANCE,
        severity=Severity.NOISE,
        script=_approval_with(lambda: answers.approval_refused(400), notice_s=NOTICE_S),
        demands=(approvals_sent_at_most(times=25), does_not_exit()),
    ),
    Case(
        id="approving-approver-dies",
        title="The copy of the handler on the first VM dies, and a neighbour's event waits for an approval.",
        reason="An agent that coordinates through one lock saw no more events: the lock said that another node was "
        "at work. Another VM must be able to approve.",
        sources=("ClusterLabs/resource-agents#1986", DOCUMENTATION),
        profiles=CLUSTER,
        severity=Severity.DELAYS_PLATFORM,
        layout=Layout.SET,
        needs=frozenset({Need.CONTROL, Need.SEVERAL_VMS}),
        script=_approver_dies,
        demands=(approved().with_remedy(remedies.LET_ANOTHER_APPROVE),),
    ),
)
