"""Tests of a handler in any language, against a lab that runs already.

    forewarn up --detach --wait-ready
    HANDLER="./my-handler --verbose" pytest

HANDLER is the command that starts the handler. FOREWARN_ENDPOINT and SCHEDULEDEVENTSIP tell it the address of its VM,
which is 169.254.169.254 on Azure.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

APPROVAL_S = 60


def forewarn(*arguments: str) -> Any:
    """Run a command of forewarn against the lab, and return its answer."""
    done = subprocess.run(["forewarn", *arguments, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[str]:
    """The name of a VM of the lab in which the handler runs."""
    endpoint = forewarn("status")["endpoints"][0]
    address = {"FOREWARN_ENDPOINT": endpoint["url"], "SCHEDULEDEVENTSIP": endpoint["url"].removeprefix("http://")}
    environment = {**os.environ, **address, "STATE_DIRECTORY": str(tmp_path)}
    with subprocess.Popen(shlex.split(os.environ["HANDLER"]), env=environment) as handler:
        yield endpoint["vm"]
        assert handler.poll() is None, f"the handler has ended with status {handler.returncode}"
        handler.terminate()


def when_approved(event_id: str) -> dict[str, Any]:
    """Wait until the event is approved, and return it."""
    deadline = time.monotonic() + APPROVAL_S
    while True:
        (event,) = (each for each in forewarn("events", "--all")["events"] if each["id"] == event_id)
        if event["approved_at"]:
            return event
        assert time.monotonic() < deadline, f"not approved after {APPROVAL_S} s: {event}"
        time.sleep(0.5)


def test_the_handler_approves_a_restart(vm: str) -> None:
    (event,) = forewarn("restart", vm)["events"]
    assert when_approved(event["id"])["approved_by"] == vm
    forewarn("clock", "advance", "1m")
    (event,) = (each for each in forewarn("events", "--all")["events"] if each["id"] == event["id"])
    assert event["ending"] == "finished"
