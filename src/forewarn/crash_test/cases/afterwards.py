"""Cases on what comes after the notice: an event is over, withdrawn, still listed, or another follows."""

from __future__ import annotations

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.answers import Concerns, SpoiledAnswer
from forewarn.crash_test.case import Case, Layout, Need
from forewarn.crash_test.cases.scripts import (
    APPROVERS,
    DOCUMENTATION,
    MAINTENANCE,
    OBSERVED,
    SETTLE_S,
    begin,
    still_listed,
)
from forewarn.crash_test.demands import (
    if_survives_restart,
    noticed,
    prepared_at_most_once,
    reacted,
    recovered,
)
from forewarn.crash_test.program_demands import does_not_exit, still_polls
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_SHORT_NOTICE_S = 14.0
_RECOVERY_S = 15.0  # after the end of an event, in which recovery is observed
_PREPARE_S = 5.0  # that a handler gets to prepare before the case goes on
_RECOVERED = recovered(within_s=8.0, at_most_s=12.0)


def _approvals_without_effect() -> SpoiledAnswer:
    """Accept approvals with 200 and do not start the event: the platform may wait for other tenants."""
    return answers.status(200, b"", concerns=Concerns.APPROVALS)


async def _carried_out(stage: Stage) -> None:
    await begin(stage)
    event = await stage.publish("Reboot", notice_s=_SHORT_NOTICE_S)
    await stage.until_over(event, within_s=_SHORT_NOTICE_S + 15.0)
    await stage.wait(_RECOVERY_S)


async def _withdrawn(stage: Stage) -> None:
    await begin(stage)
    stage.substitute(_approvals_without_effect())
    event = await stage.publish("Reboot", notice_s=60.0)
    await stage.until_delivered(event, within_s=12.0)
    await stage.wait(_PREPARE_S)
    await stage.withdraw(event)
    stage.substitute(None)
    await stage.wait(_RECOVERY_S)


async def _withdrawn_after_approval(stage: Stage) -> None:
    await begin(stage)
    stage.substitute(_approvals_without_effect())
    event = await stage.publish("Reboot", notice_s=60.0)
    await stage.until_delivered(event, within_s=12.0)
    await stage.until_approved(event, within_s=8.0)
    await stage.wait(SETTLE_S)
    await stage.withdraw(event)
    stage.substitute(None)
    await stage.wait(_RECOVERY_S)


async def _over_while_down(stage: Stage) -> None:
    await begin(stage)
    stage.substitute(_approvals_without_effect())
    event = await stage.publish("Reboot", notice_s=60.0)
    await stage.until_delivered(event, within_s=12.0)
    await stage.wait(_PREPARE_S)
    await stage.kill_handler(restart_after_s=5.0)
    await stage.wait(2.0)
    await stage.withdraw(event)
    stage.substitute(None)
    await stage.wait(10.0 + _RECOVERY_S)


async def _still_listed(stage: Stage) -> None:
    await begin(stage)
    event = await stage.publish("Reboot", notice_s=_SHORT_NOTICE_S)
    await stage.until_started(event, within_s=_SHORT_NOTICE_S + 5.0)
    stage.substitute(still_listed(event))
    await stage.wait(14.0)
    stage.substitute(None)
    await stage.wait(SETTLE_S)


async def _second_impact(stage: Stage) -> None:
    await begin(stage)
    event = await stage.publish("Reboot", notice_s=_SHORT_NOTICE_S)
    await stage.until_started(event, within_s=_SHORT_NOTICE_S + 5.0)
    stage.substitute(still_listed(event))
    await stage.wait(6.0)
    await stage.reboot_vm()
    await stage.wait(4.0)
    stage.substitute(None)
    await stage.wait(6.0 + _RECOVERY_S)


async def _one_after_the_other(stage: Stage) -> None:
    await begin(stage)
    first = await stage.publish("Reboot", notice_s=_SHORT_NOTICE_S)
    await stage.until_over(first, within_s=_SHORT_NOTICE_S + 10.0)
    await stage.wait(8.0)
    second = await stage.publish("Redeploy", notice_s=_SHORT_NOTICE_S)
    await stage.until_started(second, within_s=_SHORT_NOTICE_S + 5.0)
    await stage.wait(SETTLE_S)


CASES: tuple[Case, ...] = (
    Case(
        id="afterwards-reboot",
        title="The reboot was carried out, and the event is gone.",
        reason="Nothing says that an event has ended, except that it is no longer listed. Nodes stayed out of service "
        "because nothing brought them back.",
        sources=("ClusterLabs/resource-agents#2025", "kubereboot/kured#63", "kubereboot/kured#955"),
        profiles=APPROVERS,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=_carried_out,
        demands=(_RECOVERED, does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-withdrawn",
        title="The event is withdrawn before it starts.",
        reason="A handler that can prepare and not recover stays prepared for an event that never comes.",
        sources=("aws/aws-node-termination-handler#61", "https://github.com/microsoft/ai4s-jobq"),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_withdrawn,
        demands=(_RECOVERED, does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-withdrawn-after-approval",
        title="The event is withdrawn after it was approved.",
        reason="An approval does not start an event at once where a host is shared, and the event can still be "
        "withdrawn. A handler that waits for Started waits forever.",
        sources=(DOCUMENTATION, "aws/aws-node-termination-handler#61"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        script=_withdrawn_after_approval,
        demands=(_RECOVERED, does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-over-while-down",
        title="The event disappears while the handler is not running.",
        reason="After its start the handler finds no event, and must know that it had prepared for one. A health "
        "attribute of −1000000 stayed on a node until somebody changed it by hand.",
        sources=("ClusterLabs/resource-agents#2025", "kubereboot/kured#63"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        needs=frozenset({Need.CONTROL}),
        script=_over_while_down,
        demands=(if_survives_restart(_RECOVERED), does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-still-listed",
        title="The reboot has happened, and the event is still listed as Started for a while.",
        reason="Events stay listed for a while after their impact. A handler that starts with the VM drains it a "
        "second time.",
        sources=("aws/aws-node-termination-handler#75", "aws/aws-node-termination-handler#65"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_still_listed,
        demands=(if_survives_restart(prepared_at_most_once()), does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-second-impact",
        title="The VM reboots a second time while the event is still Started.",
        reason="The documentation allows several impacts during one event. Only its disappearance says that it is "
        "over.",
        sources=(DOCUMENTATION,),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_second_impact,
        demands=(if_survives_restart(recovered(within_s=14.0, at_most_s=18.0)), does_not_exit(), still_polls()),
    ),
    Case(
        id="afterwards-next-event",
        title="A second event follows soon after the first one is over.",
        reason="Handlers stopped watching after their first event, or took the second for one that they had handled.",
        sources=("maksim-paskal/aks-node-termination-handler#43", DOCUMENTATION),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        script=_one_after_the_other,
        demands=(
            noticed(1).with_remedy(remedies.KEEP_POLLING),
            reacted(1, already_counts=True).with_remedy(remedies.HANDLE_NEXT_EVENT),
            does_not_exit(),
        ),
    ),
)
