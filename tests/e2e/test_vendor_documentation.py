"""The steps of Azure's documentation work against the lab, with the address replaced."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any

import pytest

from forewarn.protocol.versions import VERSIONS
from tests.support.service_process import ServiceProcess, VmEndpoint

FLEET = """
[[hosts]]
name = "host-{n}"
count = 4

[[vms]]
name = "web-{n}"
count = 3

[[availability_sets]]
name = "db"

[[vms]]
name = "DB-{n}"
count = 2
availability_set = "db"
"""
TARGET = "/metadata/scheduledevents?api-version="
NEWEST = "2020-07-01"
EMPTY = '{"DocumentIncarnation":1,"Events":[]}'
Ask = Callable[..., str]
Curl = Callable[..., Any]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path_factory.mktemp("page"), fleet=FLEET) as running:
        yield running


def approved_by(service: ServiceProcess, event_id: str) -> str:
    by: str = service.api("GET", f"/events/{event_id}").json["approved_by"]
    return by


def carry_out(service: ServiceProcess, vm: str) -> None:
    """Advance the clock far enough for approved events to end, but less than any notice."""
    service.advance(120)
    assert service.poll(vm)["Events"] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_documented_query_is_answered_in_every_version(service: ServiceProcess, curl: Curl, version: str) -> None:
    """Spec §2.1, §3, §4.1."""
    answer = curl(service.endpoint("web-2"), TARGET + version)
    assert (answer.status, answer.body) == (200, EMPTY)


@pytest.mark.parametrize("header", ["Metadata:true", "metadata: True", "METADATA: TRUE", "Metadata: true"])
def test_the_metadata_header_is_accepted_in_any_case(service: ServiceProcess, curl: Curl, header: str) -> None:
    """Spec §2.2."""
    assert curl(service.endpoint("web-2"), TARGET + NEWEST, headers=(header,)).status == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_preview_version_works_without_the_header(service: ServiceProcess, curl: Curl, version: str) -> None:
    """Spec §2.2, §10."""
    answer = curl(service.endpoint("web-2"), TARGET + version, headers=())
    if version == "2017-03-01":
        assert (answer.status, answer.body) == (200, EMPTY)
    else:
        assert answer.status == 400
        assert answer.body == '{ "error": "Bad request: . Required metadata header not specified" }'


@pytest.mark.parametrize("version", VERSIONS)
def test_the_documented_approval_starts_the_event_in_every_version(
    service: ServiceProcess, curl: Curl, ask: Ask, version: str
) -> None:
    """Spec §5.1, §5.2: form content type, JSON body, empty 200."""
    event_id = ask(service, "restart", "web-0")
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    answer = curl(service.endpoint("web-0"), TARGET + version, body=body)
    assert (answer.status, answer.body) == (200, "")
    assert approved_by(service, event_id) == "web-0"
    carry_out(service, "web-0")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{{"DocumentIncarnation":"5","StartRequests":[{{"EventId":"{id}"}}]}}', id="incarnation as text"),
        pytest.param('{{"DocumentIncarnation":5,"StartRequests":[{{"EventId":"{id}"}}]}}', id="incarnation as number"),
        pytest.param('{{"StartRequests" : [ {{ "EventId": "{lower}" }} ] }}', id="lower-case id, spaces"),
        pytest.param('{{\n  "StartRequests": [\n    {{"EventId": "{id}"}}\n  ]\n}}', id="over several lines"),
    ],
)
@pytest.mark.parametrize("kind", ["", "Content-Type:", "Content-Type: application/json"], ids=["form", "none", "json"])
def test_an_approval_is_accepted_in_every_documented_form(
    service: ServiceProcess, curl: Curl, ask: Ask, body: str, kind: str
) -> None:
    """Spec §5.1: any content type or none, old members ignored; §4.2: ids compared without case."""
    event_id = ask(service, "restart", "web-1")
    headers = ("Metadata:true", kind) if kind else ("Metadata:true",)
    text = body.format(id=event_id, lower=event_id.lower())
    assert curl(service.endpoint("web-1"), TARGET + NEWEST, headers=headers, body=text).status == 200
    assert approved_by(service, event_id) == "web-1"
    carry_out(service, "web-1")


def test_the_preview_version_is_approved_without_the_header(service: ServiceProcess, curl: Curl, ask: Ask) -> None:
    """Spec §2.2: its samples send no header."""
    event_id = ask(service, "restart", "web-0")
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    assert curl(service.endpoint("web-0"), TARGET + NEWEST, headers=(), body=body).status == 400
    assert approved_by(service, event_id) == ""
    assert curl(service.endpoint("web-0"), TARGET + "2017-03-01", headers=(), body=body).status == 200
    assert approved_by(service, event_id) == "web-0"
    carry_out(service, "web-0")


def test_several_events_are_approved_in_one_request(service: ServiceProcess, curl: Curl, ask: Ask) -> None:
    """Spec §5.1, §5.3: also by a VM that one of them does not list."""
    ids = [ask(service, "restart", vm) for vm in ("DB-0", "DB-1")]
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]})
    assert curl(service.endpoint("DB-1"), TARGET + NEWEST, body=body).status == 200
    assert [approved_by(service, event_id) for event_id in ids] == ["DB-1", "DB-1"]
    carry_out(service, "DB-0")
    assert curl(service.endpoint("DB-0"), TARGET + NEWEST, body=body).status == 200, "a retry is harmless (§5.2)"


def powershell(at: VmEndpoint, method: str, target: str, body: str = "") -> tuple[int, bytes]:
    """Send a request as Invoke-RestMethod of PowerShell 5.1 does: the body waits for 100 Continue."""
    lines = [f"{method} {target} HTTP/1.1", "metadata: true"]
    lines.append("User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.17763.1")
    if body:
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Host: {at.address}:{at.port}"]
        lines += [f"Content-Length: {len(body)}", "Expect: 100-continue"]
    else:
        lines.append(f"Host: {at.address}:{at.port}")
    lines.append("Connection: Keep-Alive")
    with socket.create_connection((at.address, at.port), timeout=60) as sock:
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        if body:
            assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body.encode())
        response = HTTPResponse(sock)
        response.begin()
        return response.status, response.read()


def test_powershell_calls_query_and_approve(service: ServiceProcess, ask: Ask) -> None:
    """Spec §5.2: `Expect: 100-continue` works."""
    event_id, at = ask(service, "redeploy", "web-0"), service.endpoint("web-0")
    _, text = powershell(at, "GET", TARGET + "2019-01-01")
    assert [event["EventId"] for event in json.loads(text)["Events"]] == [event_id]

    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    assert powershell(at, "POST", TARGET + "2019-01-01", body) == (200, b"")
    assert approved_by(service, event_id) == "web-0"
    carry_out(service, "web-0")


class Handler:
    """A handler as the documentation describes it: finds its name, polls, approves its own events."""

    def __init__(self, at: VmEndpoint) -> None:
        self._base = f"http://{at.address}:{at.port}/metadata"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.name = self._ask("/instance/compute/name?api-version=2019-08-01&format=text").decode()
        self.incarnation = 0
        self.handled: list[tuple[str, str]] = []

    def poll(self) -> None:
        document = json.loads(self._ask(f"/scheduledevents?api-version={NEWEST}"))
        if document["DocumentIncarnation"] == self.incarnation:
            return
        self.incarnation = document["DocumentIncarnation"]
        for event in document["Events"]:
            if event["EventStatus"] == "Scheduled" and self.name in event["Resources"]:
                self.handled.append((event["EventType"], event["EventSource"]))
                self._approve(event["EventId"])

    def _approve(self, event_id: str) -> None:
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        assert self._ask(f"/scheduledevents?api-version={NEWEST}", body) == b""

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self._base + path, data=body, headers={"Metadata": "true"})
        with self._opener.open(request, timeout=60) as response:
            text: bytes = response.read()
            return text


def test_a_handler_written_from_the_documentation_sees_only_its_own_events(service: ServiceProcess, ask: Ask) -> None:
    """Spec §2.6, §7.2: both VMs of the set see the event, and only the affected one approves it."""
    mine, neighbour = Handler(service.endpoint("DB-0")), Handler(service.endpoint("DB-1"))
    assert (mine.name, neighbour.name) == ("DB-0", "DB-1")
    event_id = ask(service, "redeploy", "DB-0")
    neighbour.poll()
    assert neighbour.handled == []
    assert service.poll("DB-1")["Events"][0]["EventId"] == event_id

    mine.poll()
    assert mine.handled == [("Redeploy", "User")]
    assert approved_by(service, event_id) == "DB-0"
    carry_out(service, "DB-1")
    neighbour.poll()
    assert neighbour.incarnation >= mine.incarnation + 2, "Started and gone are one step each (§4.2)"
