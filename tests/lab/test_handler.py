"""Handlers in other processes, in other languages, and in an event loop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forewarn.client import Client
from forewarn.lab import Lab

VERSION = "api-version=2020-07-01"
LOOP = """
import json, os, time, urllib.request

URL = os.environ["FOREWARN_ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"

def ask(body=None):
    request = urllib.request.Request(URL, body, {"Metadata": "true"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return answer.read()

while True:
    for event in json.loads(ask())["Events"]:
        if event["EventStatus"] == "Scheduled" and os.environ["APPROVES"] == "yes":
            ask(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
    time.sleep(0.01)
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sees_an_event_and_approves_it() -> None:
    with Lab(vms=["web-0"]) as lab:
        event, vm = lab.reboot("web-0"), lab.vm("web-0")
        curl = ["curl", "-sS", "--fail", "--noproxy", "*", "--max-time", "20", "-H", "Metadata:true"]
        seen = subprocess.run([*curl, f"{vm.url}?{VERSION}"], capture_output=True, check=True, timeout=60).stdout
        assert json.loads(seen)["Events"][0]["EventId"] == event.id
        approval = json.dumps({"StartRequests": [{"EventId": event.id}]})
        subprocess.run([*curl, "-d", approval, f"{vm.url}?{VERSION}"], check=True, timeout=60)
        assert event.approved_by == "web-0"
        assert event.started


def started(lab: Lab, vm: str, script: Path, *, approves: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **lab.vm(vm).environment, "APPROVES": approves}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)


def test_a_restarted_handler_finds_pending_events(tmp_path: Path) -> None:
    script = tmp_path / "handler.py"
    script.write_text(LOOP, encoding="utf-8")
    with Lab(vms=["web-0"]) as lab:
        event = lab.reboot("web-0")
        handler = started(lab, "web-0", script, approves="no")
        lab.wait_for(lambda: event.seen_by == ("web-0",))
        handler.send_signal(signal.SIGKILL)
        handler.wait(60)
        lab.advance("5m")
        assert not event.approved
        handler = started(lab, "web-0", script, approves="yes")
        try:
            lab.wait_for(lambda: event.approved_by == "web-0")
        finally:
            handler.kill()
            handler.wait(60)
        lab.advance("30s")
        assert event.finished


def test_a_long_poll_is_answered_when_an_event_is_published() -> None:
    with Lab(vms=["web-0"]) as lab:
        client = Client(lab.vm("web-0").endpoint)
        documents = client.documents()
        assert next(documents).events == ()
        with ThreadPoolExecutor(1) as beside:
            coming = beside.submit(next, documents)
            event = lab.reboot("web-0")
            assert [each.id for each in coming.result(60).events] == [event.id]
        documents.close()


def test_a_handler_in_the_tests_event_loop_is_awaited_in_a_thread(guest: Any) -> None:
    async def handler(vm: Any) -> None:
        (event,) = await asyncio.to_thread(vm.events)
        await asyncio.to_thread(vm.approve, event["EventId"])

    async def scenario() -> None:
        with Lab(vms=["web-0"]) as lab:
            event = lab.reboot("web-0")
            handling = asyncio.create_task(handler(guest(lab.vm("web-0"))))
            await asyncio.to_thread(lab.wait_for, lambda: event.approved)
            await handling
            lab.advance("1m")
            assert event.finished

    asyncio.run(scenario())
