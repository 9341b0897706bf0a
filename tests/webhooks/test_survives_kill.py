"""`kill -9` of the real service during delivery to a failing receiver.

Every message arrives at least once and in order; a repeated one has the same id.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.service_process import ServiceProcess
from tests.support.webhook_receiver import ReceivedNotification, WebhookReceiver

FLEET = """
[defaults]
location = "westeurope"
resource_group = "crash"

[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "solo-{n}"
count = 12
"""
VMS = [f"solo-{n}" for n in range(12)]
MEANING = {
    "published": "Scheduled",
    "started": "Started",
    "finished": "Completed",
    "withdrawn": "Canceled",
    "not needed": "Canceled",
}


def work(service: ServiceProcess, rng: random.Random, stop: threading.Event) -> None:
    """Requests restarts, approves some and withdraws others; goes on while the service is down."""
    while not stop.is_set():
        try:
            answer = service.api("POST", "/requests", {"operation": "restart", "vms": [rng.choice(VMS)]})
            if answer.status == 202:
                action = rng.choice(["approve", "approve", "withdraw"])
                for event in answer.json["events"]:
                    service.api("POST", f"/events/{event['id']}/{action}", {})
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.02)


def event_and_status(received: ReceivedNotification) -> tuple[str, str]:
    properties = received.event["data"]["resourceInfo"]["properties"]
    return properties["EventId"].upper(), properties["EventStatus"]


def expected_messages(service: ServiceProcess) -> list[tuple[str, str]]:
    """The messages that must have arrived, from the history."""
    entries = service.api("GET", "/history?after=0&limit=100000").json["entries"]
    listed = {e["id"] for e in service.api("GET", "/events?all=true&limit=100000").json["events"] if e["listed"]}
    return [(e["event_id"], MEANING[e["kind"]]) for e in entries if e["kind"] in MEANING and e["event_id"] in listed]


def wait_until_delivered(service: ServiceProcess) -> None:
    deadline = time.monotonic() + 60
    while (hook := service.api("GET", "/webhooks").json["webhooks"][0])["pending"] or hook["failures"]:
        assert time.monotonic() < deadline, hook
        time.sleep(0.05)


def without_repeats(received: list[ReceivedNotification]) -> list[Any]:
    return list({message.event["id"]: message for message in received}.values())


def test_messages_arrive_at_least_once_and_in_order_across_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    with WebhookReceiver() as receiver, ServiceProcess(data=tmp_path / "d", fleet=FLEET) as service:
        assert service.api("POST", "/clock/speed", {"speed": 300}).status == 200
        secret = service.api("POST", "/webhooks", {"url": receiver.url}).json["secret"]
        for number in range(4):
            stop = threading.Event()
            client = threading.Thread(target=work, args=(service, rng, stop))
            client.start()
            receiver.wait_for(len(receiver.accepted) + 20)
            if number == 1:
                receiver.answer(500)
                receiver.wait_for(len(receiver.accepted) + 5)
            if number == 2:
                receiver.stop()
                receiver.start()
            service.kill()
            stop.set()
            client.join()
            service.start()
        service.advance(3600)
        wait_until_delivered(service)

        first_seen = without_repeats(receiver.accepted)
        assert [event_and_status(message) for message in first_seen] == expected_messages(service)
        assert len(first_seen) > 80
        bodies: dict[str, bytes] = {message.event["id"]: message.body for message in first_seen}
        assert all(bodies[message.event["id"]] == message.body for message in receiver.received)
        assert service.stop() == 0
    assert secret not in (tmp_path / "d" / "service.log").read_text()
