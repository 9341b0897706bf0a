"""Notifications of event changes for webhooks, rendered as Event Grid or CloudEvents messages.

They are computed from history entries. The EventStatus is that of the entry, not of the event when the message is
sent. The resource is the one that corresponds to the event's scope in Azure: a VM, an availability set, a scale set
or a cloud service.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Vm, vm_key
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.resource_ids import is_within_resource, scope_resource_id, vm_resource_id
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from forewarn.protocol.dates import http_date
from forewarn.protocol.versions import NEWEST_VERSION

EVENT_TYPE = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"  # of Event Grid

_NAMESPACE = UUID("5f1de9a4-6d0f-4a53-9a55-0c1f3b8f7a10")
_DATA_API_VERSION = "2024-07-01"
_STATUS_BY_ENTRY_KIND = {
    EntryKind.PUBLISHED: EventGridStatus.SCHEDULED,
    EntryKind.STARTED: EventGridStatus.STARTED,
    EntryKind.FINISHED: EventGridStatus.COMPLETED,  # also if acts failed: the maintenance is over
    EntryKind.WITHDRAWN: EventGridStatus.CANCELED,
}


class EventNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the status of one event, about which webhooks are notified; `at` is lab time."""

    status: EventGridStatus
    at: float
    event: Event
    resource: str  # the resource id of its scope
    subscription_id: str
    location: str

    @property
    def id(self) -> str:
        """The message id: the same for every receiver and every retry, so that receivers find duplicates."""
        return str(uuid5(_NAMESPACE, f"{self.event.id}/{self.status}{self.resource}".casefold()))

    @property
    def subject(self) -> str:
        """The resource id that Azure would give the event, below `resource`."""
        return f"{self.resource}/providers/microsoft.maintenance/scheduledevents/{self.event.id.lower()}"


def event_vm_keys(event: Event) -> tuple[str, ...]:
    """Return the keys of the VMs that the event lists, in its order, also of those that were removed."""
    subscription, group = event.scope_id.partition(":")[2].split("/")[:2]
    return tuple(vm_key(subscription, group, name) for name in event.vms)


def may_notify(entry: HistoryEntry) -> bool:
    """Return whether entries of this kind can notify: published, started, finished and withdrawn."""
    return entry.what in _STATUS_BY_ENTRY_KIND


def notification_for(entry: HistoryEntry, event: Event, vms: Sequence[Vm]) -> EventNotification | None:
    """Return the notification of a history entry about its event; None if no webhook gets one.

    That is so for other kinds of entries, for unlisted events and without `vms`: the VMs, also removed ones, that the
    event lists.
    """
    status = _STATUS_BY_ENTRY_KIND.get(entry.what)
    if status is None or not event.listed or not vms:
        return None
    # A VM may have been deleted and added to another scope since; prefer one that is still in the event's scope.
    vm = next((vm for vm in vms if vm.scope_id == event.scope_id), vms[0])
    return EventNotification(
        status=status,
        at=entry.at,
        event=event,
        resource=scope_resource_id(vm),
        subscription_id=vm.subscription_id,
        location=vm.location,
    )


def is_subscribed(webhook: WebhookSubscription, notification: EventNotification, vms: Sequence[Vm]) -> bool:
    """Return whether the webhook's filters let the notification pass: status, resource, and VMs' consent.

    One VM of the event (`vms`) within the webhook's resource is enough. With `opted_in_only`, one of them must have
    `publish_outside`.
    """
    if notification.status not in webhook.happenings:
        return False
    if webhook.opted_in_only and not any(vm.publish_outside for vm in vms):
        return False
    resources = (notification.resource, *map(vm_resource_id, vms))
    return any(is_within_resource(webhook.over, resource) for resource in resources)


class NotificationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a webhook, before it is rendered in one of the two schemas."""

    id: str
    type: str
    topic: str  # Event Grid: the subscription
    source: str  # CloudEvents: the resource
    subject: str
    at: float  # shown as UTC
    data: dict[str, Any]
    data_version: str = "3.0"


def notification_message(notification: EventNotification) -> NotificationMessage:
    """Return the message about a notification, the same for both schemas and every receiver."""
    return NotificationMessage(
        id=notification.id,
        type=EVENT_TYPE,
        topic=f"/subscriptions/{notification.subscription_id}",
        source=notification.resource,
        subject=notification.subject,
        at=notification.at,
        data=_message_data(notification),
    )


def render_message(message: NotificationMessage, schema: WebhookSchema) -> bytes:
    """Return the JSON body of a message: a CloudEvents object, or an Event Grid array with one event."""
    content = _cloud_event(message) if schema is WebhookSchema.CLOUD_EVENTS else [_event_grid_event(message)]
    return msgspec.json.encode(content)


def _event_grid_event(message: NotificationMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "topic": message.topic,
        "subject": message.subject,
        "data": message.data,
        "eventType": message.type,
        "dataVersion": message.data_version,
        "metadataVersion": "1",
        "eventTime": _iso_time(message.at),
    }


def _cloud_event(message: NotificationMessage) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": message.source,
        "type": message.type,
        "subject": message.subject,
        "time": _iso_time(message.at),
        "datacontenttype": "application/json",
        "data": message.data,
    }


def _message_data(notification: EventNotification) -> dict[str, Any]:
    event_id = notification.event.id.lower()  # upper case is what VMs see
    info = {
        "id": notification.subject,
        "name": event_id,
        "type": "microsoft.maintenance/scheduledEvents",
        "location": notification.location,
        "properties": _event_properties(notification),
    }
    return {"resourceInfo": info, "apiVersion": _DATA_API_VERSION}


def _event_properties(notification: EventNotification) -> dict[str, Any]:
    event, rules = notification.event, notification.event.rules
    has_started = notification.status in (EventGridStatus.STARTED, EventGridStatus.COMPLETED)
    return {
        "DurationInSeconds": rules.duration_s,
        "Description": rules.description,
        "EventId": event.id.lower(),
        "EventSource": rules.source,
        "EventStatus": notification.status,
        "EventType": rules.kind,
        "NotBefore": "" if has_started else http_date(event.not_before),
        "Resources": event.vms,
        "ResourceType": "VirtualMachine",
        "ScheduledEventApiVersion": NEWEST_VERSION,
    }


def _iso_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
