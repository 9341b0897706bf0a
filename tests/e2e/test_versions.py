"""One event of each kind on the running lab, as each api-version shows it (spec §3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from forewarn.protocol.versions import VERSIONS
from tests.support.service_process import ServiceProcess

FLEET = """
[[hosts]]
name = "host-{n}"
count = 4

[[vms]]
name = "freeze"

[[vms]]
name = "reboot"

[[vms]]
name = "redeploy"

[[vms]]
name = "preempt"
priority = "Spot"

[[vms]]
name = "preempt-too"
priority = "Spot"

[[vms]]
name = "terminate"
terminate_notification = 5

[[cloud_services]]
name = "shop"

[[cloud_services.roles]]
name = "FrontEnd"
"""
SINCE = {
    "Freeze": "2017-03-01",
    "Reboot": "2017-03-01",
    "Redeploy": "2017-03-01",
    "Preempt": "2017-11-01",
    "Terminate": "2019-01-01",
}
ASKS = {"Reboot": "restart", "Redeploy": "redeploy", "Preempt": "evict", "Terminate": "delete"}
NOTICE_S = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30, "Terminate": 300}  # spec §6.3
FIRST = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]
LATER = {"Description": "2019-04-01", "EventSource": "2019-08-01", "DurationInSeconds": "2020-07-01"}


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["one process", "two workers"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ask: Callable[..., str]
) -> Iterator[tuple[ServiceProcess, dict[str, str]]]:
    """A lab with a stopped clock and one scheduled event of each kind; also the event ids by VM."""
    with ServiceProcess(data=tmp_path_factory.mktemp("kinds"), fleet=FLEET, arguments=request.param) as running:
        assert running.api("POST", "/clock/speed", {"speed": 0}).status == 200
        ids = {kind.lower(): ask(running, what, kind.lower()) for kind, what in ASKS.items()}
        ids["FrontEnd_IN_0"] = ask(running, "restart", "FrontEnd_IN_0")
        ids["freeze"] = start_rollout(running, "freeze")
        yield running, ids


def start_rollout(service: ServiceProcess, vm: str) -> str:
    scope = service.api("GET", f"/vms/{vm}").json["scope"]
    answer = service.api("POST", "/rollouts", {"impact": "update", "scope": scope})
    assert answer.status == 202, answer.body
    event_id: str = service.api("GET", f"/vms/{vm}").json["events"][0]["id"]
    return event_id


def seen(service: ServiceProcess, vm: str, version: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = service.poll(vm, version)["Events"]
    return events


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", SINCE)
def test_a_version_shows_the_kinds_and_fields_it_knows(
    service: tuple[ServiceProcess, dict[str, str]], kind: str, version: str
) -> None:
    """Spec §3, §4.1: kinds and fields unknown to a version are absent, and keys are in order."""
    running, ids = service
    events = seen(running, kind.lower(), version)
    if version < SINCE[kind]:
        assert events == []
        return
    assert [(event["EventId"], event["EventType"]) for event in events] == [(ids[kind.lower()], kind)]
    assert list(events[0]) == FIRST + [field for field, since in LATER.items() if version >= since]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_incarnation_is_the_same_in_every_version(
    service: tuple[ServiceProcess, dict[str, str]], version: str
) -> None:
    """Spec §3: whether or not a version shows the event."""
    assert service[0].poll("terminate", version)["DocumentIncarnation"] == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_preview_version_puts_an_underscore_before_names(
    service: tuple[ServiceProcess, dict[str, str]], version: str
) -> None:
    """Spec §3: but not before the role names of a cloud service."""
    prefix = "_" if version == "2017-03-01" else ""
    assert seen(service[0], "reboot", version)[0]["Resources"] == [f"{prefix}reboot"]
    assert seen(service[0], "FrontEnd_IN_0", version)[0]["Resources"] == ["FrontEnd_IN_0"]


@pytest.mark.parametrize("kind", SINCE)
def test_the_notice_is_the_minimum_of_the_kind(service: tuple[ServiceProcess, dict[str, str]], kind: str) -> None:
    """Spec §6.3, §12: NotBefore minus the Date of the same answer, in whole seconds, rounded up."""
    answer = service[0].guest(kind.lower(), "GET", "/metadata/scheduledevents?api-version=2020-07-01")
    not_before = parsedate_to_datetime(answer.json["Events"][0]["NotBefore"])
    left = (not_before - parsedate_to_datetime(answer.headers["Date"])).total_seconds()
    assert left in (NOTICE_S[kind], NOTICE_S[kind] + 1)


def test_an_event_can_be_approved_in_a_version_that_hides_it(
    service: tuple[ServiceProcess, dict[str, str]], ask: Callable[..., str]
) -> None:
    """Spec §3: the version of a POST does not filter kinds."""
    event_id = ask(service[0], "evict", "preempt-too")
    assert service[0].approve("preempt-too", event_id, version="2017-03-01").status == 200
    assert service[0].api("GET", f"/events/{event_id}").json["approved_by"] == "preempt-too"
