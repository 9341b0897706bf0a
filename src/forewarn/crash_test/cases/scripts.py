"""Scripts and sets of profiles that many cases share.

A script factory takes the kind of the event: Reboot for handlers that prepare for maintenance, Preempt for those that
save work before an eviction. A script that begins when the handler polls waits for that for at most 30 s (`begin`), and
then goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forewarn.crash_test import remedies
from forewarn.crash_test.answers import SpoiledAnswer, edited_documents
from forewarn.crash_test.case import Case, Demand, Layout, Script
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.demands import noticed, noticed_before_start, reacted
from forewarn.crash_test.program_demands import does_not_exit, polls_again
from forewarn.crash_test.stage import Stage, StageEvent

# Substitute answers that name VMs or events of the running case, which only its script knows.


def listed_with(*names: str) -> SpoiledAnswer:
    """Make a substitute: polls get events that are also for these VMs, named first in their Resources."""

    def edit(document: dict[str, object]) -> None:
        for resources in _resources(document):
            resources[:0] = [name for name in names if name not in resources]

    return edited_documents(f"events that list {', '.join(names)} too", edit)


def renamed_vm(name: str, new_name: str) -> SpoiledAnswer:
    """Make a substitute: the Resources of every event in a document call the VM `name` `new_name`."""

    def edit(document: dict[str, object]) -> None:
        for resources in _resources(document):
            resources[:] = [new_name if item == name else item for item in resources]

    return edited_documents(f"{name} called {new_name}", edit)


def still_listed(event: StageEvent) -> SpoiledAnswer:
    """Make a substitute: polls get this event as Started although it is over, as after a real impact."""

    def edit(document: dict[str, object]) -> None:
        events = document["Events"]
        if not isinstance(events, list):
            return
        if event.id not in {item.get("EventId") for item in events if isinstance(item, dict)}:
            events.append(_started(event))

    return edited_documents("the event still listed as Started", edit)


def _started(event: StageEvent) -> dict[str, object]:
    return {
        "EventId": event.id,
        "EventStatus": "Started",
        "EventType": event.kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(event.vms),
        "NotBefore": "",
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def _resources(document: dict[str, object]) -> list[list[object]]:
    events = document["Events"]
    found = [event.get("Resources") for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    return [item for item in found if isinstance(item, list)]


MAINTENANCE = frozenset({HandlerProfile.MAINTENANCE})
OBSERVED = frozenset({HandlerProfile.MAINTENANCE, HandlerProfile.OBSERVER})  # also for handlers that only report events
ALL_BUT_SPOT = frozenset({HandlerProfile.MAINTENANCE, HandlerProfile.CLUSTER, HandlerProfile.OBSERVER})
APPROVERS = frozenset({HandlerProfile.MAINTENANCE, HandlerProfile.CLUSTER})
CLUSTER = frozenset({HandlerProfile.CLUSTER})
SPOT = frozenset({HandlerProfile.SPOT})
EVERY_PROFILE = frozenset(HandlerProfile)

DOCUMENTATION = "https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"
METADATA_DOCUMENTATION = "https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service"

NOTICE_S = 17.0  # of a Reboot; the 15 minutes of production would make a crash test take hours
PREEMPT_NOTICE_S = 30.0  # as in production
LONGEST_PAUSE_S = 35.0  # that a handler may make after errors
SETTLE_S = 3.0  # after the start of an event, before a case ends
_FIRST_POLL_WITHIN_S = 30.0  # on a busy machine a program takes long to start

ScriptFactory = Callable[[str], Script]  # takes the kind of the event

# What a handler must do after its polls were not answered for a while.
ENDURES = (
    polls_again(at_most_s=LONGEST_PAUSE_S),
    noticed().with_remedy(remedies.KEEP_POLLING),
    reacted().with_remedy(remedies.ACT_AFTER_ERRORS),
    does_not_exit(),
)


def understands(remedy: str, *, to_get_it: str = remedies.POLL_OFTEN) -> tuple[Demand, ...]:
    """Return what a handler must do when it gets an unusual answer that it must understand.

    `remedy` helps a handler that does not react to the event, `to_get_it` one whose polls do not get it.
    """
    return (
        noticed_before_start(margin_s=5.0, least_s=1.0, despite_disturbance=True).with_remedy(to_get_it),
        reacted(despite_disturbance=True).with_remedy(remedy),
        does_not_exit(),
    )


def notice_of(kind: str) -> float:
    """Return the notice, in seconds, with which scripts publish an event: 30 of a Preempt, else 17."""
    return PREEMPT_NOTICE_S if kind == "Preempt" else NOTICE_S


async def begin(stage: Stage) -> None:
    """Wait until the handler of the judged VM polls, or for 30 s of the service's clock if it does not."""
    await stage.until_polled(within_s=_FIRST_POLL_WITHIN_S)


def announce(kind: str, *, notice_s: float | None = None, vm_number: int | None = None) -> Script:
    """Return a script that publishes an event and waits until it has started."""
    notice = notice_of(kind) if notice_s is None else notice_s

    async def script(stage: Stage) -> None:
        await begin(stage)
        vm = None if vm_number is None else stage.neighbours[vm_number]
        event = await stage.publish(kind, vm=vm, notice_s=notice)
        await stage.until_started(event, within_s=notice + 5.0)
        await stage.wait(SETTLE_S)

    return script


def announce_with(answer: Callable[[], SpoiledAnswer]) -> ScriptFactory:
    """Return a script factory: give a substitute answer while an event is published, until it has started."""

    def script_for(kind: str) -> Script:
        async def script(stage: Stage) -> None:
            await begin(stage)
            stage.substitute(answer())
            event = await stage.publish(kind, notice_s=notice_of(kind))
            await stage.until_started(event, within_s=notice_of(kind) + 5.0)
            stage.substitute(None)
            await stage.wait(SETTLE_S)

        return script

    return script_for


def announce_after(
    answer: Callable[[], SpoiledAnswer], *, lasts_s: float = 6.0, at_start: bool = False, times: int | None = None
) -> ScriptFactory:
    """Return a script factory: give a substitute for `lasts_s`; then answer correctly, with an event.

    When it is over, one event of the judged VM is published: a Preempt at once, one of another kind when the handler
    polls again. A pause after errors does no harm within the notice of production, but would use up the notice of a
    script.
    """

    def script_for(kind: str) -> Script:
        async def script(stage: Stage) -> None:
            if not at_start:
                await begin(stage)
            stage.substitute(answer(), times=times)
            await stage.wait(lasts_s)
            stage.substitute(None)
            if kind != "Preempt" and not await stage.until_polled(within_s=LONGEST_PAUSE_S + 2.0):
                return
            event = await stage.publish(kind, notice_s=notice_of(kind))
            await stage.until_started(event, within_s=notice_of(kind) + 5.0)
            await stage.wait(SETTLE_S)

        return script

    return script_for


def rest(seconds: float) -> Script:
    """Return a script that waits until the handler polls, and then does nothing for this time."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        await stage.wait(seconds)

    return script


def rest_with(answer: Callable[[], SpoiledAnswer], seconds: float) -> Script:
    """Return a script that gives a substitute answer for a time, once the handler polls, without an event."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        stage.substitute(answer())
        await stage.wait(seconds)
        stage.substitute(None)
        await stage.wait(SETTLE_S)

    return script


def preempt_variant(case: Case, script: Script) -> Case:
    """Return a copy of the case for handlers on a Spot VM, with `script` in place of the case's own."""
    return replace(
        case,
        id=f"{case.id}-preempt",
        title=f"{case.title.removesuffix('.')}, before an eviction.",
        profiles=SPOT,
        layout=Layout.SPOT,
        script=script,
    )
