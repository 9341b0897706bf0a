"""A handler of scheduled events for tests of the crash test: a good one, or one with defects that it is given by name.

It is a program of its own: `planted_handler.py [--approves own|none] [--skips KIND] [DEFECT …]`. It uses the standard
library only. It prepares by writing the file `prepared` into its directory, and recovers by removing it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import time
from email.utils import format_datetime, parsedate_to_datetime
from enum import StrEnum
from typing import Any, NoReturn
from urllib.parse import urlsplit

SCHEDULED_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
VM_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
KINDS = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
KEYS = {
    *("EventId", "EventType", "ResourceType", "Resources", "EventStatus", "NotBefore"),
    *("Description", "EventSource", "DurationInSeconds"),
}
POLL_INTERVAL_S = 1.0
RETRY_APPROVAL_S = 2.0
PREPARATION_S = 0.3
FAR_AWAY_S = 900.0  # a later event needs no preparation yet
WORK_BYTES = 64 * 1024  # that the preparation saves


class Defect(StrEnum):
    """One thing that the handler does wrong."""

    # Requests
    EXITS_ON_CONNECTION_ERROR = "exits-on-connection-error"
    EXITS_ON_ERROR_STATUS = "exits-on-error-status"
    EXITS_ON_BAD_DOCUMENT = "exits-on-bad-document"
    GIVES_UP_AT_START = "gives-up-at-start"  # exits if its first request fails
    HAS_NO_TIMEOUT = "has-no-timeout"
    IMPATIENT = "impatient"  # discards an answer that took longer than two seconds
    HAS_SMALL_BUFFER = "has-small-buffer"  # reads 64 KiB of a document
    NEEDS_CONTENT_LENGTH = "needs-content-length"
    POLLS_EVERY_MINUTE = "polls-every-minute"
    POLLS_WITHOUT_PAUSE = "polls-without-pause"
    RETRIES_WITHOUT_PAUSE = "retries-without-pause"
    KEEPS_CONNECTIONS = "keeps-connections"
    KEEPS_DOCUMENTS = "keeps-documents"
    PILES_REQUESTS_UP = "piles-requests-up"  # starts a request each second while others hang
    # Reading
    EXITS_ON_UNKNOWN_KEY = "exits-on-unknown-key"
    EXITS_ON_UNKNOWN_KIND = "exits-on-unknown-kind"
    EXITS_ON_EMPTY_DATE = "exits-on-empty-date"
    NEEDS_EVERY_FIELD = "needs-every-field"  # exits if an event lacks one
    NEEDS_DATE = "needs-date"  # ignores an event whose NotBefore is no RFC 1123 date
    CHECKS_WEEKDAY = "checks-weekday"  # ignores an event whose NotBefore has a wrong one
    NEEDS_HIGHER_INCARNATION = "needs-higher-incarnation"
    IGNORES_FIRST_DOCUMENT = "ignores-first-document"  # takes what it lists for the normal state
    READS_FIRST_EVENT_ONLY = "reads-first-event-only"
    READS_LAST_EVENT_ONLY = "reads-last-event-only"
    KNOWS_REBOOT_ONLY = "knows-reboot-only"
    # Whom
    IGNORES_RESOURCES = "ignores-resources"
    COMPARES_EXACTLY = "compares-exactly"
    COMPARES_BEGINNINGS = "compares-beginnings"
    READS_FIRST_NAME_ONLY = "reads-first-name-only"
    USES_HOSTNAME = "uses-hostname"
    NEEDS_UNDERSCORE = "needs-underscore"  # exits if its name has none
    # Acting
    DOES_NOTHING = "does-nothing"
    PREPARES_FOR_EVERYTHING = "prepares-for-everything"
    STOPS_POLLING_WHILE_PENDING = "stops-polling-while-pending"
    WAITS_FOR_FIRST_EVENT = "waits-for-first-event"  # does nothing until the NotBefore of the first event
    USES_OWN_CLOCK = "uses-own-clock"
    LOSES_PREPARATION = "loses-preparation"
    MARKS_DONE_FIRST = "marks-done-first"  # and does not prepare again if that fails
    HANGS_AFTER_FREEZE = "hangs-after-freeze"
    # Approving
    NEVER_APPROVES = "never-approves"
    APPROVES_FIRST = "approves-first"
    APPROVES_TWICE = "approves-twice"
    APPROVES_NEVERTHELESS = "approves-nevertheless"
    IGNORES_REFUSAL = "ignores-refusal"
    SENDS_NO_HEADER = "sends-no-header"  # with approvals
    LEAVES_IT_TO_THE_FIRST = "leaves-it-to-the-first"  # only the first VM approves, for all
    # Afterwards, and restarts
    NEVER_RECOVERS = "never-recovers"
    WAITS_FOR_STARTED = "waits-for-started"  # before it recovers
    STOPS_AFTER_FIRST_EVENT = "stops-after-first-event"
    FORGETS_RETURNED_EVENT = "forgets-returned-event"  # does not prepare again when a listed event comes back
    FORGETS_AT_RESTART = "forgets-at-restart"
    PREPARES_AGAIN_AT_START = "prepares-again-at-start"
    NEEDS_FREE_LOCK = "needs-free-lock"  # exits if the lock of an earlier run is there
    NEEDS_DISK = "needs-disk"  # exits if it cannot write its log


class ErrorStatus(Exception):
    """The answer to a request had another status than 200."""


class MetadataClient:
    """Sends requests to the metadata endpoint, with the defects of requests."""

    def __init__(self, defects: frozenset[Defect]) -> None:
        endpoint = urlsplit(os.environ.get("ENDPOINT") or "http://169.254.169.254")
        self._address = (endpoint.hostname or "", endpoint.port or 80)
        self._defects = defects
        self._kept: list[http.client.HTTPConnection] = []

    def request(self, path: str, body: bytes | None = None, *, has_header: bool = True) -> tuple[bytes, float]:
        """Send a GET, or with a body a POST; returns the answer's body and its date (POSIX seconds).

        Raises OSError, http.client.HTTPException or ErrorStatus.
        """
        began = time.monotonic()
        timeout = None if self._defects & {Defect.HAS_NO_TIMEOUT, Defect.PILES_REQUESTS_UP} else 6.0
        connection = http.client.HTTPConnection(*self._address, timeout=timeout)
        if Defect.KEEPS_CONNECTIONS in self._defects:
            self._kept.append(connection)
        try:
            headers = {"Metadata": "true"} if has_header else {}
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            data = self._read(response)
        finally:
            if connection not in self._kept:
                connection.close()
        if Defect.IMPATIENT in self._defects and time.monotonic() - began > 2.0:
            raise TimeoutError("the answer took longer than two seconds")
        if response.status != 200:
            raise ErrorStatus(f"status {response.status}")
        date = response.headers["Date"]
        return data, parsedate_to_datetime(date).timestamp() if date else time.time()

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        if Defect.HAS_SMALL_BUFFER in self._defects:
            return response.read(64 * 1024)
        if Defect.NEEDS_CONTENT_LENGTH in self._defects:
            return response.read(int(response.headers.get("Content-Length", "0")))
        return response.read()


class StateFile:
    """What the handler knows of events, on its disk and in memory: ids by what was done."""

    def __init__(self, *, is_read: bool) -> None:
        self.ids: dict[str, list[str]] = {"prepared": [], "approved": [], "started": [], "over": []}
        if is_read:
            with contextlib.suppress(OSError, ValueError), open("state.json", encoding="utf-8") as stream:
                self.ids |= json.load(stream)

    def has(self, what: str, event_id: str) -> bool:
        return event_id in self.ids[what]

    def add(self, what: str, event_id: str) -> None:
        if event_id not in self.ids[what]:
            self.ids[what].append(event_id)
            self.save()

    def save(self) -> None:
        """Write the file; without space, the memory must do."""
        with contextlib.suppress(OSError):
            with open("state.new", "w", encoding="utf-8") as stream:
                json.dump(self.ids, stream)
            os.replace("state.new", "state.json")


class PlantedHandler:
    """Polls, prepares for events of its VM, approves them, and recovers when they are gone."""

    def __init__(self, defects: frozenset[Defect], *, approves: bool, skips: tuple[str, ...]) -> None:
        self._defects = defects
        self._approves = approves
        self._skips = skips
        self._client = MetadataClient(defects)
        forgets = defects & {Defect.FORGETS_AT_RESTART, Defect.PREPARES_AGAIN_AT_START}
        self._state = StateFile(is_read=not forgets)
        self._name: str | None = None
        self._has_polled = False
        self._incarnation = -1
        self._ignored: set[str] = set()
        self._documents: list[bytes] = []
        self._prepared_at = 0.0
        self._next_approval = 0.0

    def run(self) -> NoReturn:
        """Work until it is ended."""
        self._start()
        while True:
            began = time.monotonic()
            pause_s = self._poll_interval_s
            try:
                if Defect.PILES_REQUESTS_UP in self._defects:
                    threading.Thread(target=self._poll, daemon=True).start()
                else:
                    self._poll()
            except (OSError, http.client.HTTPException) as error:
                self._fail(error, Defect.EXITS_ON_CONNECTION_ERROR)
            except ErrorStatus as error:
                self._fail(error, Defect.EXITS_ON_ERROR_STATUS)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._fail(error, Defect.EXITS_ON_BAD_DOCUMENT)
            else:
                self._has_polled = True
                began = time.monotonic()
                time.sleep(pause_s)
            if Defect.HANGS_AFTER_FREEZE in self._defects and time.monotonic() - began > pause_s + 1.5:
                time.sleep(3600)

    @property
    def _poll_interval_s(self) -> float:
        if Defect.POLLS_EVERY_MINUTE in self._defects:
            return 60.0
        return 0.05 if Defect.POLLS_WITHOUT_PAUSE in self._defects else POLL_INTERVAL_S

    def _start(self) -> None:
        if Defect.NEEDS_FREE_LOCK in self._defects:
            try:
                os.close(os.open("lock", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                sys.exit("another handler is running")
        if Defect.PREPARES_AGAIN_AT_START in self._defects:
            _remove("prepared")

    def _fail(self, error: Exception, exits_with: Defect) -> None:
        print(f"a poll failed: {type(error).__name__}: {error}", flush=True)
        if exits_with in self._defects or (Defect.GIVES_UP_AT_START in self._defects and not self._has_polled):
            sys.exit(1)
        if Defect.RETRIES_WITHOUT_PAUSE not in self._defects:
            time.sleep(self._poll_interval_s)

    def _poll(self) -> None:
        if Defect.NEEDS_DISK in self._defects:
            try:
                with open("log", "ab") as stream:
                    stream.write(b"a poll\n" * 1000)
            except OSError as error:
                sys.exit(f"the log cannot be written: {error}")
        body, now = self._client.request(SCHEDULED_EVENTS)
        if Defect.KEEPS_DOCUMENTS in self._defects:
            self._documents += [bytes(bytearray(body)) for _ in range(6)]
        strict = Defect.EXITS_ON_BAD_DOCUMENT in self._defects
        document = json.loads(body.decode() if strict else body)
        events = document["Events"]
        if self._name is None:
            self._name = self._find_name()
        self._handle(document.get("DocumentIncarnation", 0), events, now)

    def _find_name(self) -> str:
        if Defect.USES_HOSTNAME in self._defects:
            return socket.gethostname()
        name = self._client.request(VM_NAME)[0].decode()
        if Defect.NEEDS_UNDERSCORE in self._defects and "_" not in name:
            sys.exit(f"the name {name} has no underscore")
        return name

    def _handle(self, incarnation: int, events: list[dict[str, Any]], now: float) -> None:
        if Defect.NEEDS_HIGHER_INCARNATION in self._defects and incarnation <= self._incarnation:
            return
        self._incarnation = incarnation
        for event in events:
            self._check(event)
        mine = [event for event in events if self._is_mine(event)]
        if Defect.READS_FIRST_EVENT_ONLY in self._defects:
            mine = [event for event in events[:1] if self._is_mine(event)]
        if Defect.READS_LAST_EVENT_ONLY in self._defects and mine:
            mine = events[-1:]
        listed = {event["EventId"] for event in mine}
        if Defect.IGNORES_FIRST_DOCUMENT in self._defects and not self._has_polled:
            self._ignored = listed
        for event in mine:
            if self._concerns_us(event, now):
                self._act(event)
        if Defect.LEAVES_IT_TO_THE_FIRST in self._defects and str(self._name).endswith("0"):
            for event in events:
                self._approve(event)
        self._recover(listed)
        if Defect.LOSES_PREPARATION in self._defects and time.monotonic() > self._prepared_at + 3.0:
            _remove("prepared")

    def _check(self, event: dict[str, Any]) -> None:
        """Exit if the event has something that this handler cannot read."""
        if Defect.EXITS_ON_UNKNOWN_KEY in self._defects and set(event) - KEYS:
            sys.exit(f"unknown keys: {set(event) - KEYS}")
        if Defect.NEEDS_EVERY_FIELD in self._defects and KEYS - set(event):
            sys.exit(f"missing keys: {KEYS - set(event)}")
        if Defect.EXITS_ON_UNKNOWN_KIND in self._defects and event["EventType"] not in KINDS:
            sys.exit(f"unknown kind: {event['EventType']}")
        if Defect.EXITS_ON_EMPTY_DATE in self._defects and not event["NotBefore"]:
            sys.exit("the date is empty")

    def _is_mine(self, event: dict[str, Any]) -> bool:
        names = [str(name) for name in event.get("Resources", [])]
        own = str(self._name)
        if Defect.IGNORES_RESOURCES in self._defects:
            return True
        if Defect.COMPARES_EXACTLY in self._defects:
            return own in names
        if Defect.COMPARES_BEGINNINGS in self._defects:
            return any(name.startswith(own) for name in names)
        if Defect.READS_FIRST_NAME_ONLY in self._defects:
            names = names[:1]
        return own.casefold() in {name.casefold() for name in names}

    def _concerns_us(self, event: dict[str, Any], now: float) -> bool:
        """Return whether something must be done for this event of the VM now."""
        kind, event_id = event["EventType"], event["EventId"]
        if kind not in KINDS or (kind in self._skips and Defect.PREPARES_FOR_EVERYTHING not in self._defects):
            return False
        if Defect.DOES_NOTHING in self._defects or (Defect.KNOWS_REBOOT_ONLY in self._defects and kind != "Reboot"):
            return False
        if event["EventStatus"] != "Scheduled" and Defect.PREPARES_AGAIN_AT_START not in self._defects:
            self._state.add("started", event_id)
            return False
        if event_id in self._ignored or (Defect.STOPS_AFTER_FIRST_EVENT in self._defects and self._state.ids["over"]):
            return False
        if Defect.FORGETS_RETURNED_EVENT in self._defects and self._state.has("over", event_id):
            return False
        return self._is_near(event, now)

    def _is_near(self, event: dict[str, Any], now: float) -> bool:
        """Return whether the event starts soon, by the service's clock; one without a readable date does."""
        try:
            date = parsedate_to_datetime(event["NotBefore"])
        except (ValueError, TypeError):
            return Defect.NEEDS_DATE not in self._defects
        if Defect.CHECKS_WEEKDAY in self._defects and format_datetime(date)[:3] != event["NotBefore"][:3]:
            return False
        at = date.timestamp()
        if Defect.WAITS_FOR_FIRST_EVENT in self._defects:
            time.sleep(max(0.0, at - now))
        if Defect.USES_OWN_CLOCK in self._defects:
            return -60.0 < at - time.time() < 10.0
        return at - now < FAR_AWAY_S

    def _act(self, event: dict[str, Any]) -> None:
        if Defect.STOPS_POLLING_WHILE_PENDING in self._defects:
            time.sleep(60)
        if Defect.APPROVES_FIRST in self._defects:
            self._approve(event)
        if not self._state.has("prepared", event["EventId"]):
            self._prepare(event["EventId"])
        self._approve(event)

    def _prepare(self, event_id: str) -> None:
        if Defect.MARKS_DONE_FIRST in self._defects:
            self._state.add("prepared", event_id)
            time.sleep(1.0)
        elif Defect.APPROVES_FIRST not in self._defects:
            time.sleep(1.5 if Defect.PREPARES_AGAIN_AT_START in self._defects else PREPARATION_S)
        with open("prepared.new", "wb") as stream:
            stream.write(bytes(WORK_BYTES))
        os.replace("prepared.new", "prepared")
        self._prepared_at = time.monotonic()
        self._state.add("prepared", event_id)

    def _approve(self, event: dict[str, Any]) -> None:
        event_id = event["EventId"]
        approves = self._approves or Defect.APPROVES_NEVERTHELESS in self._defects
        if Defect.LEAVES_IT_TO_THE_FIRST in self._defects and not str(self._name).endswith("0"):
            approves = False
        if not approves or Defect.NEVER_APPROVES in self._defects or event["EventStatus"] != "Scheduled":
            return
        if self._state.has("approved", event_id) or time.monotonic() < self._next_approval:
            return
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        self._next_approval = time.monotonic() + RETRY_APPROVAL_S
        for _ in range(2 if Defect.APPROVES_TWICE in self._defects else 1):
            self._send_approval(event_id, body)

    def _send_approval(self, event_id: str, body: bytes) -> None:
        for _ in range(100 if Defect.RETRIES_WITHOUT_PAUSE in self._defects else 1):
            try:
                self._client.request(SCHEDULED_EVENTS, body, has_header=Defect.SENDS_NO_HEADER not in self._defects)
            except (OSError, http.client.HTTPException) as error:
                self._fail(error, Defect.EXITS_ON_CONNECTION_ERROR)
            except ErrorStatus as error:
                print(f"an approval was refused: {error}", flush=True)
                if Defect.IGNORES_REFUSAL in self._defects:
                    self._state.add("approved", event_id)
            else:
                self._state.add("approved", event_id)
                return

    def _recover(self, listed: set[str]) -> None:
        """Undo the preparation once none of the events that it was for is listed."""
        known = self._state.ids["prepared"]
        over = [event_id for event_id in known if event_id not in listed]
        if Defect.WAITS_FOR_STARTED in self._defects:
            over = [event_id for event_id in over if self._state.has("started", event_id)]
        if not over or Defect.NEVER_RECOVERS in self._defects:
            return
        left = [event_id for event_id in known if event_id not in over]
        if not left:
            _remove("prepared")
        self._state.ids["prepared"] = left
        self._state.ids["approved"] = [event_id for event_id in self._state.ids["approved"] if event_id not in over]
        self._state.ids["over"] = [*self._state.ids["over"], *over][-10:]
        self._state.save()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def main() -> NoReturn:
    """Read the arguments and run the handler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--approves", choices=("own", "none"), default="own")
    parser.add_argument("--skips", action="append", default=[], help="a kind of events that needs no preparation")
    parser.add_argument("defects", nargs="*", type=Defect)
    given = parser.parse_args()
    PlantedHandler(frozenset(given.defects), approves=given.approves == "own", skips=tuple(given.skips)).run()


if __name__ == "__main__":
    main()
