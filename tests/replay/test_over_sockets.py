"""End to end over real sockets: events of one VM of a lab are recorded and replayed to another VM."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.client.endpoint import parse_endpoint
from forewarn.client.recording import (
    EndpointRecorder,
    EndpointRecording,
    RecordedResponse,
    RecordingHeader,
    encode_recording,
)
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply
from tests.support.service_process import ServiceProcess

FLEET = """
[defaults]
location = "westeurope"
[[hosts]]
name = "h-{n}"
count = 3
[[vms]]
name = "web-{n}"
count = 2
[[vms]]
name = "spot"
priority = "Spot"
eviction_policy = "Deallocate"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path / "d", fleet=FLEET) as running:
        running.api("POST", "/clock/speed", {"speed": 0})
        yield running


class RecordingVm:
    """A recorder in a VM; by its clock, answers come ten seconds apart."""

    def __init__(self, service: ServiceProcess, vm: str) -> None:
        at = service.endpoint(vm)
        self.vm = vm
        self.answers: list[RecordedResponse] = []
        self.recorder = EndpointRecorder(
            parse_endpoint(f"{at.address}:{at.port}"), clock=lambda: 10.0 * len(self.answers), sleep=lambda _: None
        )
        self._coming = self.recorder.answers()

    def next_answer(self) -> RecordedResponse:
        """Wait for the next answer that differs from the one before."""
        self.answers.append(next(self._coming))
        return self.answers[-1]

    def next_document(self) -> Any:
        return json.loads(self.next_answer().body)

    def write(self, path: Path) -> Path:
        header = RecordingHeader(vm=self.vm, api_version="2020-07-01", started_at=1.0)
        recording = EndpointRecording(header=header, answers=tuple(self.answers), end=self.recorder.end())
        path.write_bytes(encode_recording(recording))
        return path


def ask(service: ServiceProcess, what: str, vm: str) -> str:
    answer = service.api("POST", "/requests", {"operation": what, "vms": [vm]})
    assert answer.status == 202, answer.body
    event_id: str = answer.json["events"][0]["id"]
    return event_id


def normalize(documents: list[Any], own: str) -> list[Any]:
    """Number ids by their order, replace the name of the VM, and count incarnations from the first."""
    first = documents[0]["DocumentIncarnation"]
    ids: dict[str, int] = {}
    normalized = []
    for document in documents:
        events = [dict(event) for event in document["Events"]]
        for event in events:
            event["EventId"] = ids.setdefault(event["EventId"], len(ids))
            event["Resources"] = ["own" if name == own else name for name in event["Resources"]]
            event["NotBefore"] = bool(event["NotBefore"])
        normalized.append((document["DocumentIncarnation"] - first, events))
    return normalized


def replay(service: ServiceProcess, path: Path, vm: str, *options: str) -> Any:
    ran = service.forewarn("replay", str(path), "--vm", vm, "--no-wait", "--json", *options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def record_two_restarts(service: ServiceProcess, recorder: RecordingVm) -> list[Any]:
    """Approve one restart and withdraw another, record each change, and return the recorded documents."""
    seen = [recorder.next_document()]
    event_id = ask(service, "restart", recorder.vm)
    seen.append(recorder.next_document())
    service.approve(recorder.vm, event_id)
    seen.append(recorder.next_document())
    service.advance(600)
    seen.append(recorder.next_document())
    withdrawn = ask(service, "restart", recorder.vm)
    seen.append(recorder.next_document())
    service.api("POST", f"/events/{withdrawn}/withdraw", {})
    return [*seen, recorder.next_document()]


def replayed_documents(service: ServiceProcess, vm: str) -> list[Any]:
    """Advance in small steps until the replay ends; return the documents that a VM was shown."""
    documents = [service.poll(vm)]
    while service.api("GET", "/replays").json["replays"][-1]["outcome"] is None:
        service.advance(5)
        if (document := service.poll(vm)) != documents[-1]:
            documents.append(document)
    return documents


def test_recorded_events_are_replayed_to_another_vm(service: ServiceProcess, tmp_path: Path) -> None:
    """Spec §4, §5, §6.1, §12: equal except for ids, times, names and the first incarnation."""
    recorder = RecordingVm(service, "web-0")
    recorded = record_two_restarts(service, recorder)
    path = recorder.write(tmp_path / "restarts.jsonl")
    assert [[event["EventStatus"] for event in document["Events"]] for document in recorded] == [
        [],
        ["Scheduled"],
        ["Started"],
        [],
        ["Scheduled"],
        [],
    ]
    replay(service, path, "web-1")
    assert normalize(replayed_documents(service, "web-1"), "web-1") == normalize(recorded, "web-0")
    assert service.api("GET", "/replays").json["replays"][0]["outcome"] == "finished"


def test_an_eviction_can_be_replayed_to_a_vm_that_is_not_spot_and_stays_running(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Spec §6.4: Azure cannot do this on demand."""
    recorder = RecordingVm(service, "spot")
    recorder.next_document()
    ask(service, "evict", "spot")
    recorder.next_document()
    service.advance(31)
    recorder.next_document()
    replay(service, recorder.write(tmp_path / "eviction.jsonl"), "web-0")
    service.advance(15)
    (event,) = service.poll("web-0")["Events"]
    assert (event["EventType"], event["Resources"]) == ("Preempt", ["web-0"])
    assert service.approve("web-0", event["EventId"]).status == 200
    service.advance(60)
    assert service.poll("web-0")["Events"] == []
    assert service.api("GET", "/vms/web-0").json["power"] == "running"


def test_recorded_errors_are_replayed_byte_for_byte(service: ServiceProcess, tmp_path: Path) -> None:
    """Spec §11: 410, 429, an empty body, 500, a reset, each for as long as it lasted."""
    document = json_reply({"DocumentIncarnation": 7, "Events": []})
    throttled = ScriptedReply(status=429, body=b"Throttle Result: Too Many Requests", headers=(("Retry-After", "3"),))
    script = [
        document,
        ScriptedReply(status=410, body=b"gone"),
        throttled,
        ScriptedReply(),
        ScriptedReply(status=500),
        ScriptedReply(resets=True),
    ]
    path = _record_replies(tmp_path, *script, document)

    replay(service, path, "web-0")
    assert service.poll("web-0") == {"DocumentIncarnation": 1, "Events": []}
    answers = []
    for _ in script[1:-1]:
        service.advance(1)
        answer = service.guest("web-0", "GET", "/metadata/scheduledevents?api-version=2020-07-01")
        answers.append((answer.status, answer.body, answer.headers.get("Retry-After")))
    assert answers == [(410, b"gone", None), (429, throttled.body, "3"), (200, b"", None), (500, b"", None)]
    service.advance(1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        service.poll("web-0")
    assert service.poll("web-1")["Events"] == []
    service.advance(1)
    assert service.poll("web-0") == {"DocumentIncarnation": 1, "Events": []}


def _record_replies(tmp_path: Path, *script: ScriptedReply) -> Path:
    """Record these replies, one per second, and return the path of the recording."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with ScriptedServer(*script) as server:
        recorder = EndpointRecorder(
            parse_endpoint(server.url), for_s=len(script) - 0.5, clock=lambda: now[0], sleep=sleep
        )
        answers = tuple(recorder.answers())
    header = RecordingHeader(vm="theirs", api_version="2020-07-01", started_at=1.0)
    path = tmp_path / "errors.jsonl"
    path.write_bytes(encode_recording(EndpointRecording(header=header, answers=answers, end=recorder.end())))
    return path


def test_a_held_poll_is_answered_by_the_next_step(service: ServiceProcess, tmp_path: Path) -> None:
    """Spec §4.4: by a document, and by an error in its place."""
    document = json_reply({"DocumentIncarnation": 7, "Events": []})
    replay(service, _record_replies(tmp_path, document, ScriptedReply(status=410)), "web-0")
    recorder = RecordingVm(service, "web-0")
    recorder.next_document()
    service.advance(1)
    assert recorder.next_answer().status == 410


def test_a_killed_service_continues_the_replay(service: ServiceProcess, tmp_path: Path) -> None:
    recorder = RecordingVm(service, "web-0")
    record_two_restarts(service, recorder)
    replay(service, recorder.write(tmp_path / "restarts.jsonl"), "web-1")
    for _ in range(40):
        service.advance(5)
        if service.poll("web-1")["Events"]:
            break
    before = service.poll("web-1")
    assert before["Events"]
    service.kill()
    service.start()
    assert service.poll("web-1") == before
    assert service.approve("web-1", before["Events"][0]["EventId"]).status == 200
    service.advance(3600)
    assert service.poll("web-1")["Events"] == []
    assert service.poll("web-1")["DocumentIncarnation"] > before["DocumentIncarnation"]
