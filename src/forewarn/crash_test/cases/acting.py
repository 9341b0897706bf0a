"""Cases on acting: what a handler does between the notice and the start of an event."""

from __future__ import annotations

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.approval_demands import approved_only_after_prepared
from forewarn.crash_test.case import Case, Layout, Need, Script
from forewarn.crash_test.cases.scripts import (
    APPROVERS,
    DOCUMENTATION,
    MAINTENANCE,
    NOTICE_S,
    OBSERVED,
    SETTLE_S,
    SPOT,
    begin,
    notice_of,
    preempt_variant,
)
from forewarn.crash_test.demands import (
    not_prepared_for,
    noticed,
    prepared_before_start,
    reacted,
    recovered,
    stays_prepared,
)
from forewarn.crash_test.program_demands import does_not_exit, still_polls
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_FREEZE_NOTICE_S = 15.0
_RECOVERY_S = 15.0  # after an event, in which recovery is observed


async def _short_freeze(stage: Stage) -> None:
    await begin(stage)
    event = await stage.publish("Freeze", notice_s=_FREEZE_NOTICE_S)
    await stage.until_started(event, within_s=_FREEZE_NOTICE_S + 5.0)
    await stage.until_over(event, within_s=20.0)
    await stage.wait(_RECOVERY_S)


async def _sudden_freeze(stage: Stage) -> None:
    await begin(stage)
    freeze = await stage.publish("Freeze", notice_s=4.0)
    await stage.until_over(freeze, within_s=20.0)
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(event, within_s=NOTICE_S + 5.0)
    await stage.wait(SETTLE_S)


async def _two_at_once(stage: Stage) -> None:
    await begin(stage)
    await stage.publish("Freeze", notice_s=60.0)
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(event, within_s=NOTICE_S + 5.0)
    await stage.wait(SETTLE_S)


def _held_until_start(kind: str) -> Script:
    """Refuse approvals, so that the event starts at NotBefore and preparations can be watched until then."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        stage.substitute(answers.approval_refused(503))
        event = await stage.publish(kind, notice_s=notice_of(kind))
        await stage.until_started(event, within_s=notice_of(kind) + 5.0)
        stage.substitute(None)
        await stage.wait(SETTLE_S)

    return script


async def _disk_full_for_a_while(stage: Stage) -> None:
    await begin(stage)
    await stage.fill_disk()
    event = await stage.publish("Reboot", notice_s=30.0)
    await stage.until_delivered(event, within_s=12.0)
    await stage.wait(6.0)
    await stage.free_disk()
    await stage.until_started(event, within_s=35.0)
    await stage.wait(SETTLE_S)


_STAYS_PREPARED = Case(
    id="acting-takes-no-new-work",
    title="The event is pending for its whole notice, and the handler must stay prepared.",
    reason="Work that is accepted after the notice is lost at the start. Nodes were given new pods while they were "
    "drained.",
    sources=("aws/aws-node-termination-handler#476", "taskcluster/taskcluster#6988"),
    profiles=MAINTENANCE,
    severity=Severity.LOSES_WORK,
    script=_held_until_start("Reboot"),
    demands=(prepared_before_start(), stays_prepared(), does_not_exit()),
)

CASES: tuple[Case, ...] = (
    Case(
        id="acting-freeze",
        title="The VM is frozen for a few seconds, and then continues.",
        reason="After a freeze everything is as before. Handlers drained the node, stopped watching, and left it out "
        "of service and billed.",
        sources=("maksim-paskal/aks-node-termination-handler#43", "maksim-paskal/aks-node-termination-handler#48"),
        profiles=APPROVERS,
        severity=Severity.LOSES_WORK,
        script=_short_freeze,
        demands=(noticed(), does_not_exit(), still_polls(), recovered(within_s=8.0, at_most_s=12.0)),
    ),
    Case(
        id="acting-freeze-is-no-eviction",
        title="A Spot VM will be frozen for a few seconds.",
        reason="A freeze ends by itself. A worker that shuts down for it loses the work that it wanted to save.",
        sources=("taskcluster/taskcluster#6961",),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SPOT,
        script=_short_freeze,
        demands=(not_prepared_for().with_remedy(remedies.IGNORE_FREEZES), does_not_exit(), still_polls()),
    ),
    Case(
        id="acting-two-at-once",
        title="Two events of the same VM are listed at once.",
        reason="A freeze and a reboot can be announced together. One handler crashed when a second event came for the "
        "same node, and saw no other event while it was busy with one.",
        sources=("aws/aws-node-termination-handler#307", "aws/aws-node-termination-handler#310"),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_two_at_once,
        demands=(
            noticed(1).with_remedy(remedies.HANDLE_EACH_EVENT),
            reacted(1, already_counts=True).with_remedy(remedies.HANDLE_EACH_EVENT),
            does_not_exit(),
            still_polls(),
        ),
    ),
    _STAYS_PREPARED,
    preempt_variant(_STAYS_PREPARED, _held_until_start("Preempt")),
    Case(
        id="acting-failed-preparation",
        title="The disk is full while the handler prepares, and free again before the event starts.",
        reason="One handler marks an event as done before it prepares, and never tries again; another recorded a "
        "cancelled drain as a success.",
        sources=("NVIDIA/NVSentinel#121", "https://github.com/maksim-paskal/aks-node-termination-handler"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_disk_full_for_a_while,
        demands=(
            prepared_before_start(margin_s=0.0).with_remedy(remedies.NOTE_SUCCESS_ONLY),
            approved_only_after_prepared(),
            does_not_exit().with_remedy(remedies.WORK_WITHOUT_DISK),
        ),
    ),
    Case(
        id="acting-frozen-almost-unannounced",
        title="The VM is frozen four seconds after the event was published.",
        reason="A handler does not run during a freeze, and its connections may be broken afterwards. It must poll "
        "again by itself.",
        sources=("Azure/AKS#3719", DOCUMENTATION),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_sudden_freeze,
        demands=(
            does_not_exit(),
            still_polls(),
            noticed(1).with_remedy(remedies.KEEP_POLLING),
            reacted(1, already_counts=True).with_remedy(remedies.HANDLE_NEXT_EVENT),
        ),
    ),
)
