"""Webhook notifications: which entries lead to one, its resource, and its bytes in both schemas."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.core.explain.notification import (
    EventNotification,
    event_vm_keys,
    is_subscribed,
    notification_for,
    notification_message,
    render_message,
)
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from tests.support.world import NOON, a_vm

EVENT_ID = "00000000-0000-4000-8000-0000000000AB"
GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
NOTIFYING_ENTRIES = [
    (EntryKind.PUBLISHED, EventGridStatus.SCHEDULED),
    (EntryKind.STARTED, EventGridStatus.STARTED),
    (EntryKind.FINISHED, EventGridStatus.COMPLETED),
    (EntryKind.WITHDRAWN, EventGridStatus.CANCELED),
    (EntryKind.NOT_NEEDED, EventGridStatus.CANCELED),
]
RESOURCES = [
    (a_vm("Web-0"), f"{COMPUTE}/virtualMachines/Web-0"),
    (a_vm("Web-0", availability_set="Web"), f"{COMPUTE}/availabilitySets/Web"),
    (a_vm("pool_0", scale_set="pool", placement_group="pg"), f"{COMPUTE}/virtualMachineScaleSets/pool"),
    (a_vm("front_IN_0", cloud_service="shop"), f"{COMPUTE}/cloudServices/shop"),
]


def an_event(*vms: Vm, **facts: Any) -> Event:
    given: dict[str, Any] = {
        "id": EVENT_ID,
        "scope_id": vms[0].scope_id,
        "request_id": "r",
        "cause": Cause.LIVE_MIGRATION,
        "requested_by": "ops",
        "vms": tuple(vm.name for vm in vms),
        "published_at": NOON,
        "not_before": NOON + 900,
    }
    return Event(**{**given, **facts})


def an_entry(what: EntryKind = EntryKind.PUBLISHED, at: float = NOON) -> HistoryEntry:
    return HistoryEntry(at=at, kind=what, text="x", event_id=EVENT_ID)


def notification_of(
    *vms: Vm, what: EntryKind = EntryKind.PUBLISHED, at: float = NOON, **facts: Any
) -> EventNotification:
    notification = notification_for(an_entry(what, at), an_event(*vms, **facts), vms)
    assert notification is not None
    return notification


def a_webhook(**facts: Any) -> WebhookSubscription:
    return WebhookSubscription(**{"id": "w", "url": "https://x", "secret": "s", **facts})


@pytest.mark.parametrize(("what", "expected"), NOTIFYING_ENTRIES)
def test_four_kinds_of_entries_lead_to_notifications_in_every_later_state_of_the_event(
    what: EntryKind, expected: EventGridStatus
) -> None:
    for status in EventState:
        assert notification_of(a_vm("web"), what=what, status=status).status is expected


@pytest.mark.parametrize("what", sorted(set(EntryKind) - {what for what, _ in NOTIFYING_ENTRIES}))
def test_no_other_entry_leads_to_a_notification(what: EntryKind) -> None:
    assert notification_for(an_entry(what), an_event(a_vm("web")), [a_vm("web")]) is None


@pytest.mark.parametrize("what", [what for what, _ in NOTIFYING_ENTRIES])
def test_an_unlisted_event_leads_to_no_notification(what: EntryKind) -> None:
    assert notification_for(an_entry(what), an_event(a_vm("web"), listed=False), [a_vm("web")]) is None


@pytest.mark.parametrize(("vm", "resource"), RESOURCES, ids=["vm", "set", "scale set", "service"])
def test_a_notification_names_the_resource_of_the_scope_in_azure(vm: Vm, resource: str) -> None:
    assert notification_of(vm).resource == resource
    assert event_vm_keys(an_event(vm)) == (vm.key,)


def test_a_vm_added_again_to_another_scope_does_not_change_the_notification() -> None:
    present, moved = a_vm("web-1", availability_set="web"), a_vm("web-0", availability_set="web")
    event = an_event(moved, present)
    before, after = ([moved, present], [a_vm("web-0"), present])
    first, second = (notification_for(an_entry(), event, vms) for vms in (before, after))
    assert first == second


def test_a_message_id_depends_only_on_event_status_and_resource() -> None:
    web = a_vm("web")
    assert (
        notification_of(web).id
        == notification_of(web, status=EventState.OVER, what=EntryKind.PUBLISHED, at=NOON + 9).id
    )
    ids = {notification_of(web, what=what).id for what, _ in NOTIFYING_ENTRIES} | {notification_of(a_vm("db")).id}
    assert len(ids) == 5


def test_a_notification_shows_the_event_in_the_version_that_the_vms_owner_chose() -> None:
    """Spec §14.3."""
    newest, older = (notification_message(notification_of(a_vm("web", publish_version=v))) for v in ("", "2019-04-01"))
    shown = older.data["resourceInfo"]["properties"]
    assert shown["ScheduledEventApiVersion"] == "2019-04-01"
    hidden = newest.data["resourceInfo"]["properties"].keys() - shown.keys()
    assert hidden == {"EventSource", "DurationInSeconds"}
    spot = a_vm("web", publish_version="2017-08-01")
    assert notification_for(an_entry(), an_event(spot, cause=Cause.EVICTION), [spot]) is None


EVENT_GRID = (
    b'[{"id":"52b3351d-1cd4-5d12-b00d-cf21498f8fa9","topic":"/subscriptions/sub",'
    b'"subject":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool'
    b'/providers/microsoft.maintenance/scheduledevents/00000000-0000-4000-8000-0000000000ab",'
    b'"data":{"resourceInfo":{'
    b'"id":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool'
    b'/providers/microsoft.maintenance/scheduledevents/00000000-0000-4000-8000-0000000000ab",'
    b'"name":"00000000-0000-4000-8000-0000000000ab","type":"microsoft.maintenance/scheduledEvents",'
    b'"location":"westeurope","properties":{"DurationInSeconds":5,'
    b'"Description":"Virtual machine is being paused because of a memory-preserving Live Migration operation.",'
    b'"EventId":"00000000-0000-4000-8000-0000000000ab","EventSource":"Platform","EventStatus":"Scheduled",'
    b'"EventType":"Freeze","NotBefore":"Mon, 05 Jan 2026 12:15:00 GMT","Resources":["pool_0","pool_1"],'
    b'"ResourceType":"VirtualMachine","ScheduledEventApiVersion":"2020-07-01"}},"apiVersion":"2024-07-01"},'
    b'"eventType":"Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted",'
    b'"dataVersion":"3.0","metadataVersion":"1","eventTime":"2026-01-05T12:00:00.250Z"}]'
)
CLOUD_EVENTS = (
    b'{"specversion":"1.0","id":"52b3351d-1cd4-5d12-b00d-cf21498f8fa9",'
    b'"source":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool",'
    b'"type":"Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted",'
    b'"subject":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool'
    b'/providers/microsoft.maintenance/scheduledevents/00000000-0000-4000-8000-0000000000ab",'
    b'"time":"2026-01-05T12:00:00.250Z","datacontenttype":"application/json","data":'
    + EVENT_GRID.partition(b'"data":')[2].partition(b',"eventType"')[0]
    + b"}"
)


@pytest.mark.parametrize(
    ("schema", "expected"), [(WebhookSchema.EVENT_GRID, EVENT_GRID), (WebhookSchema.CLOUD_EVENTS, CLOUD_EVENTS)]
)
def test_messages_of_both_schemas_have_exactly_these_bytes(schema: WebhookSchema, expected: bytes) -> None:
    pool = [a_vm(f"pool_{n}", scale_set="pool", placement_group="pg") for n in (0, 1)]
    assert render_message(notification_message(notification_of(*pool, at=NOON + 0.25)), schema) == expected


@pytest.mark.parametrize(
    ("what", "not_before"),
    [
        (EntryKind.PUBLISHED, "Mon, 05 Jan 2026 12:15:00 GMT"),
        (EntryKind.STARTED, ""),
        (EntryKind.FINISHED, ""),
        (EntryKind.WITHDRAWN, "Mon, 05 Jan 2026 12:15:00 GMT"),
        (EntryKind.NOT_NEEDED, "Mon, 05 Jan 2026 12:15:00 GMT"),
    ],
)
def test_not_before_is_empty_after_the_start(what: EntryKind, not_before: str) -> None:
    properties = notification_message(notification_of(a_vm("web"), what=what)).data["resourceInfo"]["properties"]
    assert properties["NotBefore"] == not_before


OVER = [
    ("/", True),
    ("/subscriptions/SUB", True),
    (f"{GROUP}", True),
    (f"{COMPUTE}/availabilitySets/web", True),
    (f"{COMPUTE}/virtualMachines/web-1", True),
    (f"{COMPUTE}/virtualMachines/web-2", False),
    (f"{COMPUTE}/virtualMachines/web", False),
    (f"{COMPUTE}/availabilitySets/we", False),
    ("/subscriptions/other", False),
]


@pytest.mark.parametrize(("over", "wanted"), OVER)
def test_a_webhook_receives_events_within_its_resource(over: str, wanted: bool) -> None:
    vms = [a_vm(f"web-{n}", availability_set="web") for n in (0, 1)]
    assert is_subscribed(a_webhook(resource=over), notification_of(*vms), vms) is wanted


def test_a_webhook_receives_only_the_statuses_it_subscribed_to() -> None:
    web = a_vm("web")
    webhook = a_webhook(statuses=(EventGridStatus.STARTED,))
    assert [
        what for what, _ in NOTIFYING_ENTRIES if is_subscribed(webhook, notification_of(web, what=what), [web])
    ] == [EntryKind.STARTED]


def test_a_webhook_for_opted_in_vms_receives_no_events_of_other_vms() -> None:
    webhook = a_webhook(opted_in_only=True)
    web = a_vm("web")
    assert not is_subscribed(webhook, notification_of(web), [web])
    assert is_subscribed(webhook, notification_of(web), [replace(web, publish_outside=True)])


def test_a_webhook_for_opted_in_vms_counts_only_those_within_its_resource() -> None:
    inside, outside = (a_vm(f"web-{n}", availability_set="web") for n in (0, 1))
    over_one = a_webhook(opted_in_only=True, resource=f"{COMPUTE}/virtualMachines/web-0")
    over_set = a_webhook(opted_in_only=True, resource=f"{COMPUTE}/availabilitySets/web")
    willing = replace(inside, publish_outside=True), outside
    assert is_subscribed(over_one, notification_of(*willing), willing)
    others = inside, replace(outside, publish_outside=True)
    assert not is_subscribed(over_one, notification_of(*others), others)
    assert is_subscribed(over_set, notification_of(*others), others)
