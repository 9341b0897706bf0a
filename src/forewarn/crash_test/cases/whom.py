"""Cases on whom an event is for: the handler's own VM, a neighbour, or several; and how VMs are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.answers import SpoiledAnswer
from forewarn.crash_test.approval_demands import approves_only_own, not_approved
from forewarn.crash_test.case import Case, Layout, Script
from forewarn.crash_test.cases.scripts import (
    ALL_BUT_SPOT,
    APPROVERS,
    DOCUMENTATION,
    NOTICE_S,
    OBSERVED,
    SETTLE_S,
    SPOT,
    announce,
    announce_with,
    begin,
    listed_with,
    preempt_variant,
    renamed_vm,
    understands,
)
from forewarn.crash_test.demands import not_prepared_for, reacted
from forewarn.crash_test.program_demands import does_not_exit
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_SUBSTRING_MATCH = (
    "https://github.com/Azure/Avere/blob/3e920b8699dee0225b68804e67944cfa70b575d6"
    "/src/terraform/examples/e2e/07.compute.farm/terminate.sh"
)
_WAIT_FOR_REACTION_S = 12.0  # in which a handler would have reacted to an event that is not its own


def _neighbour_only(answer: Callable[[Stage], SpoiledAnswer] | None = None) -> Script:
    """Publish an event of a neighbour, perhaps with changed documents, and give the handler time to react."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        if answer is not None:
            stage.substitute(answer(stage))
        event = await stage.publish("Reboot", vm=stage.neighbours[0], notice_s=60.0)
        await stage.until_delivered(event, within_s=15.0)
        await stage.wait(_WAIT_FOR_REACTION_S)

    return script


def _own_with(answer: Callable[[Stage], SpoiledAnswer]) -> Script:
    async def script(stage: Stage) -> None:
        await begin(stage)
        stage.substitute(answer(stage))
        event = await stage.publish("Reboot", notice_s=NOTICE_S)
        await stage.until_started(event, within_s=NOTICE_S + 5.0)
        stage.substitute(None)
        await stage.wait(SETTLE_S)

    return script


def _in_order(*vm_numbers: int | None) -> Script:
    """Publish a reboot of each of these neighbours (None: of the VM itself), one right after the other."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        own = None
        for number in vm_numbers:
            vm = None if number is None else stage.neighbours[number]
            event = await stage.publish("Reboot", vm=vm, notice_s=NOTICE_S)
            own = event if number is None else own
        if own is not None:
            await stage.until_started(own, within_s=NOTICE_S + 5.0)
        await stage.wait(SETTLE_S)

    return script


_UPPER_CASE = Case(
    id="whom-upper-case",
    title="The event names the VM in upper case.",
    reason="Azure compares names without regard to case, and documents do not always spell a VM's name as its metadata "
    "does. A handler that compares exactly does not find its VM.",
    sources=("https://github.com/awesomenix/drainsafe", DOCUMENTATION),
    profiles=OBSERVED,
    severity=Severity.LOSES_WORK,
    is_rare=True,
    script=announce_with(answers.upper_case_names)("Reboot"),
    demands=understands(remedies.COMPARE_NAMES),
)
_NEIGHBOUR_ONLY = Case(
    id="whom-neighbour-only",
    title="Only a neighbour will be rebooted.",
    reason="All VMs of an availability set or scale set see all its events. A handler that does not read Resources "
    "stops every VM of the set for an event of one VM.",
    sources=("https://github.com/castai/spot-handler", "https://github.com/microsoft/ai4s-jobq", DOCUMENTATION),
    profiles=APPROVERS,
    severity=Severity.TOUCHES_ANOTHER_VM,
    layout=Layout.SET,
    script=_neighbour_only(),
    demands=(not_prepared_for(), not_approved(), does_not_exit()),
)

CASES: tuple[Case, ...] = (
    _NEIGHBOUR_ONLY,
    replace(
        _NEIGHBOUR_ONLY,
        id="whom-neighbour-evicted",
        title="Only a neighbour in the scale set will be evicted.",
        profiles=SPOT,
        layout=Layout.SCALE_SET,
        script=_neighbour_only(lambda stage: answers.unknown_event_type("Preempt")),
    ),
    Case(
        id="whom-scale-set-name",
        title="The VM belongs to a scale set, and its host name differs from its VM name.",
        reason="In a scale set the event lists set_7 while the host name is set000007. A handler that compares host "
        "names never finds its VM.",
        sources=("MicrosoftDocs/azure-docs#62522", "ClusterLabs/resource-agents#1984"),
        profiles=ALL_BUT_SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SCALE_SET,
        script=announce("Reboot"),
        demands=understands(remedies.COMPARE_NAMES),
    ),
    Case(
        id="whom-scale-set-name-preempt",
        title="A VM of a scale set is evicted, and its host name differs from its VM name.",
        reason="Most Spot VMs are in scale sets, where host names are not VM names.",
        sources=("MicrosoftDocs/azure-docs#62522",),
        profiles=SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SCALE_SET,
        script=_own_with(lambda stage: answers.unknown_event_type("Preempt")),
        demands=understands(remedies.COMPARE_NAMES),
    ),
    Case(
        id="whom-plain-name",
        title="The VM is in no set, and its name has no underscore.",
        reason="A handler that was written for scale sets splits the name at its underscore and stops where there is "
        "none.",
        sources=(
            "https://github.com/180254/scheduled-events-operator-2",
            "maksim-paskal/aks-node-termination-handler#75",
        ),
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        script=announce("Reboot"),
        demands=understands(remedies.COMPARE_NAMES),
    ),
    Case(
        id="whom-second-is-mine",
        title="Two events are listed, and the second one is for the VM.",
        reason="A handler that looks only at the first event, or returns after the first match, does not see the "
        "second one.",
        sources=("https://github.com/maksim-paskal/aks-node-termination-handler", DOCUMENTATION),
        profiles=ALL_BUT_SPOT,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=_in_order(0, None),
        demands=(reacted(1).with_remedy(remedies.READ_EVERY_EVENT), does_not_exit()),
    ),
    Case(
        id="whom-first-is-mine",
        title="Two events are listed, and the first one is for the VM.",
        reason="A handler that remembers only the last event of a document approves the neighbour's event, or none.",
        sources=("https://github.com/webdevops/azure-scheduledevents-manager",),
        profiles=APPROVERS,
        severity=Severity.TOUCHES_ANOTHER_VM,
        layout=Layout.SET,
        script=_in_order(None, 0),
        demands=(approves_only_own(), not_approved(1), does_not_exit()),
    ),
    Case(
        id="whom-three-at-once",
        title="Each of the three VMs of a set has its own event at the same time.",
        reason="A handler must act for its own VM, and leave the others to theirs.",
        sources=(
            "Azure-Samples/virtual-machines-scheduled-events-discover-endpoint-for-non-vnet-vm#11",
            DOCUMENTATION,
        ),
        profiles=APPROVERS,
        severity=Severity.LOSES_WORK,
        layout=Layout.SET,
        script=_in_order(0, None, 1),
        demands=(reacted(1).with_remedy(remedies.READ_EVERY_EVENT), does_not_exit()),
    ),
    Case(
        id="whom-several-domains",
        title="One event lists VMs of several update domains, this VM last.",
        reason="An event once listed VMs of more than one update domain, contrary to the documentation. A handler that "
        "reads only the first name does not find its VM.",
        sources=("MicrosoftDocs/azure-docs#66115",),
        profiles=ALL_BUT_SPOT,
        severity=Severity.LOSES_WORK,
        is_rare=True,
        layout=Layout.SET,
        script=_own_with(lambda stage: listed_with(*stage.neighbours)),
        demands=understands(remedies.COMPARE_NAMES),
    ),
    _UPPER_CASE,
    preempt_variant(_UPPER_CASE, announce_with(answers.upper_case_names)("Preempt")),
    replace(
        _UPPER_CASE,
        id="whom-lower-case",
        title="The event names the VM in lower case.",
        layout=Layout.CAPITALS,
        script=announce_with(answers.lower_case_names)("Reboot"),
    ),
    Case(
        id="whom-longer-name",
        title="The event is for a VM whose name begins with the name of this one.",
        reason="A script that searches the document for its name as text takes web-10 for web-1, and stops the wrong "
        "VM.",
        sources=(_SUBSTRING_MATCH,),
        profiles=APPROVERS,
        severity=Severity.TOUCHES_ANOTHER_VM,
        layout=Layout.SET,
        script=_neighbour_only(lambda stage: renamed_vm(stage.neighbours[0], f"{stage.vm}0")),
        demands=(
            not_prepared_for().with_remedy(remedies.COMPARE_NAMES),
            not_approved().with_remedy(remedies.COMPARE_NAMES),
            does_not_exit(),
        ),
    ),
)
