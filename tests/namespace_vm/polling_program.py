"""A program inside a VM: it ticks, polls for events and, with `approve`, approves them.

Usage: polling_program.py DIRECTORY [approve] [stubborn]

It writes its boot ids, its ticks and every new document to files in that directory. With `stubborn` it ignores
SIGTERM.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
directory, options = Path(sys.argv[1]), sys.argv[2:]
vm = os.environ["FOREWARN_VM"].rpartition("/")[2]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(body: bytes | None = None) -> bytes:
    request = urllib.request.Request(URL, data=body, headers={"Metadata": "true"})
    with opener.open(request, timeout=5) as response:
        answer: bytes = response.read()
        return answer


def write(what: str, text: str) -> None:
    with (directory / f"{vm}.{what}").open("a") as file:
        file.write(f"{text}\n")


def poll(last: bytes) -> bytes:
    try:
        current = ask()
        if current != last:
            write("seen", current.decode())
        waiting = [e["EventId"] for e in json.loads(current)["Events"] if e["EventStatus"] == "Scheduled"]
        if waiting and "approve" in options:
            ask(json.dumps({"StartRequests": [{"EventId": event_id} for event_id in waiting]}).encode())
        return current
    except OSError:
        return last  # the service is away for a moment


if "stubborn" in options:
    signal.signal(signal.SIGTERM, lambda *_: write("asked", "to end"))
write("boots", os.environ["FOREWARN_BOOT_ID"])
document = b""
while True:
    write("ticks", str(time.monotonic()))
    document = poll(document)
    time.sleep(0.02)
