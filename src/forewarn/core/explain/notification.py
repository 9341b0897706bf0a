"""Notifications of event changes for webhooks, rendered as Event Grid or CloudEvents messages.

They are computed from history entries. The EventStatus is that of the entry, not of the event when the message is
sent. The resource is the one that corresponds to the event's scope in Azure: a VM, an availability set, a scale set
or a cloud service.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

import msgspec

from forewarn.base.times import LabTime, time_text
from forewarn.core.event import Event
from forewarn.core.fleet import Vm, vm_key
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, RolloutState
from forewarn.core.resource_ids import is_within_resource, scope_resource_id, vm_resource_id
from forewarn.core.rollout import PUBLISHES_NOTHING
from forewarn.core.waves import rollout_target_text
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from forewarn.protocol.dates import http_date
from forewarn.protocol.versions import NEWEST_VERSION, event_fields, version_lists_kind

EVENT_TYPE = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"  # of Event Grid

_NAMESPACE = UUID("5f1de9a4-6d0f-4a53-9a55-0c1f3b8f7a10")
_DATA_API_VERSION = "2024-07-01"
_STATUS_BY_ENTRY_KIND = {
    EntryKind.PUBLISHED: EventGridStatus.SCHEDULED,
    EntryKind.STARTED: EventGridStatus.STARTED,
    EntryKind.FINISHED: EventGridStatus.COMPLETED,  # even if acts failed: the maintenance is over
    EntryKind.WITHDRAWN: EventGridStatus.CANCELED,
    EntryKind.NOT_NEEDED: EventGridStatus.CANCELED,
}


class EventNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one event's status, of which webhooks are notified."""

    # It is computed from a history entry, so `event` may have moved on to a later status than `status`.

    status: EventGridStatus  # Scheduled, Started, Completed or Canceled: what the change led to
    at: LabTime  # when it changed
    event: Event  # as it is now
    resource: str  # the resource id of its scope in Azure: a VM, availability set, scale set or cloud service
    subscription_id: str  # of one of the VMs that the event lists, as the next two fields
    location: str  # such as westeurope
    version: str = NEWEST_VERSION  # the api-version whose form of an event the message has

    @property
    def id(self) -> str:
        """The id of the message: a GUID computed from the event's id, the status and the resource."""
        # It is the same for every receiver and every retry, so that receivers can find duplicates.
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
    """Return True if the entry says that an event was published, started, ended, withdrawn or not needed."""
    return entry.kind in _STATUS_BY_ENTRY_KIND


def notification_for(entry: HistoryEntry, event: Event, vms: Sequence[Vm]) -> EventNotification | None:
    """Return the notification that a history entry about an event leads to; None if it leads to none.

    `vms` are the VMs that the event lists, even removed ones: resource, subscription, location and api-version come
    from one of them. Filters of webhooks are not applied: see `is_subscribed`.
    """
    status = _STATUS_BY_ENTRY_KIND.get(entry.kind)
    if status is None or not event.listed or not vms:
        return None
    # A VM may have been deleted and added to another scope since; prefer one that is still in the event's scope.
    vm = next((vm for vm in vms if vm.scope_id == event.scope_id), vms[0])
    version = vm.publish_version or NEWEST_VERSION
    if event.rules.kind is None or not version_lists_kind(version, event.rules.kind):
        return None
    return EventNotification(
        version=version,
        status=status,
        at=entry.at,
        event=event,
        resource=scope_resource_id(vm),
        subscription_id=vm.subscription_id,
        location=vm.location,
    )


def is_subscribed(webhook: WebhookSubscription, notification: EventNotification, vms: Sequence[Vm]) -> bool:
    """Return True if the notification passes all filters of the webhook: status, resource and opt-in."""
    if notification.status not in webhook.statuses:
        return False
    counted = [vm for vm in vms if vm.publish_outside or not webhook.opted_in_only]
    resources = (notification.resource, *map(vm_resource_id, counted)) if counted else ()
    return any(is_within_resource(webhook.resource, resource) for resource in resources)


class NotificationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a webhook, before `render_message` puts it in the schema Event Grid or CloudEvents."""

    id: str  # a GUID; the same in each retry
    type: str  # such as EVENT_TYPE
    topic: str  # only in Event Grid: the subscription; `/forewarn` if it is not about an event
    source: str  # only in CloudEvents: the resource; `/forewarn` if it is not about an event
    subject: str  # what it is about: the resource id of an event, `rollouts/ID`, `rollouts` or `webhook`
    at: LabTime  # when it happened; shown as UTC
    data: dict[str, Any]  # the JSON object with the details
    data_version: str = "3.0"  # only in Event Grid: the version of the form of `data`


def notification_message(notification: EventNotification) -> NotificationMessage:
    """Return the message about a notification: its id, subject and time, and the event in Azure's form."""
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
    """Return the JSON body of a message: a CloudEvents object, or an array with one Event Grid event."""
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
        "eventTime": time_text(message.at),
    }


def _cloud_event(message: NotificationMessage) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": message.source,
        "type": message.type,
        "subject": message.subject,
        "time": time_text(message.at),
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
    properties = {
        "DurationInSeconds": rules.duration_s,
        "Description": rules.description,
        "EventId": event.id.lower(),
        "EventSource": rules.source,
        "EventStatus": notification.status,
        "EventType": rules.kind,
        "NotBefore": "" if has_started else http_date(event.not_before),
        "Resources": event.vms,
        "ResourceType": "VirtualMachine",
        "ScheduledEventApiVersion": notification.version,
    }
    listed = (*event_fields(notification.version), "ScheduledEventApiVersion")
    return {name: value for name, value in properties.items() if name in listed}


# Messages to webhooks about rollouts themselves: paused, resumed, ended, on hold (spec §13.5).
#
# They are computed from history entries, as the messages about events are. Azure has none, so they have a type of
# their own.

ROLLOUT_EVENT_TYPE = "Forewarn.RolloutChanged"

_ROLLOUT_NAMESPACE = UUID("0b8f3c1e-4f0a-4d55-8a3e-6a2d9c7e5b21")
_SOURCE = "/forewarn"
_ENTRY_KINDS = frozenset({EntryKind.PAUSED, EntryKind.RESUMED, EntryKind.STOPPED, EntryKind.COMPLETED})


class RolloutNotice(StrEnum):
    """What has happened to a rollout, or to all of them: the `status` in a message to webhooks."""

    PAUSED = "paused"  # by a user, or by a health check that was bad
    WAITING = "waiting"  # its health checks are unclear: it publishes nothing for now
    RESUMED = "resumed"  # by a user, or its checks are clear again
    STOPPED = "stopped"  # by itself: too many VMs failed, or no maintenance window follows
    ABORTED = "aborted"  # by a user
    COMPLETED = "completed"
    HELD = "held"  # all rollouts are on hold
    LIFTED = "lifted"  # the hold on all rollouts is


def may_notify_of_rollout(entry: HistoryEntry) -> bool:
    """Return whether a history entry may lead to a message about a rollout or the hold on all rollouts."""
    return entry.kind in _ENTRY_KINDS and not entry.event_id and not entry.vm


def rollout_message(entry: HistoryEntry, request: MaintenanceRequest | None) -> NotificationMessage | None:
    if not may_notify_of_rollout(entry):
        return None
    data: dict[str, Any] = {"text": entry.text, "by": entry.actor}
    if not entry.request_id:
        status = RolloutNotice.HELD if entry.kind is EntryKind.PAUSED else RolloutNotice.LIFTED
        return _message(entry, "rollouts", {"status": status, **data})
    if request is None or request.rollout is None:
        return None
    rollout = request.rollout
    about = {"rolloutId": request.id, "impact": rollout.impact, "target": rollout_target_text(rollout)}
    return _message(entry, f"rollouts/{request.id}", {"status": _status(entry, rollout.progress), **about, **data})


def _status(entry: HistoryEntry, progress: RolloutState) -> RolloutNotice:
    match entry.kind:
        case EntryKind.PAUSED:
            is_waiting = entry.text.startswith(f"rollout {entry.request_id} {PUBLISHES_NOTHING}")
            return RolloutNotice.WAITING if is_waiting else RolloutNotice.PAUSED
        case EntryKind.RESUMED:
            return RolloutNotice.RESUMED
        case EntryKind.STOPPED:  # these two states are final, so the state of now is that of the entry
            return RolloutNotice.ABORTED if progress is RolloutState.ABORTED else RolloutNotice.STOPPED
    return RolloutNotice.COMPLETED


def _message(entry: HistoryEntry, subject: str, data: dict[str, Any]) -> NotificationMessage:
    return NotificationMessage(
        id=str(uuid5(_ROLLOUT_NAMESPACE, f"{entry.seq}/{subject}/{data['status']}")),
        type=ROLLOUT_EVENT_TYPE,
        topic=_SOURCE,
        source=_SOURCE,
        subject=subject,
        at=entry.at,
        data=data,
        data_version="1",
    )
