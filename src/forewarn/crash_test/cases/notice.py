"""Cases on noticing: how much notice an event has, and when the handler can first see it."""

from __future__ import annotations

from forewarn.crash_test import remedies
from forewarn.crash_test.case import Case, Layout, Need, Script
from forewarn.crash_test.cases.scripts import (
    ALL_BUT_SPOT,
    DOCUMENTATION,
    MAINTENANCE,
    NOTICE_S,
    OBSERVED,
    SETTLE_S,
    SPOT,
    announce,
    begin,
    notice_of,
    preempt_variant,
)
from forewarn.crash_test.demands import noticed, noticed_before_start, prepared_before_start, reacted, recovered
from forewarn.crash_test.program_demands import does_not_exit, polls_after_restart, polls_regularly
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity


def _at_first_poll(kind: str) -> Script:
    async def script(stage: Stage) -> None:
        event = await stage.publish(kind, notice_s=notice_of(kind) + 5.0)  # the program is still starting
        await stage.until_started(event, within_s=notice_of(kind) + 10.0)
        await stage.wait(SETTLE_S)

    return script


async def _just_after_a_poll(stage: Stage) -> None:
    await begin(stage)
    await stage.until_polled(within_s=15.0)
    event = await stage.publish("Preempt", notice_s=10.0)
    await stage.until_started(event, within_s=15.0)


async def _host_fails(stage: Stage) -> None:
    await begin(stage)
    event = await stage.fail_host()
    await stage.until_over(event, within_s=20.0)
    await stage.wait(15.0)


async def _seven_days_and_soon(stage: Stage) -> None:
    await begin(stage)
    far = await stage.publish("Freeze", notice_s=7 * 86_400.0)
    await stage.until_delivered(far, within_s=10.0)
    await stage.wait(2.0)
    near = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(near, within_s=NOTICE_S + 5.0)
    await stage.wait(SETTLE_S)


_FIRST_POLL = Case(
    id="notice-at-first-poll",
    title="The event is already listed when the handler polls for the first time.",
    reason="A VM can boot after an event was announced. A handler that acts only on changes takes the first document "
    "as the normal state, and ignores the event in it.",
    sources=("taskcluster/taskcluster#6805", "taskcluster/taskcluster#6988"),
    profiles=OBSERVED,
    severity=Severity.LOSES_WORK,
    needs=frozenset({Need.CONTROL}),
    script=_at_first_poll("Reboot"),
    demands=(
        noticed().with_remedy(remedies.POLL_AT_START),
        reacted().with_remedy(remedies.ACT_ON_FIRST_DOCUMENT),
        does_not_exit(),
    ),
)

CASES: tuple[Case, ...] = (
    Case(
        id="notice-30s",
        title="A Spot VM is evicted with a notice of 30 seconds.",
        reason="A handler that polls every 15 or 60 seconds uses up half of this notice, or all of it, before it sees "
        "the event.",
        sources=("taskcluster/taskcluster#7916", "https://github.com/webdevops/azure-scheduledevents-manager"),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SPOT,
        script=announce("Preempt"),
        demands=(
            noticed_before_start(margin_s=20.0, least_s=10.0),
            prepared_before_start(margin_s=2.0),
            does_not_exit(),
        ),
    ),
    Case(
        id="notice-8s",
        title="A Spot VM is evicted with a notice of eight seconds.",
        reason="Evictions often come with less than ten seconds of notice, as Azure's own autoscaler team writes. Only "
        "a handler that polls every few seconds sees them at all.",
        sources=("Azure/karpenter-provider-azure#1769",),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        layout=Layout.SPOT,
        script=announce("Preempt", notice_s=8.0),
        demands=(noticed_before_start(margin_s=2.0, least_s=0.5), does_not_exit()),
    ),
    Case(
        id="notice-just-after-a-poll",
        title="An eviction is announced right after a poll, and the VM is gone ten seconds later.",
        reason="A whole poll interval passes before the handler can see the event. A worker was lost this way eight "
        "seconds after a poll.",
        sources=("mozilla/translations#400", "taskcluster/taskcluster#7916"),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        layout=Layout.SPOT,
        script=_just_after_a_poll,
        demands=(noticed_before_start(margin_s=4.0, least_s=1.0), does_not_exit()),
    ),
    _FIRST_POLL,
    preempt_variant(_FIRST_POLL, _at_first_poll("Preempt")),
    Case(
        id="notice-reboot",
        title="A reboot is announced, and nothing else goes wrong.",
        reason="This is the common case. A handler that fails it fails everything else too.",
        sources=(DOCUMENTATION,),
        profiles=ALL_BUT_SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=announce("Reboot"),
        demands=(noticed(), prepared_before_start(), does_not_exit()),
    ),
    Case(
        id="notice-redeploy",
        title="The VM will move to another host and lose its temporary disk.",
        reason="After a Redeploy everything on the temporary disk is gone. A handler that knows only Reboot misses it.",
        sources=(DOCUMENTATION,),
        profiles=ALL_BUT_SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=announce("Redeploy"),
        demands=(
            noticed(),
            prepared_before_start().with_remedy(remedies.PREPARE_FOR_REDEPLOY),
            does_not_exit(),
        ),
    ),
    Case(
        id="notice-none",
        title="The host fails: the event is Started when it first appears, and the VM moves at once.",
        reason="The event is never Scheduled, and its NotBefore is empty. A handler that waits for Scheduled never "
        "sees it; one that needs the date stops.",
        sources=("Azure/AKS#3719", DOCUMENTATION),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_host_fails,
        demands=(does_not_exit(), polls_after_restart(), recovered(within_s=8.0, at_most_s=12.0)),
    ),
    Case(
        id="notice-seven-days",
        title="An event is seven days away, and a reboot is announced meanwhile.",
        reason="Predicted failures are announced a week ahead. A handler that waits for the first NotBefore before it "
        "looks at anything else misses the event that starts sooner.",
        sources=("aws/aws-node-termination-handler#361", DOCUMENTATION),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_seven_days_and_soon,
        demands=(
            noticed(1).with_remedy(remedies.HANDLE_EACH_EVENT),
            prepared_before_start(1, already_counts=True).with_remedy(remedies.HANDLE_EACH_EVENT),
            does_not_exit(),
        ),
    ),
    Case(
        id="notice-shorter-than-promised",
        title="A reboot is announced twelve seconds ahead, instead of fifteen minutes.",
        reason="Users saw a third of the documented minimum and were told that the minimum is in effect a maximum. A "
        "handler that waits until a fixed time before NotBefore must act at once if that time has passed.",
        sources=("MicrosoftDocs/azure-docs#115241", "MicrosoftDocs/azure-docs#39758"),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=announce("Reboot", notice_s=12.0),
        demands=(
            noticed_before_start(margin_s=4.0, least_s=1.0),
            prepared_before_start(margin_s=0.0).with_remedy(remedies.PREPARE_AT_ONCE),
            does_not_exit(),
        ),
    ),
    Case(
        id="notice-polls-while-pending",
        title="An event is pending, and the handler must still poll for changes.",
        reason="A handler that stops polling while it prepares does not see that the event was withdrawn or has "
        "started, or that a second one is listed.",
        sources=("maksim-paskal/aks-node-termination-handler#43", "aws/aws-node-termination-handler#310"),
        profiles=OBSERVED,
        severity=Severity.DELAYS_PLATFORM,
        script=announce("Reboot"),
        demands=(noticed(), polls_regularly(), does_not_exit()),
    ),
)
