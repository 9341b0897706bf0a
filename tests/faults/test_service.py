"""All faults on a running service, as a plain HTTP client sees them (spec §11, §12)."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from forewarn.base.times import parse_time
from forewarn.core.faults import FaultKind
from tests.support.service_process import ServiceProcess, eventually

POLL = "/metadata/scheduledevents?api-version=2020-07-01"
UNKNOWN = "/metadata/scheduledevents?api-version=1999-01-01"


def set_fault(service: ServiceProcess, kind: str, **given: Any) -> Any:
    answer = service.api("POST", "/faults", {"kind": kind, **given})
    assert answer.status == 200, answer.body
    return answer.json


def clear(service: ServiceProcess, **given: Any) -> Any:
    answer = service.api("POST", "/faults/clear", given)
    assert answer.status == 200, answer.body
    return answer.json


def restart(service: ServiceProcess, vm: str) -> Any:
    answer = service.api("POST", "/requests", {"operation": "restart", "vms": [vm]})
    assert answer.status == 202, answer.body
    return answer.json["events"][0]


def fault_texts(service: ServiceProcess, **about: str) -> list[str]:
    query = "&".join(f"{name}={value}" for name, value in about.items())
    entries = service.api("GET", f"/history?{query}").json["entries"]
    return [re.sub(r"local user \w+", "USER", entry["text"]) for entry in entries if entry["kind"] == "fault"]


def connected(service: ServiceProcess, vm: str) -> socket.socket:
    """Return a connection that has sent a poll and has not read the answer."""
    at = service.endpoint(vm)
    sock = socket.create_connection((at.address, at.port), timeout=15)
    sock.sendall(f"GET {POLL} HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n".encode())
    return sock


STATUSES = [("gone", 410), ("throttled", 429), ("internal-error", 500)]


@pytest.mark.parametrize(("kind", "status"), STATUSES)
def test_a_client_gets_the_status_of_the_fault(service: ServiceProcess, kind: str, status: int) -> None:
    set_fault(service, kind, vm="alone", count=2)
    assert [service.guest("alone", "GET", POLL).status for _ in range(3)] == [status, status, 200]


def test_a_throttled_client_gets_retry_after(service: ServiceProcess) -> None:
    set_fault(service, "throttled", vm="alone", count=1, parameters={"retry_after_s": 2})
    assert service.guest("alone", "GET", POLL).headers["Retry-After"] == "2"
    texts = [entry["text"] for entry in service.api("GET", "/history?limit=100").json["entries"]]
    assert any(text.endswith(", retry-after 2 s, 1 request at most") for text in texts)


def test_a_client_gets_an_empty_body(service: ServiceProcess) -> None:
    set_fault(service, "empty-body", vm="alone", count=1)
    answer = service.guest("alone", "GET", POLL)
    assert (answer.status, answer.headers["Content-Length"], answer.body) == (200, "0", b"")


def test_the_connection_of_a_client_is_reset(service: ServiceProcess) -> None:
    set_fault(service, "reset", vm="alone", count=1)
    with connected(service, "alone") as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_a_client_waits_for_a_late_first_answer(service: ServiceProcess) -> None:
    set_fault(service, "late-first-answer", vm="alone")
    with connected(service, "alone") as sock:
        eventually(lambda: service.api("GET", "/faults").json["faults"][0]["applied"] == 1)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
    clear(service, vm="alone")
    set_fault(service, "late-first-answer", vm="alone", parameters={"delay_s": 0.1})
    assert service.guest("alone", "GET", POLL).status == 200
    clear(service, vm="alone")


def test_a_client_gets_a_slow_body_in_pieces(service: ServiceProcess) -> None:
    whole = service.guest("alone", "GET", POLL).body
    set_fault(service, "slow-body", vm="alone", parameters={"take_s": 0.5}, count=1)
    with connected(service, "alone") as sock:
        pieces: list[bytes] = []
        while not b"".join(pieces).endswith(whole):
            pieces.append(sock.recv(65536))
    assert len(pieces) > 2


def test_a_client_gets_a_stale_document(service: ServiceProcess) -> None:
    before = service.poll("clear-0")
    set_fault(service, "stale", vm="clear-0")
    event = restart(service, "clear-1")
    assert service.poll("clear-0") == before
    assert [e["EventId"] for e in service.poll("clear-1")["Events"]] == [event["id"]]
    clear(service, vm="clear-0")
    assert service.poll("clear-0") == service.poll("clear-1")


def test_a_client_with_an_unknown_version_gets_404(service: ServiceProcess) -> None:
    set_fault(service, "unknown-version-404", vm="alone", count=1)
    assert [service.guest("alone", "GET", UNKNOWN).status for _ in range(2)] == [404, 400]


def test_a_client_that_does_not_sign_gets_401(service: ServiceProcess) -> None:
    set_fault(service, "unsigned-401", vm="alone", count=1)
    signature = {"x-ms-azure-host-authorization": "Azure-HMAC-SHA256 0 0"}
    assert service.guest("alone", "GET", POLL, **signature).status == 200
    assert [service.guest("alone", "GET", POLL).status for _ in range(2)] == [401, 200]


def test_a_client_gets_an_event_over_several_update_domains(service: ServiceProcess) -> None:
    set_fault(service, "several-update-domains", vm="wide-0")
    assert [e["Resources"] for e in service.poll("wide-1")["Events"]] == [["wide-0", "wide-1"]]


def test_a_client_gets_a_short_notice(service: ServiceProcess) -> None:
    set_fault(service, "short-notice", vm="short-0", count=1)
    event = restart(service, "short-0")
    assert 5 <= parse_time(event["not_before"]) - parse_time(event["published_at"]) < 6  # rounded up to a whole second
    (shown,) = service.poll("short-1")["Events"]
    assert shown["EventStatus"] == "Scheduled"


def test_a_client_gets_an_event_without_notice(service: ServiceProcess) -> None:
    set_fault(service, "no-notice", vm="sudden-0", count=1)
    incarnation = service.poll("sudden-1")["DocumentIncarnation"]
    restart(service, "sudden-0")
    document = service.poll("sudden-1")
    assert document["DocumentIncarnation"] == incarnation + 1
    assert [(e["EventStatus"], e["NotBefore"]) for e in document["Events"]] == [("Started", "")]


def test_an_event_disappears_after_the_approval_of_a_client(service: ServiceProcess) -> None:
    set_fault(service, "withdrawn-after-approval", vm="back-0", count=1)
    event = restart(service, "back-0")
    assert service.approve("back-0", event["id"]).status == 200
    eventually(lambda: service.poll("back-0")["Events"] == [])
    over = service.api("GET", f"/events/{event['id']}").json
    assert (over["ending"], over["started_at"]) == ("withdrawn", None)
    assert over["reason"].endswith("(withdrawn-after-approval) of back-0")


def test_a_client_gets_several_events_at_once(service: ServiceProcess) -> None:
    before = service.poll("many-0")["DocumentIncarnation"]
    made = set_fault(service, "several-at-once", scope="many", parameters={"events": 4})
    document = service.poll("many-0")
    assert [e["EventId"] for e in document["Events"]] == made["events"]
    assert (len(document["Events"]), document["DocumentIncarnation"]) == (4, before + 4)


def test_a_client_gets_an_event_of_its_neighbour_only(service: ServiceProcess) -> None:
    set_fault(service, "neighbour-only", vm="near-0")
    assert [e["Resources"] for e in service.poll("near-0")["Events"]] == [["near-1"]]


def test_a_client_gets_a_reset_incarnation(service: ServiceProcess) -> None:
    restart(service, "again-0")
    before = service.guest("again-1", "GET", POLL)
    set_fault(service, "incarnation-reset", vm="again-0")
    after = service.guest("again-1", "GET", POLL, If_None_Match=before.headers["ETag"])
    assert (before.json["DocumentIncarnation"], after.json["DocumentIncarnation"]) == (2, 1)
    assert before.json["Events"] == after.json["Events"]
    assert before.headers["ETag"] != after.headers["ETag"]


def test_each_fault_has_a_test_here() -> None:
    kinds = {str(kind) for kind in FaultKind}
    assert {kind for kind in kinds if f'"{kind}"' in Path(__file__).read_text(encoding="utf-8")} == kinds


def test_a_fault_expires_by_its_count_and_by_its_duration_and_the_history_says_so(service: ServiceProcess) -> None:
    counted = set_fault(service, "gone", vm="scoped-0", count=2)["id"]
    brief = set_fault(service, "reset", scope="scoped", duration_s=0.05)["id"]
    for _ in range(2):
        service.guest("scoped-0", "GET", POLL)
    ends = eventually(lambda: texts if len(texts := fault_texts(service, scope="scoped")) == 4 else [])
    assert sorted(ends) == sorted(
        [
            f"fault {counted} (gone) set for scoped-0 by USER, 2 requests at most, for 1 min 10 s at most",
            f"fault {brief} (reset) set for scoped by USER, for 0.05 s at most",
            f"fault {brief} (reset) of scoped expired: it affected 0 requests",
            f"fault {counted} (gone) of scoped-0 expired: it affected 2 requests",
        ]
    )
    assert service.api("GET", "/faults").json["faults"] == []


def test_the_explanation_of_a_vm_names_active_faults_and_affected_requests(service: ServiceProcess) -> None:
    fault = set_fault(service, "internal-error", vm="explain-0", count=5)["id"]
    everyone = set_fault(service, "no-notice", scope="explain", duration_s=3600)["id"]
    for _ in range(3):
        assert service.guest("explain-0", "GET", POLL).status == 500
    assert service.guest("explain-1", "GET", POLL).status == 200

    explanation = service.api("GET", "/explain/explain-0").json
    now = [re.sub(r"local user \w+", "USER", text) for text in explanation["now"]]
    assert f"Fault {fault} (internal-error) is on for explain-0, set by USER: it began" in " ".join(now)
    assert "2 of 5 left." in " ".join(now)
    assert any(text.startswith("It has affected 3 requests of explain-0, the last") for text in now)
    assert any(f"Fault {everyone} (no-notice) is on for explain" in text for text in now)
    assert any(f"fault {fault} (internal-error) set for explain-0" in line["text"] for line in explanation["lines"])

    neighbour = service.api("GET", "/explain/explain-1").json
    assert not any(f"Fault {fault} " in text for text in neighbour["now"])
    assert any(f"Fault {everyone} " in text for text in neighbour["now"])

    event = restart(service, "explain-0")
    assert event["note"] == f"fault {everyone} (no-notice) of explain: no notice"
    lines = [line.get("detail", "") for line in service.api("GET", "/explain/explain-0").json["lines"]]
    assert any(f"no notice: fault {everyone} (no-notice)" in detail for detail in lines)

    assert [f["applied"] for f in clear(service, ids=[fault, everyone])["cleared"]] == [3, 1]
    explanation = service.api("GET", "/explain/explain-0").json
    assert not any("is on for" in text for text in explanation["now"])
    assert any("it affected 3 requests" in line["text"] for line in explanation["lines"])


def test_faults_are_cleared_by_kind_vm_scope_or_id(service: ServiceProcess) -> None:
    kinds = ("reset", "empty-body")
    ids = {(kind, vm): set_fault(service, kind, vm=vm)["id"] for kind in kinds for vm in ("kept-0", "kept-1")}
    whole = set_fault(service, "stale", scope="kept")["id"]

    def cleared(**given: Any) -> set[str]:
        return {fault["id"] for fault in clear(service, **given)["cleared"]}

    assert cleared(kind="reset", vm="kept-0") == {ids["reset", "kept-0"]}
    assert cleared(scope="kept") == {whole}
    assert cleared(kind="reset") == {ids["reset", "kept-1"]}
    assert service.api("DELETE", f"/faults/{ids['empty-body', 'kept-0']}").status == 200
    assert cleared(all=True) == {ids["empty-body", "kept-1"]}
    assert service.api("POST", "/faults/clear", {}).json["error"]["message"].startswith("no faults are named")


def test_a_killed_service_keeps_faults_and_counts(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path / "d") as service:
        plain = service.guest("web-0", "GET", POLL).body
        set_fault(service, "gone", vm="web-0", count=3, duration_s=60)
        service.guest("web-0", "GET", POLL)
        eventually(lambda: service.api("GET", "/faults").json["faults"][0]["applied"] == 1)
        service.kill()
        service.start()
        (fault,) = service.api("GET", "/faults").json["faults"]
        assert (fault["kind"], fault["remaining"]) == ("gone", 2)
        answers = [service.guest("web-0", "GET", POLL) for _ in range(3)]
        assert [answer.status for answer in answers] == [410, 410, 200]
        assert answers[-1].body == plain


def test_a_service_stops_cleanly_while_answers_are_late_and_slow(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path / "d") as service:
        set_fault(service, "late-first-answer", vm="web-0")
        set_fault(service, "slow-body", vm="web-1", parameters={"take_s": 120})
        with connected(service, "web-0") as late, connected(service, "web-1") as slow:
            eventually(lambda: [f["applied"] for f in service.api("GET", "/faults").json["faults"]] == [1, 1])
            assert service.stop() == 0
            for sock in (late, slow):
                response = http.client.HTTPResponse(sock)
                response.begin()
                assert response.read() == b'{"DocumentIncarnation":1,"Events":[]}'
