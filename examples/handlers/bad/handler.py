"""A handler as most published samples write it. Do not use it: the README beside it says what it does wrong.

python handler.py 'systemctl stop my-app'
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

ENDPOINT = os.environ.get("FOREWARN_ENDPOINT", "http://169.254.169.254")
URL = f"{ENDPOINT}/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {"Metadata": "true"}


def get_scheduled_events():
    request = urllib.request.Request(URL, headers=HEADERS)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def confirm_scheduled_event(event_id):
    body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
    request = urllib.request.Request(URL, data=body, headers=HEADERS)
    with urllib.request.urlopen(request) as response:
        return response.status


def handle_scheduled_event(event):
    print("handling", event["EventType"], "with NotBefore", event["NotBefore"], flush=True)
    subprocess.Popen(["sh", "-c", sys.argv[1]])


while True:
    for event in get_scheduled_events()["Events"]:
        handle_scheduled_event(event)
        confirm_scheduled_event(event["EventId"])
    time.sleep(5)
