"""An event as a guest meets it, and whether it is about a VM."""

from __future__ import annotations

from forewarn.protocol.codec import ReceivedEvent

Event = ReceivedEvent


def lists(event: Event, name: str) -> bool:
    """Whether this VM is among the resources: without case, and with or without the underscore of 2017 (spec §3)."""
    own = name.casefold()
    return any(resource.casefold() in (own, f"_{own}") for resource in event.resources)


def key_of(event: Event) -> str:
    """What an event is told from others by; one that came without an id is known by whom it hits."""
    return event.id.upper() or f"{event.kind} of {', '.join(event.resources)}"
