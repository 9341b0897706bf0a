"""Webhook subscriptions: who receives which event statuses, and the cursor of each in the history."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.core.resource_ids import ROOT_RESOURCE


class WebhookSchema(StrEnum):
    """In which form a webhook is told."""

    EVENT_GRID = "eventgrid"
    CLOUD_EVENTS = "cloudevents"


class EventGridStatus(StrEnum):
    """What is told of an event, by the words Azure's Event Grid has for it."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELED = "Canceled"


class WebhookSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    url: str
    secret: str  # signs what is sent
    schema: WebhookSchema = WebhookSchema.EVENT_GRID
    over: str = ROOT_RESOURCE  # only what happens to VMs within this resource
    happenings: tuple[EventGridStatus, ...] = tuple(EventGridStatus)
    opted_in_only: bool = False  # only VMs whose policy publishes outside
    by: str = ""
    at: float = 0
    cursor: int = 0  # everything up to this number of the history has been told, or is none of its business


class WebhookCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a webhook has come. One that is gone by now stays gone."""

    webhook_id: str
    seq: int
