"""Lab time: documents follow the lab's clock, long polls wait in real time (spec §12)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime, parse_time
from tests.support.service_process import HttpAnswer, ServiceProcess, eventually, free_port, run_forewarn

FLEET = """
[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "web-{n}"
count = 3
"""
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
DAY_S = 24 * 3600
Ask = Callable[..., str]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as running:
        yield running


def lab_now(service: ServiceProcess) -> float:
    return parse_time(service.api("GET", "/clock").json["now"])


def set_speed(service: ServiceProcess, speed: float) -> None:
    assert service.api("POST", "/clock/speed", {"speed": speed}).status == 200


def shown_time(answer: HttpAnswer) -> float:
    return parsedate_to_datetime(answer.headers["Date"]).timestamp()


def vm_view(service: ServiceProcess, name: str) -> dict[str, Any]:
    view: dict[str, Any] = service.api("GET", f"/vms/{name}").json
    return view


def test_advancing_a_week_moves_vms_off_a_degraded_host(service: ServiceProcess) -> None:
    """Spec §6.4: a failure is predicted days ahead; §12: advance returns when all due work is done."""
    host = vm_view(service, "web-0")["host"]
    asked = service.api("POST", f"/hosts/{host}/degrade", {"in_s": 7 * DAY_S})
    assert asked.status == 202, asked.body

    assert service.forewarn("clock", "advance", "6d").returncode == 0
    (event,) = service.poll("web-0")["Events"]
    assert (event["EventType"], event["EventStatus"]) == ("Redeploy", "Scheduled")
    done = service.forewarn("clock", "advance", "25h")
    assert done.returncode == 0
    assert "Redeploy of web-0 started" in done.stdout
    assert service.poll("web-0")["Events"] == []
    assert vm_view(service, "web-0")["host"] not in ("", host)


def test_the_date_of_an_answer_is_lab_time(service: ServiceProcess) -> None:
    """Spec §12: guests compute the time left as NotBefore less Date."""
    set_speed(service, 0)
    service.advance(7 * DAY_S)
    assert shown_time(service.guest("web-0", "GET", TARGET)) == int(lab_now(service))
    assert lab_now(service) > time.time() + 6 * DAY_S
    assert shown_time(service.guest("web-0", "GET", "/metadata/nothing")) == int(lab_now(service))


def test_the_clock_keeps_its_offset_and_its_speed_over_a_restart(service: ServiceProcess) -> None:
    """Spec §12: the offset is stored, and never moves back."""
    set_speed(service, 50)
    service.advance(7 * DAY_S)
    before = lab_now(service)
    service.kill()
    service.start()
    assert service.api("GET", "/clock").json["speed"] == 50
    assert before < lab_now(service) < before + DAY_S
    assert shown_time(service.guest("web-0", "GET", TARGET)) >= int(before)


def test_a_notice_ends_on_a_fast_clock(service: ServiceProcess, ask: Ask) -> None:
    """Spec §6.2, §12: fifteen minutes pass in a second and a half."""
    event_id = ask(service, "restart", "web-0")
    set_speed(service, 600)
    eventually(lambda: service.poll("web-0")["Events"] == [])
    event = service.api("GET", f"/events/{event_id}").json
    assert event["approved_at"] is None
    published, *later = (parse_time(event[f]) for f in ("published_at", "not_before", "started_at", "over_at"))
    assert published + 900 <= later[0] <= later[1] < later[2]


def test_a_jump_to_a_time_that_has_passed_meanwhile_is_a_jump_to_now() -> None:
    """Spec §12: the clock runs between choosing a wake-up and jumping to it, and never moves back."""
    real = itertools.count(1000.0, 0.5)
    clock = LabClock(ClockSetting(lab_at=5000.0, real_at=RealTime(1000.0)), real=lambda: RealTime(next(real)))
    chosen = clock.now()
    assert clock.setting_after_jump(chosen).lab_at == chosen + 0.5


def test_a_polling_scope_stays_enabled_over_a_jump_and_a_silent_one_does_not(tmp_path: Path, ask: Ask) -> None:
    """Spec §8.2, §12: a scope that was polling counts as polling throughout."""
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=("--enablement", "on-request")) as service:
        silent = service.guest("web-1", "GET", TARGET)
        service.poll("web-0")
        set_speed(service, 600)
        fell_silent_at = lab_now(service)
        eventually(lambda: lab_now(service) > fell_silent_at + 400)
        set_speed(service, 1)
        service.poll("web-0")
        service.advance(3 * DAY_S)

        scopes = {scope["vms"][0]: scope["enabled"] for scope in service.api("GET", "/fleet").json["scopes"]}
        assert scopes == {"web-0": True, "web-1": False, "web-2": False}
        assert service.api("GET", f"/events/{ask(service, 'restart', 'web-0')}").json["listed"]
        at_once = service.api("GET", f"/events/{ask(service, 'restart', 'web-1')}").json
        assert (at_once["listed"], at_once["status"]) == (False, "started")
        assert "so scheduled events are disabled there" in at_once["note"]

        again = service.guest("web-1", "GET", TARGET)
        assert again.json == {"DocumentIncarnation": 1, "Events": []}
        assert again.headers["ETag"] != silent.headers["ETag"], "a new epoch (§4.3)"


def test_scopes_that_were_always_enabled_are_disabled_after_a_day_on_request(tmp_path: Path, ask: Ask) -> None:
    """Spec §8.2, §8.3: the service starts again with the other setting."""
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=("--enablement", "always")) as service:
        service.api("GET", "/fleet")
    with ServiceProcess(data=tmp_path, arguments=("--enablement", "on-request")) as service:
        service.advance(25 * 3600)
        assert not any(scope["enabled"] for scope in service.api("GET", "/fleet").json["scopes"])
        assert not service.api("GET", f"/events/{ask(service, 'restart', 'web-0')}").json["listed"]


def test_a_scope_that_never_polled_gets_no_event(tmp_path: Path, ask: Ask) -> None:
    """Spec §8.1, §8.2: it gets events from its first poll on."""
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=("--enablement", "on-request")) as service:
        assert not service.api("GET", f"/events/{ask(service, 'restart', 'web-0')}").json["listed"]
        service.advance(120)
        assert service.poll("web-0") == {"DocumentIncarnation": 1, "Events": []}
        event_id = ask(service, "restart", "web-0")
        assert [event["EventId"] for event in service.poll("web-0")["Events"]] == [event_id]


def test_a_long_poll_is_held_in_real_time(service: ServiceProcess, ask: Ask) -> None:
    """Spec §4.4, §12: a change of the document ends it, a week of lab time does not."""
    first = service.guest("web-0", "GET", TARGET)
    asked_before = eventually(lambda: vm_view(service, "web-0")["polls"])
    answers: list[HttpAnswer] = []
    wanted = {"If-None-Match": first.headers["ETag"], "Prefer": "wait=300"}
    waiting = threading.Thread(target=lambda: answers.append(service.guest("web-0", "GET", TARGET, **wanted)))
    waiting.start()
    eventually(lambda: vm_view(service, "web-0")["polls"] > asked_before)

    service.advance(7 * DAY_S)
    assert answers == []
    event_id = ask(service, "restart", "web-0")
    waiting.join(timeout=60)
    assert [event["EventId"] for event in answers[0].json["Events"]] == [event_id]


def test_events_that_became_due_while_the_service_was_down_wait_for_the_grace_period(tmp_path: Path, ask: Ask) -> None:
    """VMs that could not poll get `start_grace_s` of lab time to react, unless they have approved."""
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment={"FOREWARN_START_GRACE_S": "500000"}) as service:
        waiting, approved = ask(service, "restart", "web-0"), ask(service, "restart", "web-1")
        not_before = parse_time(service.api("GET", f"/events/{waiting}").json["not_before"])
        assert service.approve("web-1", approved).status == 200
        set_speed(service, 600)
        at_stop = lab_now(service), time.time()
        service.kill()
        eventually(lambda: at_stop[0] + (time.time() - at_stop[1]) * 600 > not_before + 60)
        service.start()

        assert lab_now(service) > not_before
        (event,) = service.poll("web-0")["Events"]
        assert (event["EventId"], event["EventStatus"]) == (waiting, "Scheduled")
        why = service.api("GET", f"/events/{waiting}").json["waits_for"]
        assert (why["reason"], why["text"]) == ("grace", "VMs that could not poll while the service was down")
        service.advance(600_000)
        assert service.poll("web-0")["Events"] == service.poll("web-1")["Events"] == []
        started_at = service.api("GET", f"/events/{waiting}").json["started_at"]
        assert started_at >= why["until"]
        assert service.api("GET", f"/events/{approved}").json["over_at"] < started_at


def test_a_real_service_refuses_the_store_of_a_lab_whose_clock_is_ahead(tmp_path: Path) -> None:
    """Spec §12: the offset is stored and never moves back, so no shown time lies ahead again."""
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        service.advance(3 * DAY_S)
        assert service.stop() == 0
    answer = run_forewarn(tmp_path, "serve", "--hypervisor", "simulated", "--listen", f"127.0.0.1:{free_port()}")
    assert answer.returncode == 2
    assert "holds the store of a lab, whose time is not real time" in answer.stderr
