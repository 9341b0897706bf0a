"""The fake receiver: it keeps the requests and answers as scripted."""

from __future__ import annotations

import http.client

import pytest

from tests.support.webhook_receiver import WebhookReceiver


def post(receiver: WebhookReceiver, body: str = "[{}]") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=5)
    try:
        connection.request("POST", "/hook", body, {"X-Some": "Thing"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_fake_receiver_answers_as_scripted_then_200(receiver: WebhookReceiver) -> None:
    receiver.answer(500, 202)
    assert [post(receiver) for _ in range(3)] == [500, 202, 200]
    assert [received.status for received in receiver.accepted] == [202, 200]


def test_the_fake_receiver_keeps_the_requests(receiver: WebhookReceiver) -> None:
    post(receiver, '[{"id": 1}]')
    (received,) = receiver.wait_for(1)
    assert (received.method, received.target, received.headers["x-some"]) == ("POST", "/hook", "Thing")
    assert received.event == {"id": 1}


def test_the_fake_receiver_restarts_on_the_same_port(receiver: WebhookReceiver) -> None:
    url = receiver.url
    receiver.stop()
    with pytest.raises(ConnectionRefusedError):
        post(receiver)
    receiver.start()
    assert (receiver.url, post(receiver)) == (url, 200)


def test_a_hanging_fake_receiver_does_not_answer(receiver: WebhookReceiver) -> None:
    receiver.stop_answering()
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=0.2)
    connection.request("POST", "/hook", "[{}]")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert len(receiver.wait_for_requests(1)) == 1
    assert receiver.accepted == []
