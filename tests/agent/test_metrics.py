"""The agent's metrics: all series exist from the first scrape, and labels are bounded."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as read

from forewarn.agent.metrics import KINDS, AgentMetrics
from forewarn.agent.model import StepConfig, StepOutcome, StepPhase
from forewarn.agent.reporting import AgentObserver
from forewarn.agent.status import MaintenanceStatus, ReadinessHold
from forewarn.client import ReceivedEvent

REBOOT = ReceivedEvent(id="C7061BAC", kind="Reboot", resources=("web-0",))
STRANGE = ReceivedEvent(id="C7061BAD", kind="Levitate", resources=("web-0",))
DRAIN = StepConfig(name="drain", use="command", budget_s=60)
QUIET = MaintenanceStatus()
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(metrics: AgentMetrics, status: MaintenanceStatus = QUIET) -> Samples:
    families: list[Metric] = list(read(metrics.render(status).decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: AgentMetrics, name: str, status: MaintenanceStatus = QUIET, **labels: str) -> float:
    return samples(metrics, status)[f"forewarn_agent_{name}", frozenset(labels.items())]


def report_one_of_each(observer: AgentObserver) -> None:
    for event in (REBOOT, STRANGE):
        observer.event_first_seen(event, 900.0)
        observer.event_first_seen(event, None)
        observer.notice_missed(event)
        observer.event_started(event, 60.0)
        observer.event_approved(event)
        observer.event_gone(event, "finished")
        observer.step_cut(DRAIN, event)
    observer.poll_answered(1.0)
    observer.poll_failed("nothing answers")
    observer.step_ended(DRAIN, StepPhase.DO, StepOutcome(ok=True), 12.0)
    observer.step_ended(DRAIN, StepPhase.UNDO, StepOutcome(ok=False), 3.0)


def test_every_series_exists_before_anything_happens_and_none_is_added_later() -> None:
    metrics = AgentMetrics(["drain"])
    before = samples(metrics)
    report_one_of_each(metrics)
    assert set(samples(metrics)) == set(before)
    ours = {key: number for key, number in before.items() if key[0].startswith("forewarn_agent_")}
    assert {name for (name, _), number in ours.items() if number} == {"forewarn_agent_info", "forewarn_agent_ready"}


def test_no_label_contains_an_event_or_a_vm() -> None:
    metrics = AgentMetrics(["drain"])
    report_one_of_each(metrics)
    text = metrics.render(MaintenanceStatus(listed=(REBOOT, STRANGE))).decode()
    assert not re.search("C7061|web-0|Levitate", text)
    assert set(re.findall(r'kind="(\w+)"', text)) == set(KINDS)


def test_announced_and_actual_notices_are_counted_by_kind() -> None:
    metrics = AgentMetrics()
    report_one_of_each(metrics)
    assert value(metrics, "notice_promised_seconds_sum", kind="Reboot") == 900
    assert (
        value(metrics, "notice_promised_seconds_count", kind="Reboot") == 1
    )  # a started event has no announced notice
    assert value(metrics, "notice_promised_seconds_bucket", kind="Reboot", le="600.0") == 0
    assert value(metrics, "notice_promised_seconds_bucket", kind="Reboot", le="900.0") == 1
    assert value(metrics, "notice_given_seconds_sum", kind="Reboot") == 60
    assert value(metrics, "notices_missed_total", kind="Reboot") == 1
    assert value(metrics, "approvals_total", kind="Reboot") == 1
    assert value(metrics, "events_gone_total", kind="Reboot", outcome="finished") == 1
    assert value(metrics, "notices_missed_total", kind="other") == 1
    assert value(metrics, "notices_missed_total", kind="Freeze") == 0


def test_unknown_kinds_and_outcomes_create_no_series() -> None:
    metrics = AgentMetrics()
    metrics.event_gone(REBOOT, "evaporated")
    assert value(metrics, "events_gone_total", kind="Reboot", outcome="unknown") == 1


def test_polls_are_counted_and_the_last_answered_one_is_dated() -> None:
    metrics = AgentMetrics(read_time=lambda: 1_700_000_000.0)
    assert value(metrics, "last_successful_poll_timestamp_seconds") == 0
    metrics.poll_failed("reset")
    assert value(metrics, "last_successful_poll_timestamp_seconds") == 0
    metrics.poll_answered(1.25)
    metrics.poll_answered(-0.1)
    assert value(metrics, "last_successful_poll_timestamp_seconds") == 1_700_000_000
    assert value(metrics, "polls_total", outcome="answered") == 2
    assert value(metrics, "polls_total", outcome="failed") == 1
    assert value(metrics, "poll_lag_seconds_sum") == 1.25


def test_steps_are_timed_by_phase_and_outcome_and_counted_when_cut() -> None:
    metrics = AgentMetrics(["drain", "notify"])
    report_one_of_each(metrics)
    assert value(metrics, "step_duration_seconds_sum", step="drain", phase="do", outcome="done") == 12
    assert value(metrics, "step_duration_seconds_sum", step="drain", phase="undo", outcome="failed") == 3
    assert value(metrics, "step_duration_seconds_count", step="notify", phase="do", outcome="done") == 0
    assert value(metrics, "steps_cut_total", step="drain") == 2


def test_each_scrape_shows_the_current_status() -> None:
    metrics = AgentMetrics()
    hold = ReadinessHold(step="drain", event="C7061BAC", kind="Reboot", since=0.0)
    busy = MaintenanceStatus(listed=(REBOOT, REBOOT, STRANGE), in_maintenance=True, holds=(hold,))
    for status, pending, in_maintenance, ready in ((QUIET, 0, 0, 1), (busy, 2, 1, 0), (QUIET, 0, 0, 1)):
        assert value(metrics, "events_pending", status, kind="Reboot") == pending
        assert value(metrics, "in_maintenance", status) == in_maintenance
        assert value(metrics, "ready", status) == ready
    assert value(metrics, "events_pending", busy, kind="other") == 1


def test_two_agents_in_one_process_have_separate_counters() -> None:
    one, other = AgentMetrics(["drain"]), AgentMetrics(["drain"])
    one.event_approved(REBOOT)
    assert value(other, "approvals_total", kind="Reboot") == 0


def test_every_metric_is_documented() -> None:
    rows = re.findall(r"^\| `(forewarn_agent_\w+)` ?(.*?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name.removesuffix("_total"): set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    families = read(AgentMetrics(["drain"]).render(QUIET).decode())
    ours = {family.name: family for family in families if family.name.startswith("forewarn_agent_")}
    assert documented == {
        name: {label for sample in family.samples for label in sample.labels} - {"le"} for name, family in ours.items()
    }


@pytest.mark.real
def test_promtool_accepts_the_metrics() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    metrics = AgentMetrics(["drain", "notify"])
    report_one_of_each(metrics)
    exposition = metrics.render(MaintenanceStatus(listed=(REBOOT,), in_maintenance=True))
    after = subprocess.run([promtool, "check", "metrics"], input=exposition, capture_output=True, timeout=60)
    assert (after.returncode, after.stdout, after.stderr) == (0, b"", b"")


@pytest.mark.real
def test_promtool_accepts_the_documented_alerts(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    (rules,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    after = subprocess.run([promtool, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, timeout=60)
    assert after.returncode == 0, after.stderr
