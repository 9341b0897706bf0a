"""A minimal handler for the tests of the lab: polls and approves over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.lab.values import LabVm

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    date: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Guest:
    """A program inside a VM that polls and approves."""

    vm: LabVm

    def poll(self) -> Answer:
        return self._send("GET")

    def events(self) -> list[dict[str, Any]]:
        answer = self.poll()
        assert answer.status == 200, answer
        events: list[dict[str, Any]] = answer.json["Events"]
        return events

    def approve(self, *ids: str) -> Answer:
        return self._send("POST", json.dumps({"StartRequests": [{"EventId": each} for each in ids]}))

    def _send(self, method: str, body: str | None = None) -> Answer:
        with closing(http.client.HTTPConnection(urlsplit(self.vm.endpoint).netloc, timeout=60)) as connection:
            connection.request(method, TARGET, body, {"Metadata": "true"})
            response = connection.getresponse()
            date = parsedate_to_datetime(response.headers["Date"]).timestamp()
            return Answer(status=response.status, body=response.read(), date=date)


@pytest.fixture(scope="session")
def guest() -> Callable[[LabVm], Guest]:
    return Guest
