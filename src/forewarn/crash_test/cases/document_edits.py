"""Substitute answers that name VMs or events of the running case, which only its script knows."""

from __future__ import annotations

from forewarn.crash_test.answers import SpoiledAnswer, edited_documents
from forewarn.crash_test.stage import StageEvent


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
