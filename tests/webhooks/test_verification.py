"""Verification of a receiver: the test message, and the validation of Event Grid and CloudEvents."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from forewarn.control.webhook_delivery import TEST_EVENT_TYPE, VALIDATION_EVENT_TYPE, DeliveryTestResult
from forewarn.core.webhook import WebhookSchema
from forewarn.errors import Refused
from tests.support.webhook_receiver import ReceiverAnswer, WebhookReceiver

BOTH = pytest.mark.parametrize("schema", list(WebhookSchema))


def code_in(body: bytes) -> str:
    code: str = json.loads(body)[0]["data"]["validationCode"]
    return code


def echoing(method: str, body: bytes) -> ReceiverAnswer:
    return ReceiverAnswer(body=json.dumps({"validationResponse": code_in(body)}).encode())


def allowing(origin: str) -> Callable[[str, bytes], ReceiverAnswer]:
    def decide(method: str, body: bytes) -> ReceiverAnswer:
        return ReceiverAnswer(headers={"WebHook-Allowed-Origin": origin, "Allow": "POST"})

    return decide


def refused(delivery: Any, receiver: WebhookReceiver, schema: WebhookSchema) -> str:
    with pytest.raises(Refused) as caught:
        delivery.world.do(delivery.dispatcher.verification.validate(delivery.webhook_for(receiver, schema=schema)))
    return str(caught.value)


@BOTH
def test_a_test_message_names_no_vm(delivery: Any, receiver: WebhookReceiver, schema: WebhookSchema) -> None:
    verdict = delivery.world.do(
        delivery.dispatcher.verification.send_test(delivery.webhook_for(receiver, schema=schema))
    )
    assert verdict == DeliveryTestResult(ok=True, status=200, text="it answered 200")
    (received,) = receiver.received
    assert received.event.get("eventType", received.event.get("type")) == TEST_EVENT_TYPE
    assert "x-forewarn-signature" in received.headers
    assert delivery.world.store.webhooks() == []


@BOTH
def test_a_test_message_has_lab_time_and_its_signature_real_time(
    delivery: Any, receiver: WebhookReceiver, schema: WebhookSchema
) -> None:
    delivery.world.do(delivery.dispatcher.verification.send_test(delivery.webhook_for(receiver, schema=schema)))
    (received,) = receiver.received
    shown = received.event.get("eventTime", received.event.get("time"))
    assert datetime.fromisoformat(shown).timestamp() == delivery.world.now
    assert received.headers["x-forewarn-timestamp"] == str(int(delivery.real_now))


def test_a_validation_message_has_lab_time(delivery: Any) -> None:
    with WebhookReceiver(echoing) as receiver:
        delivery.world.do(delivery.dispatcher.verification.validate(delivery.webhook_for(receiver)))
        (received,) = receiver.received
    assert datetime.fromisoformat(received.event["eventTime"]).timestamp() == delivery.world.now


def test_a_failed_test_message_says_what_went_wrong(delivery: Any, receiver: WebhookReceiver) -> None:
    receiver.answer(404)
    webhook = delivery.webhook_for(receiver)
    assert delivery.world.do(delivery.dispatcher.verification.send_test(webhook)) == DeliveryTestResult(
        ok=False, status=404, text="it answered 404"
    )
    receiver.stop()
    verdict = delivery.world.do(delivery.dispatcher.verification.send_test(webhook))
    assert verdict == DeliveryTestResult(ok=False, status=None, text="it refused the connection")


def test_a_receiver_that_echoes_the_code_is_valid(delivery: Any) -> None:
    with WebhookReceiver(echoing) as receiver:
        delivery.world.do(delivery.dispatcher.verification.validate(delivery.webhook_for(receiver)))
    (received,) = receiver.received
    assert received.headers["aeg-event-type"] == "SubscriptionValidation"
    assert received.event["eventType"] == VALIDATION_EVENT_TYPE
    assert (received.event["dataVersion"], received.event["metadataVersion"]) == ("1", "1")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"validationResponse": 5}', b'{"validationResponse": "x"}', b"\xff"]
)
def test_a_receiver_that_does_not_echo_the_code_is_refused(delivery: Any, body: bytes) -> None:
    with WebhookReceiver(lambda method, sent: ReceiverAnswer(body=body)) as receiver:
        sentence = refused(delivery, receiver, WebhookSchema.EVENT_GRID)
    assert sentence == (
        "the receiver was not validated: it did not return the validationCode as validationResponse; "
        "fix it, or add it without validation"
    )


@pytest.mark.parametrize("origin", ["*", "forewarn", "Forewarn"])
def test_a_receiver_that_allows_our_origin_is_valid(delivery: Any, origin: str) -> None:
    with WebhookReceiver(allowing(origin)) as receiver:
        delivery.world.do(
            delivery.dispatcher.verification.validate(delivery.webhook_for(receiver, schema=WebhookSchema.CLOUD_EVENTS))
        )
    (received,) = receiver.received
    assert (received.method, received.body) == ("OPTIONS", b"")
    assert received.headers["webhook-request-origin"] == "forewarn"


def test_a_receiver_that_allows_another_origin_is_refused(delivery: Any) -> None:
    with WebhookReceiver(allowing("eventemitter.example.com")) as receiver:
        sentence = refused(delivery, receiver, WebhookSchema.CLOUD_EVENTS)
    assert "it did not answer OPTIONS with WebHook-Allowed-Origin: forewarn" in sentence


@BOTH
def test_a_receiver_that_declines_or_is_down_is_refused(
    delivery: Any, receiver: WebhookReceiver, schema: WebhookSchema
) -> None:
    receiver.answer(405)
    assert "it answered 405" in refused(delivery, receiver, schema)
    receiver.stop()
    assert refused(delivery, receiver, schema) == (
        "the receiver was not validated: it refused the connection; start it, or add it without validation"
    )
