"""The agent's pages: health, readiness, metrics and state."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from forewarn.agent.actions import AgentSnapshot
from forewarn.agent.http_pages import build_pages
from forewarn.agent.metrics import AgentMetrics, EndpointHealthTracker
from forewarn.agent.model import EventRecord, OpenRecords, RuleConfig, StepConfig, StepPhase, StepRun, StepState
from forewarn.base.http_server import HttpPage
from forewarn.base.times import time_text
from forewarn.client import ReceivedEvent

AWAY = StepConfig(name="away", use="readiness", budget_s=20)
SAVE = StepConfig(name="save", use="checkpoint", budget_s=300)
RULE = RuleConfig(name="reboots", steps=(AWAY, SAVE), begin="late", margin_s=0)
EVENT = ReceivedEvent(id="C706", status="Scheduled", kind="Reboot", resources=("web-0",), not_before=1_900.0)
SEEN = EventRecord(
    key="C706", event=EVENT, seen_at=1_000.0, boot_id="b", not_before=1_900.0, rule="reboots", plan=("away", "save")
)
HELD = SEEN.with_step_run(
    StepRun(step="away", state=StepState.DONE, begun_at=1_001.0, ended_at=1_002.0, notes={"was": "secret"})
)


def snapshot_of(*records: EventRecord) -> AgentSnapshot:
    steps = {step.name: step for step in (AWAY, SAVE)}
    return AgentSnapshot(
        open_records=OpenRecords(records=records),
        rules={"reboots": RULE},
        steps=steps,
        vm="web-0",
        now=1_010.0,
        boot_id="b",
    )


def pages(
    *records: EventRecord, metrics: AgentMetrics | None = None, facts: Mapping[str, Any] | None = None
) -> dict[str, Callable[[], HttpPage]]:
    return build_pages(metrics or AgentMetrics(["away", "save"]), lambda: snapshot_of(*records), lambda: facts or {})


def read_page(made: dict[str, Callable[[], HttpPage]], path: str) -> tuple[int, Any]:
    page = made[path]()
    return page.status, json.loads(page.body)


def test_a_vm_is_ready_while_no_readiness_step_is_in_effect() -> None:
    assert read_page(pages(SEEN), "/ready") == (200, {"ready": True, "reasons": []})


def test_ready_answers_503_with_the_reason_while_a_readiness_step_is_in_effect() -> None:
    why = ["step away is in effect for Reboot C706"]
    assert read_page(pages(HELD), "/ready") == (503, {"ready": False, "reasons": why})
    back = replace(HELD, gone_at=1_005.0).with_step_run(
        StepRun(step="away", phase=StepPhase.UNDO, state=StepState.DONE, begun_at=1.0)
    )
    assert read_page(pages(back), "/ready")[0] == 200


def test_the_agent_is_healthy_while_the_endpoint_answers() -> None:
    now = [0.0]
    metrics = AgentMetrics(endpoint_health=EndpointHealthTracker(lambda: now[0]))
    metrics.poll_answered(1.0)
    assert read_page(pages(metrics=metrics), "/health") == (200, {"healthy": True, "text": ""})
    metrics.poll_failed("connection refused")
    now[0] = 100.0
    status, view = read_page(pages(metrics=metrics), "/health")
    assert status == 503
    assert view == {"healthy": False, "text": "the endpoint has not answered for 1m 40s (connection refused)"}


def test_the_metrics_show_the_current_status() -> None:
    page = pages(HELD)["/metrics"]()
    assert page.content_type.startswith("text/plain; version=0.0.4")
    lines = page.body.decode().splitlines()
    assert "forewarn_agent_in_maintenance 1.0" in lines
    assert "forewarn_agent_ready 0.0" in lines
    assert 'forewarn_agent_events_pending{kind="Reboot"} 1.0' in lines


def test_the_state_shows_each_event_with_its_steps_and_waits() -> None:
    status, view = read_page(pages(HELD, facts={"endpoint": "http://169.254.169.254"}), "/state")
    assert status == 200
    assert (view["vm"], view["now"], view["endpoint"]) == ("web-0", time_text(1_010), "http://169.254.169.254")
    assert (view["ready"], view["in_maintenance"], view["health"]["ok"]) == (False, True, True)
    (event,) = view["events"]
    assert (event["kind"], event["status"], event["rule"]) == ("Reboot", "Scheduled", "reboots")
    assert (event["notice_promised_s"], event["notice_given_s"]) == (900, None)
    away, save = event["steps"]
    assert away["do"] == {"state": "done", "begun_at": time_text(1_001), "ended_at": time_text(1_002), "text": ""}
    assert (save["do"], save["due_at"], save["latest_at"]) == (None, time_text(1_600), time_text(1_600))
    assert (event["waits_for"], event["waits_until"]) == ("save begins late", time_text(1_600))


def test_the_state_does_not_show_undo_notes() -> None:
    assert "secret" not in pages(HELD)["/state"]().body.decode()


def test_the_state_shows_the_outcome_of_an_event_that_is_gone() -> None:
    gone = replace(HELD, gone_at=1_005.0, outcome="withdrawn")
    (event,) = read_page(pages(gone), "/state")[1]["events"]
    assert (event["status"], event["outcome"], event["gone_at"]) == ("Gone", "withdrawn", time_text(1_005))


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/state"])
def test_every_page_works_before_anything_has_happened(path: str) -> None:
    assert pages()[path]().status == 200
