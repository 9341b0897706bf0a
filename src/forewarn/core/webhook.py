"""Webhook subscriptions: who receives which event statuses, and the cursor of each in the history."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.resource_ids import ROOT_RESOURCE


class WebhookSchema(StrEnum):
    """The message format of a webhook: `eventgrid` (Event Grid) or `cloudevents` (CloudEvents 1.0)."""

    EVENT_GRID = "eventgrid"
    CLOUD_EVENTS = "cloudevents"


class EventGridStatus(StrEnum):
    """The status of an event in webhook messages, in Event Grid's words."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"  # it had started, and is over
    CANCELED = "Canceled"  # it ended without a start


class WebhookSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A webhook: the receiver's address, which events it receives, and its position in the history.

    Messages come in the order of the history, each repeated until the receiver accepts it, so one may come twice, and
    others wait for it.
    """

    id: str  # a GUID, lower case
    url: str  # of the receiver, http or https
    secret: str  # with which messages are signed
    schema: WebhookSchema = WebhookSchema.EVENT_GRID
    resource: str = ROOT_RESOURCE  # only events of VMs within this resource
    statuses: tuple[EventGridStatus, ...] = tuple(EventGridStatus)  # statuses to notify about; by default all
    opted_in_only: bool = False  # only events of VMs with `publish_outside`
    rollouts: bool = False  # also what happens to rollouts, such as a pause, their end, or a hold; only over everything
    created_by: str = ""  # the name of who added it
    created_at: LabTime = 0
    cursor: int = 0  # all history entries up to this number were delivered or did not concern it


class WebhookCursor(msgspec.Struct, frozen=True, kw_only=True):
    """The new position of a webhook in the history. A commit never moves a webhook back, or restores a removed one."""

    webhook_id: str  # of the subscription, lower case
    seq: int  # the new value of `WebhookSubscription.cursor`
