"""Small handlers for tests of the crash test, and machines on which they run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from forewarn.crash_test.handler_machine import ChildMachine, HandlerMachine, HandlerSpec, NamespaceMachine

ENDPOINT_ENV = "ENDPOINT"

# Polls five times a second, and prepares for and approves every event that has not started.
APPROVING_HANDLER = """
import json, os, time, urllib.request

URL = os.environ.get("ENDPOINT", "http://169.254.169.254") + "/metadata/scheduledevents?api-version=2020-07-01"

def call(body=None):
    request = urllib.request.Request(URL, data=body, headers={"Metadata": "true"})
    return urllib.request.urlopen(request, timeout=5).read()

while True:
    try:
        for event in json.loads(call())["Events"]:
            if event["EventStatus"] == "Scheduled":
                open("prepared", "w").close()
                call(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
    except (OSError, ValueError) as error:
        print(error, flush=True)
    time.sleep(0.2)
"""

# Polls five times a second, and does nothing.
WATCHING_HANDLER = APPROVING_HANDLER.replace('event["EventStatus"] == "Scheduled"', "False")


def make_machine(directory: Path, *command: str, in_namespaces: bool = False, vm: str = "web-0") -> HandlerMachine:
    """A machine for this command, whose user directory is `directory`/user; the test closes it."""
    user_directory, files = directory / "user", directory / f"files-{vm}"
    user_directory.mkdir(exist_ok=True)
    files.mkdir()
    spec = HandlerSpec(
        vm=vm,
        hostname=f"host-of-{vm}",
        command=command,
        directory=files,
        user_directory=user_directory,
        environment=dict(os.environ),
        endpoint_env="" if in_namespaces else ENDPOINT_ENV,
    )
    return NamespaceMachine(spec) if in_namespaces else ChildMachine(spec)


def make_python_machine(
    directory: Path, program: str, *, in_namespaces: bool = False, vm: str = "web-0"
) -> HandlerMachine:
    """A machine on which this Python program is the handler; the test closes it."""
    (directory / "user").mkdir(exist_ok=True)
    (directory / "user" / "handler.py").write_text(program)
    return make_machine(directory, sys.executable, "handler.py", in_namespaces=in_namespaces, vm=vm)


def make_shell_machine(directory: Path, program: str, *, in_namespaces: bool = False) -> HandlerMachine:
    """A machine on which this shell program is the handler; the test closes it."""
    (directory / "user").mkdir(exist_ok=True)
    (directory / "user" / "handler.sh").write_text(program)
    return make_machine(directory, "sh", "handler.sh", in_namespaces=in_namespaces)
