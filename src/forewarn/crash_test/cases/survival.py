"""Cases on survival: the handler is killed, its VM reboots, its clock is wrong, its disk is full."""

from __future__ import annotations

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.approval_demands import approved_at_most
from forewarn.crash_test.case import Case, Layout, Need, Script
from forewarn.crash_test.cases.scripts import (
    DOCUMENTATION,
    MAINTENANCE,
    NOTICE_S,
    OBSERVED,
    SETTLE_S,
    SPOT,
    announce,
    begin,
    understands,
)
from forewarn.crash_test.demands import (
    if_survives_restart,
    noticed,
    noticed_before_start,
    prepared_at_most_once,
    prepared_before_start,
    reacted,
)
from forewarn.crash_test.program_demands import does_not_exit, polls_after_restart, still_polls
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_LONG_NOTICE_S = 28.0  # of an event during which the handler or its VM starts again
_CLOCK_OFFSET_S = 600.0
_MEMORY_ONLY = "https://github.com/maksim-paskal/aks-node-termination-handler"
_DASK_PLUGIN = "https://github.com/dask/dask-cloudprovider/blob/main/dask_cloudprovider/azure/utils.py"


async def _wait_for_start(stage: Stage, *, kills_after_s: float | None, reboots: bool = False) -> None:
    """Announce a reboot that no approval starts; kill the handler this long after delivery, or at once."""
    await begin(stage)
    stage.substitute(answers.approval_refused(503))
    event = await stage.publish("Reboot", notice_s=_LONG_NOTICE_S)
    if kills_after_s is not None:
        await stage.until_delivered(event, within_s=12.0)
        await stage.wait(kills_after_s)
    if reboots:
        await stage.reboot_vm()
    else:
        await stage.kill_handler(restart_after_s=1.0)
    await stage.until_started(event, within_s=_LONG_NOTICE_S + 5.0)
    stage.substitute(None)
    await stage.wait(SETTLE_S)


async def _killed_before_delivery(stage: Stage) -> None:
    await _wait_for_start(stage, kills_after_s=None)


async def _killed_while_preparing(stage: Stage) -> None:
    await _wait_for_start(stage, kills_after_s=0.2)


async def _killed_after_preparing(stage: Stage) -> None:
    await _wait_for_start(stage, kills_after_s=6.0)


async def _rebooted_while_preparing(stage: Stage) -> None:
    await _wait_for_start(stage, kills_after_s=0.2, reboots=True)


async def _rebooted_after_preparing(stage: Stage) -> None:
    await _wait_for_start(stage, kills_after_s=6.0, reboots=True)


async def _killed_three_times(stage: Stage) -> None:
    await begin(stage)
    for _ in range(3):
        await stage.kill_handler(restart_after_s=0.5)
        await stage.until_polled(within_s=8.0)
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(event, within_s=NOTICE_S + 5.0)
    await stage.wait(SETTLE_S)


def _restarted_at_rest(kind: str) -> Script:
    async def script(stage: Stage) -> None:
        await begin(stage)
        await stage.reboot_vm()
        await stage.until_polled(within_s=12.0)
        event = await stage.publish(kind, notice_s=NOTICE_S)
        await stage.until_started(event, within_s=NOTICE_S + 5.0)
        await stage.wait(SETTLE_S)

    return script


async def _disk_stays_full(stage: Stage) -> None:
    await begin(stage)
    await stage.fill_disk()
    await stage.wait(6.0)
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_delivered(event, within_s=12.0)
    await stage.wait(5.0)
    await stage.free_disk()
    await stage.wait(SETTLE_S)


_STARTS_AGAIN = does_not_exit().with_remedy(remedies.START_AGAIN)

CASES: tuple[Case, ...] = (
    Case(
        id="survival-killed-before-delivery",
        title="The handler is killed right after the event was published, and starts again.",
        reason="After its start a handler must find an event that it has never seen.",
        sources=("taskcluster/taskcluster#6805", _MEMORY_ONLY),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        needs=frozenset({Need.CONTROL}),
        script=_killed_before_delivery,
        demands=(
            if_survives_restart(reacted()).with_remedy(remedies.ACT_ON_FIRST_DOCUMENT),
            noticed_before_start(margin_s=5.0).with_remedy(remedies.POLL_AT_START),
            _STARTS_AGAIN,
        ),
    ),
    Case(
        id="survival-killed-while-preparing",
        title="The handler is killed when it has just got the event, and starts again.",
        reason="A handler that notes an event before it acts believes after its restart that it has acted.",
        sources=(_MEMORY_ONLY, "NVIDIA/NVSentinel#121"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.CONTROL}),
        script=_killed_while_preparing,
        demands=(
            if_survives_restart(prepared_before_start(already_counts=True)).with_remedy(remedies.NOTE_SUCCESS_ONLY),
            _STARTS_AGAIN,
            polls_after_restart(),
        ),
    ),
    Case(
        id="survival-killed-after-preparing",
        title="The handler is killed after it prepared, and starts again before the event.",
        reason="A handler whose memory is lost with its process prepares again for the same event.",
        sources=(_MEMORY_ONLY, "https://github.com/giantswarm/azure-scheduled-events"),
        profiles=MAINTENANCE,
        severity=Severity.NOISE,
        needs=frozenset({Need.CONTROL}),
        script=_killed_after_preparing,
        demands=(
            if_survives_restart(prepared_at_most_once(until_start=True)),
            if_survives_restart(approved_at_most(times=2)),
            _STARTS_AGAIN,
            still_polls(),
        ),
    ),
    Case(
        id="survival-killed-three-times",
        title="The handler is killed three times in a row, and then an event comes.",
        reason="Locks, sockets and half-written files of a killed process must not stop the next one from working.",
        sources=("ClusterLabs/resource-agents#1986", _MEMORY_ONLY),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        needs=frozenset({Need.CONTROL}),
        script=_killed_three_times,
        demands=(
            if_survives_restart(reacted()).with_remedy(remedies.START_AGAIN),
            noticed().with_remedy(remedies.START_AGAIN),
            _STARTS_AGAIN,
        ),
    ),
    Case(
        id="survival-rebooted-at-rest",
        title="The VM reboots without any event, and then one comes.",
        reason="A system crash is not announced. The handler must start with the VM and work as before.",
        sources=(DOCUMENTATION,),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        needs=frozenset({Need.NAMESPACES}),
        script=_restarted_at_rest("Reboot"),
        demands=(
            if_survives_restart(reacted()).with_remedy(remedies.START_AGAIN),
            noticed().with_remedy(remedies.START_AGAIN),
            _STARTS_AGAIN,
        ),
    ),
    Case(
        id="survival-rebooted-while-preparing",
        title="The VM reboots when the handler has just got the event, before the event starts.",
        reason="What was prepared in memory is gone, and the event is still listed: the handler must prepare again.",
        sources=(_MEMORY_ONLY, "aws/aws-node-termination-handler#75"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_rebooted_while_preparing,
        demands=(
            if_survives_restart(prepared_before_start(already_counts=True)).with_remedy(remedies.NOTE_SUCCESS_ONLY),
            _STARTS_AGAIN,
            polls_after_restart(),
        ),
    ),
    Case(
        id="survival-rebooted-after-preparing",
        title="The VM reboots after the handler prepared, before the event starts.",
        reason="A reboot inside the VM does not end the platform's event, which still starts later.",
        sources=(DOCUMENTATION, "aws/aws-node-termination-handler#65"),
        profiles=MAINTENANCE,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_rebooted_after_preparing,
        demands=(_STARTS_AGAIN, polls_after_restart(), still_polls()),
    ),
    Case(
        id="survival-clock-behind",
        title="The VM's clock is ten minutes behind the service's.",
        reason="By its own clock the handler has ten minutes more than it really has. The time left is NotBefore minus "
        "the Date of the answer.",
        sources=(_DASK_PLUGIN, DOCUMENTATION),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        clock_offset_s=_CLOCK_OFFSET_S,
        script=announce("Reboot"),
        demands=understands(remedies.USE_SERVICE_CLOCK),
    ),
    Case(
        id="survival-clock-ahead",
        title="The VM's clock is ten minutes ahead of the service's.",
        reason="By the VM's own clock NotBefore has passed when the event appears. A handler that ignores past events "
        "ignores this one.",
        sources=("https://github.com/ledgerscope/Azure.ScheduledEvents", DOCUMENTATION),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        clock_offset_s=-_CLOCK_OFFSET_S,
        script=announce("Reboot"),
        demands=understands(remedies.USE_SERVICE_CLOCK),
    ),
    Case(
        id="survival-clock-behind-preempt",
        title="A Spot VM's clock is ten minutes behind the service's, and it is evicted.",
        reason="A handler that waits until shortly before NotBefore by its own clock is evicted while it waits.",
        sources=(_DASK_PLUGIN, DOCUMENTATION),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        layout=Layout.SPOT,
        clock_offset_s=_CLOCK_OFFSET_S,
        script=announce("Preempt"),
        demands=understands(remedies.USE_SERVICE_CLOCK),
    ),
    Case(
        id="survival-full-disk",
        title="The disk is full when an event comes.",
        reason="A handler that cannot write its state or its log must still poll.",
        sources=(DOCUMENTATION,),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        needs=frozenset({Need.NAMESPACES}),
        script=_disk_stays_full,
        demands=tuple(
            demand.with_remedy(remedies.WORK_WITHOUT_DISK) for demand in (noticed(), does_not_exit(), still_polls())
        ),
    ),
)
