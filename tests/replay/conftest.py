"""Fixtures of record and replay tests: sample recordings, and a lab in which they are replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from forewarn.core.fleet import Priority
from forewarn.core.replay import RecordedAnswer, ReplayedAnswer, UploadedRecording
from forewarn.core.request import MaintenanceRequest
from forewarn.protocol.codec import encode_document
from forewarn.protocol.dates import http_date
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.store.interface import AppliedCommit
from tests.support.world import World, a_host, a_vm

RECORDED_AT = 1_600_000_000.0  # when the sample recordings were made
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


def event(event_id: str = ID, **facts: Any) -> dict[str, Any]:
    whole = {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["theirs"],
        "NotBefore": http_date(RECORDED_AT + 900),
        "Description": "",
        "EventSource": "User",
        "DurationInSeconds": -1,
    }
    started = {"NotBefore": ""} if facts.get("EventStatus") == "Started" else {}
    return whole | started | facts


def answer(at_s: float, *events: dict[str, Any], incarnation: int = 1, **facts: Any) -> RecordedAnswer:
    """Return a recorded document with these events."""
    body = json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()
    given: dict[str, Any] = {"at_s": at_s, "date": RECORDED_AT + int(at_s), "status": 200, "body": body}
    return RecordedAnswer(**given | facts)


def recording(*answers: RecordedAnswer, **facts: Any) -> UploadedRecording:
    given: dict[str, Any] = {
        "vm": "theirs",
        "api_version": NEWEST_VERSION,
        "started_at": RECORDED_AT,
        "answers": answers,
    }
    return UploadedRecording(**given | facts)


@dataclass(kw_only=True)
class Lab:
    """A world, and every document or status that web-0 was shown since `listen`."""

    world: World
    seen: list[tuple[float, Any]] = field(default_factory=list)

    def listen(self) -> None:
        self.world.store.subscribe(self._record_shown)

    def _record_shown(self, applied: AppliedCommit) -> None:
        now = (self.world.now, self.shows())
        if not self.seen or self.seen[-1][1] != now[1]:
            self.seen.append(now)

    def shown(self, vm: str = "web-0") -> ReplayedAnswer | None:
        return self.world.control.replays.current_answer(self.world.scope(vm))

    def shows(self, vm: str = "web-0", version: str = NEWEST_VERSION) -> Any:
        """Return the document that this VM would get, or the status shown in its place."""
        shown = self.shown(vm)
        if shown is None:
            return json.loads(self.world.document(vm, version))
        return json.loads(encode_document(shown.document, version)) if shown.instead is None else shown.instead.status

    def start(self, recorded: UploadedRecording, vm: str = "web-0", **options: Any) -> MaintenanceRequest:
        world = self.world
        request = world.do(world.control.replays.start(world.vm(vm), recorded, who="ann", **options))
        world.settle()
        return request


@pytest.fixture
def lab() -> Iterator[Lab]:
    pair = [a_vm(f"db-{n}", host="h1", availability_set="db", update_domain=n) for n in (0, 1)]
    spot = a_vm("spot", host="h2", priority=Priority.SPOT)
    world = World(vms=[a_vm("web-0"), a_vm("web-1"), *pair, spot], hosts=[a_host("h1"), a_host("h2")])
    lab = Lab(world=world)
    lab.listen()
    yield lab
    world.close()


@dataclass(frozen=True)
class RecordingMaker:
    """Functions that make recordings and their parts."""

    event: Callable[..., dict[str, Any]]
    answer: Callable[..., RecordedAnswer]
    recording: Callable[..., UploadedRecording]
    recorded_at: float = RECORDED_AT
    id: str = ID


@pytest.fixture(scope="session")
def make() -> RecordingMaker:
    """Functions that make recordings and their parts."""
    return RecordingMaker(event=event, answer=answer, recording=recording)


@pytest.fixture
def restart_recording(make: RecordingMaker) -> UploadedRecording:
    """A recording of a Reboot that was approved after a minute and took ten seconds."""
    return make.recording(
        make.answer(0.0, incarnation=4),
        make.answer(5.0, make.event(NotBefore=http_date(RECORDED_AT + 905)), incarnation=5),
        make.answer(65.0, make.event(EventStatus="Started"), incarnation=6),
        make.answer(75.0, incarnation=7),
        ended_s=80.0,
        ended_date=RECORDED_AT + 80,
    )
