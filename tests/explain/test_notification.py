"""What is told outside of an event: which entries say something, of which resource, and the bytes of both forms."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.core.cause import Cause
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.notification import Notification, is_wanted, message_of, notification_for, rendered, vm_keys
from forewarn.core.webhook import Happening, Schema, Webhook
from forewarn.testing.world import NOON, a_vm

EVENT_ID = "00000000-0000-4000-8000-0000000000AB"
GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
TOLD = [
    (What.PUBLISHED, Happening.SCHEDULED),
    (What.STARTED, Happening.STARTED),
    (What.FINISHED, Happening.COMPLETED),
    (What.WITHDRAWN, Happening.CANCELED),
]
ONE_OF_EACH = [
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
        "who": "ops",
        "vms": tuple(vm.name for vm in vms),
        "published_at": NOON,
        "not_before": NOON + 900,
    }
    return Event(**{**given, **facts})


def an_entry(what: What = What.PUBLISHED, at: float = NOON) -> Entry:
    return Entry(at=at, what=what, text="x", event_id=EVENT_ID)


def told(*vms: Vm, what: What = What.PUBLISHED, at: float = NOON, **facts: Any) -> Notification:
    notification = notification_for(an_entry(what, at), an_event(*vms, **facts), vms)
    assert notification is not None
    return notification


def a_webhook(**facts: Any) -> Webhook:
    return Webhook(**{"id": "w", "url": "https://x", "secret": "s", **facts})


@pytest.mark.parametrize(("what", "happening"), TOLD)
def test_four_kinds_of_entries_are_told_whatever_the_event_is_by_now(what: What, happening: Happening) -> None:
    for status in Status:
        assert told(a_vm("web"), what=what, status=status).happening is happening


@pytest.mark.parametrize("what", sorted(set(What) - {what for what, _ in TOLD}))
def test_no_other_entry_is_told(what: What) -> None:
    assert notification_for(an_entry(what), an_event(a_vm("web")), [a_vm("web")]) is None


@pytest.mark.parametrize("what", [what for what, _ in TOLD])
def test_what_no_document_lists_is_told_nowhere(what: What) -> None:
    assert notification_for(an_entry(what), an_event(a_vm("web"), listed=False), [a_vm("web")]) is None


@pytest.mark.parametrize(("vm", "resource"), ONE_OF_EACH, ids=["vm", "set", "scale set", "service"])
def test_the_resource_is_what_the_scope_is_in_azure(vm: Vm, resource: str) -> None:
    assert told(vm).resource == resource
    assert vm_keys(an_event(vm)) == (vm.key,)


def test_a_vm_made_anew_elsewhere_does_not_change_what_is_told_of_the_others() -> None:
    stays, gone = a_vm("web-1", availability_set="web"), a_vm("web-0", availability_set="web")
    event = an_event(gone, stays)
    before, after = ([gone, stays], [a_vm("web-0"), stays])
    first, second = (notification_for(an_entry(), event, vms) for vms in (before, after))
    assert first == second


def test_an_id_is_the_same_whenever_it_is_told_and_another_for_every_happening() -> None:
    web = a_vm("web")
    assert told(web).id == told(web, status=Status.OVER, what=What.PUBLISHED, at=NOON + 9).id
    ids = {told(web, what=what).id for what, _ in TOLD} | {told(a_vm("db")).id}
    assert len(ids) == 5


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
    b'"dataVersion":"3.0","metadataVersion":"1","eventTime":"2026-01-05T12:00:00.250000Z"}]'
)
CLOUD_EVENTS = (
    b'{"specversion":"1.0","id":"52b3351d-1cd4-5d12-b00d-cf21498f8fa9",'
    b'"source":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool",'
    b'"type":"Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted",'
    b'"subject":"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachineScaleSets/pool'
    b'/providers/microsoft.maintenance/scheduledevents/00000000-0000-4000-8000-0000000000ab",'
    b'"time":"2026-01-05T12:00:00.250000Z","datacontenttype":"application/json","data":'
    + EVENT_GRID.partition(b'"data":')[2].partition(b',"eventType"')[0]
    + b"}"
)


@pytest.mark.parametrize(("schema", "expected"), [(Schema.EVENT_GRID, EVENT_GRID), (Schema.CLOUD_EVENTS, CLOUD_EVENTS)])
def test_both_forms_to_the_byte(schema: Schema, expected: bytes) -> None:
    pool = [a_vm(f"pool_{n}", scale_set="pool", placement_group="pg") for n in (0, 1)]
    assert rendered(message_of(told(*pool, at=NOON + 0.25)), schema) == expected


@pytest.mark.parametrize(
    ("what", "not_before"),
    [
        (What.PUBLISHED, "Mon, 05 Jan 2026 12:15:00 GMT"),
        (What.STARTED, ""),
        (What.FINISHED, ""),
        (What.WITHDRAWN, "Mon, 05 Jan 2026 12:15:00 GMT"),
    ],
)
def test_not_before_is_empty_once_it_has_begun(what: What, not_before: str) -> None:
    properties = message_of(told(a_vm("web"), what=what)).data["resourceInfo"]["properties"]
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
def test_a_webhook_is_told_what_happens_within_its_resource(over: str, wanted: bool) -> None:
    vms = [a_vm(f"web-{n}", availability_set="web") for n in (0, 1)]
    assert is_wanted(a_webhook(over=over), told(*vms), vms) is wanted


def test_a_webhook_is_told_only_the_happenings_it_asked_for() -> None:
    web = a_vm("web")
    webhook = a_webhook(happenings=(Happening.STARTED,))
    assert [what for what, _ in TOLD if is_wanted(webhook, told(web, what=what), [web])] == [What.STARTED]


def test_a_webhook_for_those_who_opted_in_is_told_of_no_others() -> None:
    webhook = a_webhook(opted_in_only=True)
    web = a_vm("web")
    assert not is_wanted(webhook, told(web), [web])
    assert is_wanted(webhook, told(web), [replace(web, publish_outside=True)])
