"""The bytes that the metadata endpoint sends are frozen: status lines, headers and bodies, for each version and error.

The lab's clock stands at a fixed instant, so dates are compared as they are; only ids are masked.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.harness import SUBSCRIPTION, Console, Masks, Service, check_golden, exchange, read_answer

VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
NEWEST = VERSIONS[-1]
EVENTS = "/metadata/scheduledevents"
TOKEN = "/metadata/identity/oauth2/token"
MANAGEMENT = "https://management.azure.com"
UNKNOWN = "DEADBEEF-0000-4000-8000-000000000001"
FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"
tags = {team = "shop"}

[[hosts]]
name = "host-{n}"
count = 6

[[hosts]]
name = "failing"

[[availability_sets]]
name = "db"
update_domains = 3

[[vms]]
name = "db-{n}"
count = 3
availability_set = "db"

[[vms]]
name = "lone-{n}"
count = 8
host = "host-0"

[[vms]]
name = "spot"
priority = "Spot"

[[vms]]
name = "doomed"
host = "failing"

[[scale_sets]]
name = "workers"
count = 2
terminate_notification = 5
computer_name_prefix = "worker"

[[cloud_services]]
name = "front"

[[cloud_services.roles]]
name = "FrontEnd"
count = 2
"""
CONFIG = """
unknown_version = "lenient"
iso_dates = true
require_header = true
identity_on_loopback = true

[versions]
norwayeast = ["2017-08-01", "2019-08-01"]
"""
STRICT_CONFIG = """
unknown_version = "not-found"
requests_per_s = 1
"""
SMALL = """
[defaults]
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 2

[[vms]]
name = "web-{n}"
count = 4

[[hosts]]
name = "north"
location = "norwayeast"

[[vms]]
name = "fjord"
location = "norwayeast"
"""


def request_bytes(target: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 169.254.169.254", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body.encode())}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body.encode()


def get(target: str, *headers: str) -> bytes:
    return request_bytes(target, "Metadata: true", *headers)


def post(body: str, version: str = NEWEST) -> bytes:
    return request_bytes(f"{EVENTS}?api-version={version}", "Metadata: true", method="POST", body=body)


def approval(*ids: str) -> str:
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]})


def shown(title: str, request: bytes, raw: bytes, masks: Masks) -> str:
    """One exchange as a golden file shows it; `\\r\\n` marks the line ends of the wire."""
    asked = request.decode("latin-1") if len(request) < 2_000 else f"{request[:60].decode('latin-1')}…\r\n"
    answered = raw.decode("ascii").replace("\r\n", "\\r\\n\n")
    quoted = "\n".join(f"> {line}" for line in asked.replace("\r\n", "\n").rstrip("\n").split("\n"))
    return masks.text(f"=== {title}\n{quoted}\n{answered}\n")


class Caller:
    """Calls of one VM, noted down."""

    def __init__(self, service: Service, vm: str, masks: Masks | None = None) -> None:
        self.at, self.masks = service.endpoint(vm), masks or service.masks()
        self.noted: list[str] = []

    def ask(self, title: str, request: bytes) -> bytes:
        raw = exchange(self.at, request)
        self.note(title, request, raw)
        return raw

    def note(self, title: str, request: bytes, raw: bytes) -> None:
        self.noted.append(shown(title, request, raw, self.masks))

    def check(self, name: str) -> None:
        check_golden(f"wire/{name}.txt", "\n".join(self.noted))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Events of every kind, scheduled and started, at an instant that is the same in every run."""
    with Service(tmp_path_factory.mktemp("wire") / "data", fleet=FLEET) as running:
        running.stop_the_clock()
        started = running.ask("restart", "db-0")["events"][0]["id"]
        running.good("POST", f"/events/{started}/approve")
        running.ask("redeploy", "db-1")
        running.good("POST", "/rollouts", {"impact": "update", "scope": "db"})
        running.ask("evict", "spot")
        running.ask("delete", "workers_0")
        running.ask("restart", "FrontEnd_IN_0")
        running.good("POST", "/hosts/failing/fail")
        yield running


@pytest.fixture(scope="module")
def unfinished(service: Service) -> Iterator[socket.socket]:
    """A connection whose request is never whole; it is opened early, because the refusal takes ten seconds."""
    with socket.create_connection(service.endpoint("lone-7"), timeout=30) as sock:
        sock.sendall(b"GET /metadata/scheduledevents HTTP/1.1\r\nHost: ")
        yield sock


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with settings that change the wire, and with a console, for which it signs tokens of VMs."""
    with Service(tmp_path_factory.mktemp("lenient") / "data", fleet=SMALL, has_api=True, config=CONFIG) as running:
        running.stop_the_clock()
        yield running


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.usefixtures("unfinished")
def test_every_api_version_shows_every_kind_of_event_in_its_own_words(service: Service, version: str) -> None:
    masks, noted = service.masks(), []
    for vm in ("db-2", "spot", "workers_1", "FrontEnd_IN_1", "doomed", "lone-0"):
        caller = Caller(service, vm, masks)
        caller.ask(f"{vm} asks with api-version {version}", get(f"{EVENTS}?api-version={version}"))
        noted += caller.noted
    check_golden(f"wire/document-{version}.txt", "\n".join(noted))


BAD_REQUESTS: dict[str, bytes] = {
    "verb PUT": request_bytes(f"{EVENTS}?api-version={NEWEST}", "Metadata: true", method="PUT"),
    "verb HEAD": request_bytes(f"{EVENTS}?api-version={NEWEST}", "Metadata: true", method="HEAD"),
    "verb DELETE": request_bytes(f"{EVENTS}?api-version={NEWEST}", "Metadata: true", method="DELETE"),
    "POST to what can only be read": request_bytes(
        "/metadata/instance?api-version=2021-02-01", "Metadata: true", method="POST", body="{}"
    ),
    "unknown path": get(f"/metadata/nowhere?api-version={NEWEST}"),
    "path without metadata": get("/"),
    "Origin": get(f"{EVENTS}?api-version={NEWEST}", "Origin: http://example.org"),
    "X-Forwarded-For": get(f"{EVENTS}?api-version={NEWEST}", "X-Forwarded-For: 10.0.0.1"),
    "X-Forwarded-For, empty": get(f"{EVENTS}?api-version={NEWEST}", "X-Forwarded-For:"),
    "repeated parameter": get(f"{EVENTS}?api-version={NEWEST}&API-Version={NEWEST}"),
    "Metadata missing": request_bytes(f"{EVENTS}?api-version={NEWEST}"),
    "Metadata false": request_bytes(f"{EVENTS}?api-version={NEWEST}", "Metadata: false"),
    "Metadata missing in 2017-08-01": request_bytes(f"{EVENTS}?api-version=2017-08-01"),
    "Metadata not enforced in 2017-03-01": request_bytes(f"{EVENTS}?api-version=2017-03-01"),
    "api-version missing": get(EVENTS),
    "api-version unknown": get(f"{EVENTS}?api-version=2018-01-01"),
    "api-version latest": get(f"{EVENTS}?api-version=latest"),
    "api-version {latest} in the path": get("/metadata/latest/scheduledevents"),
    "path in another case": get(f"/Metadata/ScheduledEvents?api-version={NEWEST}"),
    "not HTTP": b"nonsense\r\n\r\n",
    "headers too long": get(f"{EVENTS}?api-version={NEWEST}", "X-Long: " + "x" * 17_000),
    "body too long": post(" " * 65_537),
}


def test_every_documented_error_of_a_request_keeps_its_bytes(service: Service) -> None:
    caller = Caller(service, "lone-1")
    for title, request in BAD_REQUESTS.items():
        caller.ask(title, request)
    caller.check("errors")


def test_a_caller_that_is_no_vm_is_told_nothing(service: Service) -> None:
    caller = Caller(service, "lone-1")
    caller.at = ("127.0.0.250", service.port)
    caller.ask("an address of no VM", get(f"{EVENTS}?api-version={NEWEST}"))
    caller.check("unknown-caller")


BAD_BODIES = {
    "no body": "",
    "no JSON": "{",
    "no object": "[]",
    "StartRequests missing": "{}",
    "StartRequests is no list": '{"StartRequests": {}}',
    "StartRequests holds a text": '{"StartRequests": ["x"]}',
    "EventId missing": '{"StartRequests": [{}]}',
    "EventId is a number": '{"StartRequests": [{"EventId": 7}]}',
    "unknown id": approval(UNKNOWN.lower()),
    "id that is no GUID": approval("nothing"),
    "empty list": '{"StartRequests": []}',
}


def test_approvals_that_are_not_understood_keep_their_refusals(service: Service) -> None:
    caller = Caller(service, "lone-2")
    for title, body in BAD_BODIES.items():
        caller.ask(title, post(body))
    caller.check("bad-approvals")


def test_a_valid_approval_is_answered_with_an_empty_body_and_starts_the_event(service: Service) -> None:
    caller, event_id = Caller(service, "lone-3"), service.ask("restart", "lone-3")["events"][0]["id"]
    caller.ask("scheduled", get(f"{EVENTS}?api-version={NEWEST}"))
    caller.ask("one unknown id refuses all", post(approval(event_id, UNKNOWN)))
    caller.ask("still scheduled", get(f"{EVENTS}?api-version={NEWEST}"))
    old = json.dumps({"DocumentIncarnation": "5", "StartRequests": [{"EventId": event_id.lower()}]})
    caller.ask("approved", post(old, "2017-08-01"))
    service.advance(0.001)  # returns when everything that is due was done and published
    caller.ask("started", get(f"{EVENTS}?api-version={NEWEST}"))
    caller.ask("approved again", post(approval(event_id)))
    caller.check("approval")


def test_an_approval_that_waits_for_100_continue_is_told_to_go_on(service: Service) -> None:
    caller, event_id = Caller(service, "lone-4"), service.ask("restart", "lone-4")["events"][0]["id"]
    head, _, body = post(approval(event_id)).partition(b"\r\n\r\n")
    request = head + b"\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(caller.at, timeout=30) as sock:
        sock.sendall(request)
        caller.note("the head", request, read_answer(sock))
        sock.sendall(body)
        caller.note("the body", body, read_answer(sock))
    caller.check("expect-continue")


def test_an_etag_is_answered_with_304_until_the_document_changes(service: Service) -> None:
    caller, target = Caller(service, "lone-5"), f"{EVENTS}?api-version={NEWEST}"
    first = caller.ask("the document", get(target))
    tag = re.findall(rb"ETag: ([^\r]*)", first)[0].decode()
    caller.ask("its own tag", get(target, f"If-None-Match: {tag}"))
    caller.ask("a weak tag in a list", get(target, f'If-None-Match: "x", W/{tag}'))
    caller.ask("another tag", get(target, 'If-None-Match: "x"'))
    caller.ask("any tag", get(target, "If-None-Match: *"))
    service.ask("restart", "lone-5")
    caller.ask("its own tag after a change", get(target, f"If-None-Match: {tag}"))
    caller.check("etag")


def test_a_long_poll_is_held_until_the_document_changes_or_its_time_is_over(service: Service) -> None:
    caller, target = Caller(service, "lone-6"), f"{EVENTS}?api-version={NEWEST}"
    tag = re.findall(rb"ETag: ([^\r]*)", caller.ask("the document", get(target)))[0].decode()
    caller.ask("nothing changes", get(target, f"If-None-Match: {tag}", "Prefer: wait=1"))
    with socket.create_connection(caller.at, timeout=30) as sock:
        request = get(target, f"If-None-Match: {tag}", "Prefer: wait=30")
        sock.sendall(request)
        service.ask("restart", "lone-6")
        caller.note("an event is scheduled", request, read_answer(sock))
    caller.check("long-poll")


def test_what_a_vm_reads_about_itself_keeps_its_bytes(service: Service) -> None:
    masks, noted = service.masks(), []
    for vm in ("db-1", "spot", "workers_1", "FrontEnd_IN_1"):
        caller = Caller(service, vm, masks)
        caller.ask(f"{vm}, whole", get("/metadata/instance?api-version=2021-02-01"))
        noted += caller.noted
    caller = Caller(service, "db-1", masks)
    targets = {
        "the versions": "/metadata/versions",
        "the oldest version": "/metadata/instance?api-version=2017-03-01",
        "the newest version": "/metadata/instance?api-version=2025-04-07",
        "a sub-tree": "/metadata/instance/compute?api-version=2021-02-01",
        "a leaf as text": "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        "a leaf without format": "/metadata/instance/compute/name?api-version=2021-02-01",
        "a sub-tree as text": "/metadata/instance/compute?api-version=2021-02-01&format=text",
        "no such leaf": "/metadata/instance/compute/colour?api-version=2021-02-01&format=text",
        "api-version missing": "/metadata/instance",
        "api-version unknown": "/metadata/instance?api-version=1999-01-01",
    }
    for title, target in targets.items():
        caller.ask(title, get(target))
    caller.ask("Metadata missing", request_bytes("/metadata/instance?api-version=2017-03-01"))
    check_golden("wire/instance.txt", "\n".join(noted + caller.noted))


# The contract leaves the words of these refusals open (REASON in §10), so they are masked.
_OWN_REASONS = re.compile(
    r"Content-Length: \d+((?:(?!===|Content-Length)[\s\S])*?\"error_description\":\")"
    r"(?!Required metadata header not specified|Identity not found)[^\"]*(\")"
)


def test_the_errors_of_identity_tokens_keep_their_bytes(service: Service, lenient: Service) -> None:
    target = f"{TOKEN}?api-version=2018-02-01"
    on_loopback = Caller(service, "lone-1")
    on_loopback.ask("on loopback", get(f"{target}&resource={MANAGEMENT}"))
    caller = Caller(lenient, "web-0")
    caller.ask("Metadata missing", request_bytes(f"{target}&resource={MANAGEMENT}"))
    caller.ask("neither header nor query", request_bytes(TOKEN))
    caller.ask("api-version missing", get(f"{TOKEN}?resource={MANAGEMENT}"))
    caller.ask("resource missing", get(target))
    caller.ask("another identity", get(f"{target}&resource={MANAGEMENT}&client_id={UNKNOWN}"))
    caller.ask("a resource of others", get(f"{target}&resource=https://vault.azure.net"))
    caller.ask("POST", request_bytes(target, "Metadata: true", method="POST", body="{}"))
    noted = "\n".join(on_loopback.noted + caller.noted)
    check_golden("wire/token-errors.txt", _OWN_REASONS.sub(r"Content-Length: <length>\1<reason>\2", noted))


def test_an_identity_token_is_given_in_the_shape_that_the_vendors_clients_read(lenient: Service) -> None:
    raw = exchange(lenient.endpoint("web-0"), get(f"{TOKEN}?api-version=2018-02-01&resource={MANAGEMENT}/"))
    head, _, body = raw.decode().partition("\r\n\r\n")
    head = re.sub(r"Content-Length: \d+", "Content-Length: <length>", head).replace("\r\n", "\\r\\n\n")
    told: dict[str, Any] = json.loads(body)
    assert all(isinstance(text, str) for text in told.values())
    for name in ("access_token", "expires_on", "not_before"):
        told[name] = f"<{name}>"
    told |= {name: "3599" for name in ("expires_in", "ext_expires_in") if 3599 - int(told[name]) in range(60)}
    check_golden("wire/token.txt", lenient.masks().text(f"{head}\n\n{json.dumps(told, indent=1)}\n"))
    token = json.loads(body)["access_token"]
    answer = Console(lenient).call("GET", f"/subscriptions/{SUBSCRIPTION}?api-version=2022-12-01", token=token)
    assert answer.status in (200, 404), "the console knows the VM, which has no role yet"


def test_settings_change_the_wire_only_as_they_say(lenient: Service) -> None:
    lenient.ask("restart", "web-1")
    caller = Caller(lenient, "web-1")
    caller.ask("iso_dates", request_bytes(f"{EVENTS}?api-version=2017-08-01", "Metadata: true"))
    caller.ask("iso_dates, 2017-11-01", get(f"{EVENTS}?api-version=2017-11-01"))
    caller.ask("require_header", request_bytes(f"{EVENTS}?api-version=2017-03-01"))
    caller.ask("lenient", get(f"{EVENTS}?api-version=2019-05-05"))
    caller.ask("lenient, but older than all", get(f"{EVENTS}?api-version=2016-01-01"))
    caller.at = lenient.endpoint("fjord")
    caller.ask("versions of a location", get(f"{EVENTS}?api-version=2019-08-01"))
    caller.ask("a version that the location does not serve", get(f"{EVENTS}?api-version=2017-03-01"))
    caller.check("settings")


def test_an_unknown_version_may_be_not_found_and_too_many_requests_are_throttled(tmp_path: Path) -> None:
    with Service(tmp_path / "data", fleet=SMALL, config=STRICT_CONFIG) as strict:
        strict.stop_the_clock()
        caller, target = Caller(strict, "web-0"), get(f"{EVENTS}?api-version={NEWEST}")
        caller.ask("not-found", get(f"{EVENTS}?api-version=2018-01-01"))
        answers = (exchange(caller.at, target) for _ in range(200))
        caller.note("throttled", target, next(raw for raw in answers if b" 429 " in raw.partition(b"\r\n")[0]))
        caller.check("settings-strict")


@pytest.mark.parametrize("kind", ["empty-body", "gone", "throttled", "internal-error", "unknown-version-404"])
def test_a_fault_of_the_service_keeps_its_bytes(lenient: Service, kind: str) -> None:
    lenient.good("POST", "/faults", {"kind": kind, "vm": "web-3", "count": 1})
    caller = Caller(lenient, "web-3")
    version = "2018-01-01" if kind == "unknown-version-404" else NEWEST
    caller.ask(kind, get(f"{EVENTS}?api-version={version}"))
    lenient.good("POST", "/faults/clear", {"all": True})
    caller.check(f"fault-{kind}")


def test_a_request_that_is_not_whole_in_time_is_refused(service: Service, unfinished: socket.socket) -> None:
    caller = Caller(service, "lone-7")
    caller.note("a request that is never whole", b"GET", read_answer(unfinished))
    caller.check("timeout")
