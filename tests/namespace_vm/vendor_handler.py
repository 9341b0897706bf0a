"""The handler that the vendor's page sketches, for Python 3.

The address is built in, and an event is its own if its hostname is among the resources. Then the same with the name
from the instance metadata (spec §4.2).
"""

import json
import socket
import urllib.request

BASE = "http://169.254.169.254/metadata/"
EVENTS = BASE + "scheduledevents?api-version=2020-07-01"
NAME = BASE + "instance/compute/name?api-version=2021-02-01&format=text"


def call(url: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(url, body)
    request.add_header("Metadata", "true")
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(response.read().decode())


def handle(name: str) -> str:
    for event in json.loads(call(EVENTS))["Events"]:
        if name in event["Resources"]:
            call(EVENTS, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
            return f"approved {event['EventId']}"
    return "nothing for us"


hostname, name = socket.gethostname(), call(NAME)
print(handle(hostname))
print(handle(name))
print(f"{hostname} is called {name}")
