"""Messages about rollouts themselves: paused and why, resumed, aborted, completed, on hold (spec §13.5)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.control.webhooks import WebhookSpec
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState
from forewarn.core.webhook import EventGridStatus, WebhookSchema, WebhookSubscription
from forewarn.errors import Rejected
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from tests.support.webhook_receiver import WebhookReceiver

SHOP = HealthCheck(name="shop", kind=CheckKind.HTTP, url="http://127.0.0.1/health")
ROLLOUT = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",), checks=(SHOP,))


def start(delivery: Any, rollout: Rollout = ROLLOUT) -> MaintenanceRequest:
    world = delivery.world
    request: MaintenanceRequest = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def change(delivery: Any, request: MaintenanceRequest, progress: RolloutState) -> None:
    world = delivery.world
    world.do(world.control.rollout_requests.change_state(request.id, progress, who="bob"))
    world.settle()


def about_rollouts(receiver: WebhookReceiver) -> list[Any]:
    types = "eventType", "type"
    events = [received.event for received in receiver.accepted]
    return [event for event in events if "Forewarn.RolloutChanged" in [event.get(name) for name in types]]


def statuses(receiver: WebhookReceiver) -> list[str]:
    return [event["data"]["status"] for event in about_rollouts(receiver)]


def add(delivery: Any, **wanted: Any) -> WebhookSubscription:
    spec = WebhookSpec(url="https://hooks.example.org/x", **wanted)
    added: WebhookSubscription = delivery.world.do(delivery.world.control.webhooks.add(spec, who="ann"))
    return added


def test_a_rollout_that_a_check_pauses_is_sent_with_the_reason(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver, rollouts=True)
    request = start(delivery)
    delivery.prober.coming["shop"] = [CheckOutcome.BAD]
    delivery.world.advance(60)
    at = delivery.world.now
    change(delivery, request, RolloutState.RUNNING)
    delivery.world.advance(3600)
    delivery.deliver(receiver, 7)
    assert statuses(receiver) == ["paused", "resumed", "completed"]
    paused, resumed, _ = about_rollouts(receiver)
    assert paused["data"] == {
        "status": "paused",
        "rolloutId": request.id,
        "impact": "update",
        "target": "h1",
        "text": f"rollout {request.id} paused: check 'shop' is bad: it answered 500, not 200; "
        "events that have not started are withdrawn",
        "by": "platform",
    }
    assert (paused["subject"], paused["topic"], paused["dataVersion"]) == (f"rollouts/{request.id}", "/forewarn", "1")
    assert resumed["data"]["by"] == "bob"
    assert resumed["data"]["text"] == f"rollout {request.id} resumed by bob"
    assert resumed["eventTime"] == "2026-01-05T12:01:00.000Z", at


def test_the_words_of_a_check_do_not_make_a_paused_rollout_a_waiting_one(
    delivery: Any, receiver: WebhookReceiver
) -> None:
    delivery.hook(receiver, rollouts=True)
    name = "shop publishes nothing for now"
    start(delivery, replace(ROLLOUT, checks=(replace(SHOP, name=name),)))
    delivery.prober.coming[name] = [CheckOutcome.BAD]
    delivery.world.advance(60)
    delivery.deliver(receiver, 3)
    assert statuses(receiver) == ["paused"]


def test_a_rollout_that_waits_for_an_unclear_check_is_sent_too(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver, rollouts=True, schema=WebhookSchema.CLOUD_EVENTS)
    delivery.prober.coming["shop"] = [CheckOutcome.UNCLEAR]
    request = start(delivery)
    delivery.world.advance(60)
    change(delivery, request, RolloutState.ABORTED)
    delivery.deliver(receiver, 5)
    assert statuses(receiver) == ["waiting", "resumed", "aborted"]
    assert "there is no data" in about_rollouts(receiver)[0]["data"]["text"]
    assert about_rollouts(receiver)[0]["source"] == "/forewarn"


def test_a_rollout_that_stops_by_itself_is_sent_with_the_failed_vms(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver, rollouts=True)
    delivery.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="web", note="no power"),)))
    start(delivery, Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",)))
    delivery.world.advance(3600)
    delivery.deliver(receiver, 4)
    assert statuses(receiver) == ["stopped"]
    assert "1 VM failed, and it stops after 1 (web: no power)" in about_rollouts(receiver)[0]["data"]["text"]


def test_a_hold_on_all_rollouts_and_its_end_are_sent(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver, rollouts=True)
    rollouts = delivery.world.control.rollouts
    delivery.world.do(rollouts.holds.set_hold("an incident", who="ann"))
    delivery.world.do(rollouts.holds.lift_hold(who="bob"))
    delivery.deliver(receiver, 2)
    held, lifted = about_rollouts(receiver)
    assert held["data"] == {"status": "held", "text": "all rollouts are on hold: an incident", "by": "ann"}
    assert (lifted["data"]["status"], lifted["data"]["by"]) == ("lifted", "bob")


def test_a_message_about_a_rollout_that_is_repeated_has_the_same_id(delivery: Any, receiver: WebhookReceiver) -> None:
    receiver.answer(500)
    delivery.hook(receiver, rollouts=True)
    delivery.world.do(delivery.world.control.rollouts.holds.set_hold("an incident", who="ann"))
    delivery.retry_sleep.allow()
    delivery.deliver(receiver, 1)
    assert [received.status for received in receiver.received] == [500, 200]
    assert len({received.event["id"] for received in receiver.received}) == 1


def test_a_webhook_without_rollouts_gets_only_events(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    request = start(delivery)
    change(delivery, request, RolloutState.ABORTED)
    delivery.deliver(receiver, 2)
    assert [received.event_status for received in receiver.accepted] == ["Scheduled", "Canceled"]


@pytest.mark.parametrize(
    ("wanted", "gets_rollouts"),
    [
        ({}, True),
        ({"rollouts": False}, False),
        ({"resource": "/subscriptions/sub"}, False),
        ({"statuses": (EventGridStatus.STARTED,)}, False),
        ({"statuses": (EventGridStatus.STARTED,), "rollouts": True}, True),
        ({"opted_in_only": True}, False),
    ],
)
def test_a_new_webhook_that_nothing_filters_gets_rollouts(delivery: Any, wanted: Any, gets_rollouts: bool) -> None:
    assert add(delivery, **wanted).rollouts is gets_rollouts


def test_rollouts_of_a_part_of_the_fleet_are_rejected(delivery: Any) -> None:
    with pytest.raises(Rejected, match="leave out the rollouts, or the resource"):
        add(delivery, resource="/subscriptions/sub", rollouts=True)
    assert delivery.world.store.webhooks() == []
