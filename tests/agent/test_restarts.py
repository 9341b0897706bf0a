"""The agent continues after its own end at any point of a step, and after a reboot."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.agent.config import AgentConfig
from forewarn.agent.daemon import AgentDaemon
from forewarn.agent.explanation import explain_event
from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import EventRecord, StepPhase, StepRun, StepState
from forewarn.agent.runner import make_step_folder
from forewarn.client import AsyncClient
from forewarn.errors import Rejected, Unavailable
from forewarn.lab.lab import Lab
from tests.agent.conftest import DRAIN, NOW, SAVE, AgentThread, event
from tests.support.scripted_server import ScriptedReply, ScriptedServer

FIFTEEN = f'profile = "fifteen-minutes"\n{DRAIN}{SAVE}'
WITHOUT_APPROVAL = f"{DRAIN}[[rules]]\nsteps = ['drain']\n"  # steps without an approval
# The first run hangs after half of its work, so that the agent can be ended there.
HANGING = DRAIN.replace(
    'run = "echo drain >> LOG"',
    'run = "echo drain >> LOG; [ -e FOLDER/again ] || { touch FOLDER/again; exec sleep 600; }"',
).replace("20s", "10m")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(vms=["web-0"]) as lab:
        yield lab


def make_agent(lab: Lab, folder: Path, text: str) -> AgentThread:
    return AgentThread(folder, lab.vm("web-0").endpoint, text)


def wait_for_polls(lab: Lab, agent: AgentThread, *, more_than: int) -> None:
    lab.wait_for(lambda: agent.observer.polls > more_than)


def end_during_the_step(lab: Lab, agent: AgentThread) -> None:
    with agent:
        lab.reboot("web-0", notice="1h")
        lab.wait_for(lambda: agent.lines == ["drain"] and (agent.folder / "again").exists())
    (record,) = agent.records
    assert [run.state for run in record.step_runs] == ["begun"]


def test_a_finished_step_never_runs_again(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, WITHOUT_APPROVAL)
    with agent:
        event = lab.reboot("web-0", notice="1h")
        lab.wait_for(lambda: agent.observer.calls and ("do", "drain") in agent.observer.calls)
    for _ in range(2):
        polls = agent.observer.polls
        with agent:
            wait_for_polls(lab, agent, more_than=polls + 2)
    assert agent.lines == ["drain"]
    with agent:
        lab.withdraw(event)
        lab.wait_for(lambda: agent.records[0].closed)
    assert agent.lines == ["drain", "undrain"]


def test_an_interrupted_step_is_repeated_if_it_is_repeatable(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, f"{HANGING}repeatable = true\n[[rules]]\nsteps = ['drain']\n")
    end_during_the_step(lab, agent)
    with agent:
        lab.wait_for(lambda: agent.records[0].step_runs[0].state == "done")
    assert agent.lines == ["drain", "drain"]


@pytest.mark.parametrize(("check", "lines"), [("true", ["drain"]), ("false", ["drain", "drain"])])
def test_the_check_of_an_interrupted_step_decides_whether_it_runs_again(
    lab: Lab, tmp_path: Path, check: str, lines: list[str]
) -> None:
    agent = make_agent(lab, tmp_path, f"{HANGING}check = ['{check}']\n[[rules]]\nsteps = ['drain']\n")
    end_during_the_step(lab, agent)
    with agent:
        lab.wait_for(lambda: agent.records[0].step_runs[0].state == "done")
    assert agent.lines == lines


@pytest.mark.parametrize(
    ("unclear", "state", "lines"),
    [("report", "failed", ["drain"]), ("skip", "done", ["drain"]), ("repeat", "done", ["drain", "drain"])],
)
def test_an_interrupted_step_without_a_check_is_handled_by_the_policy_unclear(
    lab: Lab, tmp_path: Path, unclear: str, state: str, lines: list[str]
) -> None:
    agent = make_agent(lab, tmp_path, f"{HANGING}unclear = '{unclear}'\n[[rules]]\nsteps = ['drain']\n")
    end_during_the_step(lab, agent)
    with agent:
        lab.wait_for(lambda: agent.records[0].step_runs[0].state == state)
        assert bool(agent.report.problems) is (unclear == "report")
    assert agent.lines == lines


def began_lines(record: EventRecord) -> list[str]:
    return [line.text for line in explain_event(record, {}).lines if " began" in line.text]


def test_an_interrupted_step_that_its_check_ends_is_explained_as_begun_once(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, f"{HANGING}check = ['true']\n[[rules]]\nsteps = ['drain']\n")
    end_during_the_step(lab, agent)
    with agent:
        lab.wait_for(lambda: agent.records[0].step_runs[0].state == "done")
    assert began_lines(agent.records[0]) == ["drain began"]


@pytest.mark.parametrize(
    ("setting", "state"),
    [("check = ['false']", "done"), ("unclear = 'skip'", "done"), ("unclear = 'report'", "failed")],
    ids=["its check says undone", "unclear skip", "unclear report"],
)
def test_an_interrupted_undo_that_is_not_run_again_is_explained_as_begun_once(
    lab: Lab, tmp_path: Path, setting: str, state: str
) -> None:
    agent = make_agent(lab, tmp_path, f"{DRAIN}{setting}\n[[rules]]\nsteps = ['drain']\n")
    runs = (
        StepRun(step="drain", state=StepState.DONE, begun_at=NOW, ended_at=NOW, boot_id="boot-1"),
        StepRun(step="drain", phase=StepPhase.UNDO, begun_at=NOW, boot_id="boot-1"),
    )
    gone = EventRecord(key="E1", event=event("E1"), seen_at=NOW, boot_id="boot-1", plan=("drain",), step_runs=runs)
    journal = AgentJournal(agent.config.journal_path)
    journal.save(replace(gone, gone_at=NOW, outcome="withdrawn"))
    journal.close()
    with agent:
        lab.wait_for(lambda: agent.records[0].closed)
    (record,) = agent.records
    assert [run.state for run in record.step_runs] == ["done", state]
    assert began_lines(record) == ["drain began", "undo of drain began"]
    assert agent.lines == []


def test_an_event_that_went_away_while_the_agent_was_down_is_undone(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, WITHOUT_APPROVAL)
    with agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: agent.observer.calls and ("do", "drain") in agent.observer.calls)
    lab.withdraw(event)
    with agent:
        lab.wait_for(lambda: agent.records[0].closed)
    assert agent.lines == ["drain", "undrain"]
    assert agent.records[0].outcome == "withdrawn"


def test_after_the_announced_reboot_the_agent_undoes_its_steps(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, FIFTEEN)
    with agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        lab.wait_for(lambda: agent.records[0].approval and agent.records[0].approval.state == "sent")
    lab.run_until(lambda: event.over)
    agent.start(boot_id="boot-2")
    try:
        lab.wait_for(lambda: agent.records[0].closed)
    finally:
        agent.end()
    assert agent.lines == ["drain", "save", "restore", "undrain"]
    assert agent.records[0].outcome == "finished"


def test_a_step_that_the_reboot_undid_is_not_undone_again(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, FIFTEEN.replace('budget = "20s"', 'budget = "20s"\nsurvives_reboot = false', 1))
    with agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        lab.wait_for(lambda: agent.records[0].approval and agent.records[0].approval.state == "sent")
    lab.run_until(lambda: event.over)
    agent.start(boot_id="boot-2")
    try:
        lab.wait_for(lambda: agent.records[0].closed)
    finally:
        agent.end()
    assert agent.lines == ["drain", "save", "restore"]


@pytest.mark.parametrize("lost", ["cursor.json", "journal.db"])
def test_losing_the_cursor_or_the_journal_loses_no_event(lab: Lab, tmp_path: Path, lost: str) -> None:
    agent = make_agent(lab, tmp_path, WITHOUT_APPROVAL)
    with agent:
        event = lab.reboot("web-0", notice="1h")
        lab.wait_for(lambda: agent.observer.calls and ("do", "drain") in agent.observer.calls)
    (tmp_path / "state" / lost).unlink()
    if lost == "cursor.json":
        lab.withdraw(event)
    with agent:
        expected = ["drain", "undrain"] if lost == "cursor.json" else ["drain", "drain"]
        lab.wait_for(lambda: agent.lines == expected)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_the_step_folders_of_a_lost_journal_are_kept_and_reported(
    lab: Lab, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They have the notes about what must be undone."""
    agent = make_agent(lab, tmp_path, WITHOUT_APPROVAL)
    with agent:
        lab.reboot("web-0", notice="1h")
        lab.wait_for(lambda: agent.observer.calls and ("do", "drain") in agent.observer.calls)
    key = agent.records[0].key
    for file in agent.config.state.glob("journal.db*"):
        file.unlink()
    if how == "emptied":
        agent.config.journal_path.touch()
    with agent:
        lab.wait_for(lambda: agent.lines == ["drain", "drain"])
    (aside,) = agent.config.state.glob("steps.damaged-*")
    assert (aside / key / "drain" / "do.log").exists()
    assert f"the journal is empty, but steps have run: undo them by hand, with the notes in {aside}" in caplog.text


def test_the_step_folder_of_an_old_open_event_is_kept(lab: Lab, tmp_path: Path) -> None:
    """It has the notes for the undo, however many events came since."""
    agent = make_agent(lab, tmp_path, WITHOUT_APPROVAL)
    run = StepRun(step="drain", state=StepState.DONE, begun_at=NOW, holder="PRUNED")
    old = EventRecord(key="OLD", event=event("OLD"), seen_at=NOW, boot_id="boot-1", plan=("drain",), step_runs=(run,))
    newer = (replace(old, key=f"E{n}", event=event(f"E{n}"), closed=True, step_runs=()) for n in range(1001))
    journal = AgentJournal(agent.config.journal_path)
    journal.save(old, *newer)
    journal.close()
    folders = {key: make_step_folder(agent.config.step_folders, key, "drain") for key in ("OLD", "PRUNED", "STALE")}
    with agent:
        lab.wait_for(lambda: agent.observer.polls > 0)
    assert [key for key, folder in folders.items() if folder.exists()] == ["OLD", "PRUNED"]


def test_running_steps_get_a_grace_period_when_the_agent_stops(lab: Lab, tmp_path: Path) -> None:
    slow = DRAIN.replace("echo drain >> LOG", "touch FOLDER/begun; sleep 0.5; echo drain >> LOG")
    agent = make_agent(lab, tmp_path, f"{slow}[[rules]]\nsteps = ['drain']\n")
    agent.config = _with_grace(agent, 20.0)
    with agent:
        lab.reboot("web-0")
        lab.wait_for(lambda: (tmp_path / "begun").exists())
    assert agent.records[0].step_runs[0].state == "done"


def _with_grace(agent: AgentThread, grace_s: float) -> AgentConfig:
    return replace(agent.config, grace_s=grace_s)


async def _once(config: AgentConfig, lab_endpoint: str) -> None:
    client = AsyncClient(lab_endpoint, sleep=lambda s: asyncio.sleep(min(s, 0.01)))
    await AgentDaemon(config, client=client, boot_id="boot-1").run_once()


def test_an_agent_that_runs_once_continues_the_next_time(lab: Lab, tmp_path: Path) -> None:
    agent, endpoint = make_agent(lab, tmp_path, FIFTEEN), lab.vm("web-0").endpoint
    event = lab.reboot("web-0")
    asyncio.run(_once(agent.config, endpoint))
    assert agent.lines == ["drain", "save"]
    assert event.approved
    lab.run_until(lambda: event.over)
    asyncio.run(_once(agent.config, endpoint))
    assert agent.lines == ["drain", "save", "restore", "undrain"]
    assert agent.records[0].closed


def test_an_agent_that_runs_once_reports_an_endpoint_that_does_not_answer(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, f'vm = "web-0"\n{FIFTEEN}')
    with ScriptedServer(ScriptedReply(status=503)) as server, pytest.raises(Unavailable, match="status 503"):
        asyncio.run(_once(agent.config, server.url))


def test_a_step_whose_folder_cannot_be_created_fails_and_the_agent_continues(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "steps").write_text("in the way")
    with make_agent(lab, tmp_path, FIFTEEN) as agent:
        lab.reboot("web-0")
        lab.wait_for(lambda: len([call for call in agent.observer.calls if call[0] == "do"]) == 2)
        assert [run.state for run in agent.records[0].step_runs] == ["failed", "failed"]


def test_an_agent_that_cannot_start_raises_the_reason(lab: Lab, tmp_path: Path) -> None:
    agent = make_agent(lab, tmp_path, FIFTEEN)
    agent.config.cursor_path.mkdir(parents=True)
    with pytest.raises(Rejected, match=r"the cursor .* cannot be read"):
        asyncio.run(_run(agent.config))


@pytest.mark.parametrize("before", ["[[rules]]\nkinds = ['Freeze']\n", "[[rules]]\nname = 'old'\n"])
def test_the_rules_of_a_new_file_apply_to_events_without_steps(lab: Lab, tmp_path: Path, before: str) -> None:
    with make_agent(lab, tmp_path, f"{DRAIN}{before}") as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: ("noticed", "Reboot") in agent.observer.calls)
    with make_agent(lab, tmp_path, FIFTEEN) as agent:
        lab.wait_for(lambda: event.approved)
        assert agent.lines == ["drain", "save"]
        assert agent.records[0].rule == "maintenance"


def test_the_agent_does_not_wait_long_for_a_name_that_it_knows(lab: Lab, tmp_path: Path) -> None:
    """A Preempt gives 30 seconds, and a single request may take longer than that to fail."""
    with make_agent(lab, tmp_path, WITHOUT_APPROVAL) as agent:
        lab.wait_for(lambda: agent.observer.polls > 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        with AgentThread(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", WITHOUT_APPROVAL) as agent:
            asked, _ = silent.accept()
            polled, _ = silent.accept()
            with asked, polled:
                assert b"/metadata/instance" in asked.recv(65_536)
                assert b"/metadata/scheduledevents" in polled.recv(65_536)
                assert agent.report.vm == "web-0"


def test_an_event_that_is_still_scheduled_after_another_reboot_is_prepared_for_when_it_starts(
    lab: Lab, tmp_path: Path
) -> None:
    """With a notice of days, a VM may be rebooted for other reasons in the meantime."""
    agent = make_agent(lab, tmp_path, f"{DRAIN}[[rules]]\nsteps = ['drain']\nbegin = 'late'\n")
    with agent:
        event = lab.reboot("web-0", notice="7d")
        lab.wait_for(lambda: ("noticed", "Reboot") in agent.observer.calls)
    agent.start(boot_id="boot-2")
    try:
        lab.wait_for(lambda: agent.records[0].boot_id == "boot-2")
        lab.approve(event)
        lab.wait_for(lambda: agent.lines == ["drain"])
    finally:
        agent.end()


async def _run(config: AgentConfig) -> None:
    await AgentDaemon(config, client=AsyncClient(config.endpoint), boot_id="boot-1").run()
