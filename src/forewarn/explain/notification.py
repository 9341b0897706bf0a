"""What somebody outside is told of an event, read off the history: the facts, and the two forms they are told in.

The EventStatus is that of the entry, not of the event by the time it is delivered. The resource told of is what the
scope is in Azure's API, since an event lies within one scope: a VM, an availability set, a scale set, a cloud service.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Vm, vm_key
from forewarn.core.history import Entry, What
from forewarn.core.resource import availability_set_resource, covers, resource_of, scale_set_resource
from forewarn.core.webhook import Happening, Schema, Webhook
from forewarn.protocol.date import http_date
from forewarn.protocol.versions import NEWEST

EVENT_TYPE = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"

_NAMESPACE = UUID("5f1de9a4-6d0f-4a53-9a55-0c1f3b8f7a10")
_DATA_API_VERSION = "2024-07-01"
_MEANING = {
    What.PUBLISHED: Happening.SCHEDULED,
    What.STARTED: Happening.STARTED,
    What.FINISHED: Happening.COMPLETED,  # an act that failed too: the maintenance is over
    What.WITHDRAWN: Happening.CANCELED,
}


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to one event."""

    happening: Happening
    at: float
    event: Event
    resource: str
    subscription_id: str
    location: str

    @property
    def id(self) -> str:
        """The same whenever and to whomever this is told: a receiver knows by it what it was told before."""
        return str(uuid5(_NAMESPACE, f"{self.event.id}/{self.happening}{self.resource}".casefold()))

    @property
    def subject(self) -> str:
        return f"{self.resource}/providers/microsoft.maintenance/scheduledevents/{self.event.id.lower()}"


def vm_keys(event: Event) -> tuple[str, ...]:
    """Of the VMs it names: a scope's id begins with the subscription and the group that all its VMs are in."""
    subscription, group = event.scope_id.partition(":")[2].split("/")[:2]
    return tuple(vm_key(subscription, group, name) for name in event.vms)


def tells(entry: Entry) -> bool:
    """Whether it is of the sort that may be told outside."""
    return entry.what in _MEANING


def notification_for(entry: Entry, event: Event, vms: Sequence[Vm]) -> Notification | None:
    """What this entry says of its event; None where it says nothing that is told outside."""
    happening = _MEANING.get(entry.what)
    if happening is None or not event.listed or not vms:
        return None
    # A VM may have been deleted and made anew elsewhere since: one that is still of the scope knows best.
    vm = next((vm for vm in vms if vm.scope_id == event.scope_id), vms[0])
    return Notification(
        happening=happening,
        at=entry.at,
        event=event,
        resource=resource_above(vm),
        subscription_id=vm.subscription_id,
        location=vm.location,
    )


def is_wanted(webhook: Webhook, notification: Notification, vms: Sequence[Vm]) -> bool:
    if notification.happening not in webhook.happenings:
        return False
    if webhook.opted_in_only and not any(vm.publish_outside for vm in vms):
        return False
    told = (notification.resource, *map(resource_of, vms))
    return any(covers(webhook.over, resource) for resource in told)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, before it has one of the two forms."""

    id: str
    type: str
    topic: str  # Event Grid: the subscription
    source: str  # CloudEvents: the resource
    subject: str
    at: float
    data: dict[str, Any]
    data_version: str = "3.0"


def message_of(notification: Notification) -> Message:
    return Message(
        id=notification.id,
        type=EVENT_TYPE,
        topic=f"/subscriptions/{notification.subscription_id}",
        source=notification.resource,
        subject=notification.subject,
        at=notification.at,
        data=_data(notification),
    )


def rendered(message: Message, schema: Schema) -> bytes:
    form = _cloud_event(message) if schema is Schema.CLOUD_EVENTS else [_event_grid_event(message)]
    return msgspec.json.encode(form)


def _event_grid_event(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "topic": message.topic,
        "subject": message.subject,
        "data": message.data,
        "eventType": message.type,
        "dataVersion": message.data_version,
        "metadataVersion": "1",
        "eventTime": _iso(message.at),
    }


def _cloud_event(message: Message) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": message.source,
        "type": message.type,
        "subject": message.subject,
        "time": _iso(message.at),
        "datacontenttype": "application/json",
        "data": message.data,
    }


def _data(notification: Notification) -> dict[str, Any]:
    event_id = notification.event.id.lower()  # upper case is what VMs see
    info = {
        "id": notification.subject,
        "name": event_id,
        "type": "microsoft.maintenance/scheduledEvents",
        "location": notification.location,
        "properties": _properties(notification),
    }
    return {"resourceInfo": info, "apiVersion": _DATA_API_VERSION}


def _properties(notification: Notification) -> dict[str, Any]:
    event, row = notification.event, notification.event.row
    has_begun = notification.happening in (Happening.STARTED, Happening.COMPLETED)
    return {
        "DurationInSeconds": row.duration_s,
        "Description": row.description,
        "EventId": event.id.lower(),
        "EventSource": row.source,
        "EventStatus": notification.happening,
        "EventType": row.kind,
        "NotBefore": "" if has_begun else http_date(event.not_before),
        "Resources": event.vms,
        "ResourceType": "VirtualMachine",
        "ScheduledEventApiVersion": NEWEST,
    }


def resource_above(vm: Vm) -> str:
    """What this VM's scope is in Azure's API."""
    if vm.cloud_service:
        return resource_of(vm).rpartition("/roleInstances/")[0]
    if vm.scale_set:
        return scale_set_resource(vm)
    return availability_set_resource(vm) if vm.availability_set else resource_of(vm)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
