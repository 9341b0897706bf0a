"""The agent in a VM of a lab, in virtual time, from the notice to the undo.

Each known mistake of other handlers has a test here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.lab.lab import Lab
from tests.agent.conftest import DRAIN, SAVE, AgentThread
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

FIFTEEN = f'profile = "fifteen-minutes"\n{DRAIN}{SAVE}'


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(vms=["web-0", "web-1"], spot=["spot-0"], availability_set="web") as lab:
        yield lab


def make_agent(lab: Lab, folder: Path, text: str = FIFTEEN, vm: str = "web-0") -> AgentThread:
    return AgentThread(folder, lab.vm(vm).endpoint, text)


def wait_for_lines(lab: Lab, agent: AgentThread, count: int) -> None:
    lab.wait_for(lambda: len(agent.lines) == count)


def lines_after_polls(lab: Lab, agent: AgentThread, polls: int = 3) -> list[str]:
    """The lines that commands have written after this many further polls."""
    until = agent.observer.polls + polls
    lab.wait_for(lambda: agent.observer.polls >= until)
    return agent.lines


def wait_for_the_end_of_the_check(lab: Lab, agent: AgentThread) -> None:
    """Waits until the latest run of the approval check is over and journalled, at the time of the lab's clock.

    A check that has been asked may still be running; a clock that is advanced then moves the time of the next one.
    """
    lab.wait_for(
        lambda: any(record.approval_check is not None and record.approval_check.text for record in agent.records)
    )


def test_a_reboot_is_prepared_for_then_approved_and_undone_in_reverse_order(lab: Lab, tmp_path: Path) -> None:
    with make_agent(lab, tmp_path) as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        assert agent.lines == ["drain", "save"]
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == ["drain", "save", "restore", "undrain"]
        assert event.approved_by == "web-0"
    assert agent.records[0].outcome == "finished"
    assert [call for call in agent.observer.calls if call[0] != "started"] == [
        *(("noticed", "Reboot"), ("do", "drain"), ("do", "save"), ("approved", "Reboot")),
        *(("gone", "finished"), ("undo", "save"), ("undo", "drain")),
    ]


def test_an_event_that_lists_only_another_vm_is_ignored(lab: Lab, tmp_path: Path) -> None:
    """Some handlers shut a whole scale set down for one eviction, because they ignore names."""
    with make_agent(lab, tmp_path) as agent:
        event = lab.reboot("web-1")
        lab.wait_for(lambda: len(agent.observer.calls) == 1)
        assert lines_after_polls(lab, agent) == []
        assert not event.approved


def test_a_rule_can_match_events_of_other_vms(lab: Lab, tmp_path: Path) -> None:
    text = f'{DRAIN}[[rules]]\nvms = "web-*"\nsteps = ["drain"]\n'
    with make_agent(lab, tmp_path, text) as agent:
        lab.reboot("web-1")
        lab.wait_for(lambda: agent.lines == ["drain"])


def test_a_freeze_of_seconds_is_ignored(lab: Lab, tmp_path: Path) -> None:
    with make_agent(lab, tmp_path) as agent:
        event = lab.freeze("web-0")
        lab.wait_for(lambda: len(agent.observer.calls) == 1)
        assert lines_after_polls(lab, agent) == []
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == []


def test_an_eviction_is_prepared_for_within_its_30_seconds_and_not_approved(lab: Lab, tmp_path: Path) -> None:
    text = f'profile = "thirty-seconds"\n{DRAIN.replace("20s", "10s")}'
    with make_agent(lab, tmp_path, text, "spot-0") as agent:
        event = lab.evict("spot-0")
        lab.wait_for(lambda: agent.lines == ["drain"])
        lines_after_polls(lab, agent)
        assert not event.approved


def test_the_steps_of_a_withdrawn_event_are_undone(lab: Lab, tmp_path: Path) -> None:
    with make_agent(lab, tmp_path, f"{DRAIN}[[rules]]\nsteps = ['drain']\n") as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: agent.lines == ["drain"])
        lab.withdraw(event)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == ["drain", "undrain"]
        assert agent.records[0].outcome == "withdrawn"


def test_the_steps_of_an_event_withdrawn_after_its_approval_are_undone(lab: Lab, tmp_path: Path) -> None:
    """Spec §11."""
    lab.fault("withdrawn-after-approval", vm="web-0")
    with make_agent(lab, tmp_path) as agent:
        lab.reboot("web-0")
        lab.wait_for(lambda: agent.observer.calls and agent.records[0].closed)
        assert agent.lines == ["drain", "save", "restore", "undrain"]


def test_a_running_step_of_a_withdrawn_event_is_stopped_and_undone(lab: Lab, tmp_path: Path) -> None:
    slow = DRAIN.replace("echo drain >> LOG", "echo drain >> LOG; exec sleep 600").replace("20s", "10m")
    with make_agent(lab, tmp_path, f"{slow}[[rules]]\nsteps = ['drain']\n") as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: agent.lines == ["drain"])
        lab.withdraw(event)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == ["drain", "undrain"]
    assert agent.records[0].step_runs[0].text == "stopped: the event is gone"


def test_with_seven_days_of_notice_steps_begin_late_and_notifications_at_once(lab: Lab, tmp_path: Path) -> None:
    notify = f'[steps.notify]\nuse = "log"\nfile = "{tmp_path}/notified"\nbudget = "5s"\ncut = 1\n'
    with make_agent(lab, tmp_path, f'profile = "seven-days"\n{notify}{DRAIN}') as agent:
        event = lab.degrade(lab.vm("web-0").host, in_="7d")[0]
        lab.wait_for(lambda: (tmp_path / "notified").exists())
        assert lines_after_polls(lab, agent) == []
        lab.advance("6d")
        assert lines_after_polls(lab, agent) == []
        lab.advance("23h")
        lab.wait_for(lambda: agent.lines == ["drain"])
        lab.wait_for(lambda: event.approved)


def test_when_time_is_short_steps_are_cut_in_the_declared_order_and_reported(lab: Lab, tmp_path: Path) -> None:
    text = f'{DRAIN}cut = 1\n{SAVE}[[rules]]\nsteps = ["drain", "save"]\napprove = "when-done"\nmargin = "0s"\n'
    with make_agent(lab, tmp_path, text) as agent:
        event = lab.reboot("web-0", notice="25s")
        lab.wait_for(lambda: agent.lines == ["save"])
        lines_after_polls(lab, agent)
        assert ("cut", "drain") in agent.observer.calls
        assert not event.approved, "a cut step prevents the approval"
        assert any("step drain was cut" in problem for problem in agent.report.problems)


def test_a_start_without_notice_runs_only_essential_steps(lab: Lab, tmp_path: Path) -> None:
    """Spec §11: Started with no Scheduled before."""
    lab.fault("no-notice", vm="web-0")
    text = f'{DRAIN}cut = 1\n{SAVE}[[rules]]\nsteps = ["drain", "save"]\n'
    with make_agent(lab, tmp_path, text) as agent:
        lab.reboot("web-0")
        lab.wait_for(lambda: agent.observer.calls and ("missed", "Reboot") in agent.observer.calls)
        lab.wait_for(lambda: "save" in agent.lines)
        assert ("cut", "drain") in agent.observer.calls


def test_for_two_events_at_once_each_step_runs_once_and_is_undone_after_the_last(lab: Lab, tmp_path: Path) -> None:
    """Spec §11: several events at once."""
    text = f"{DRAIN}[[rules]]\nsteps = ['drain']\n"
    with make_agent(lab, tmp_path, text) as agent:
        first, second = lab.reboot("web-0"), lab.reboot_host("web-0")
        lab.wait_for(lambda: sum(run.state == "done" for record in agent.records for run in record.step_runs) == 2)
        lab.withdraw(first)
        lab.wait_for(lambda: sum(record.closed for record in agent.records) == 1)
        assert agent.lines == ["drain"]
        lab.withdraw(second)
        lab.wait_for(lambda: all(record.closed for record in agent.records))
        assert agent.lines == ["drain", "undrain"]


def test_a_step_that_exceeds_its_budget_is_ended_and_the_event_is_not_approved(lab: Lab, tmp_path: Path) -> None:
    slow = DRAIN.replace("echo drain >> LOG", "sleep 600").replace("20s", "1s")
    with make_agent(lab, tmp_path, f"{slow}[[rules]]\nsteps = ['drain']\napprove = 'when-done'\n") as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: agent.observer.calls and ("do", "drain") in agent.observer.calls)
        lines_after_polls(lab, agent)
        assert not event.approved
        assert any("step drain failed" in problem for problem in agent.report.problems)


@pytest.mark.parametrize(("status", "answer"), [(0, "yes"), (1, "no")])
def test_the_approval_check_must_answer_yes_before_an_event_is_approved(
    lab: Lab, tmp_path: Path, status: int, answer: str
) -> None:
    check = f'gate = {{ command = "echo asked >> LOG; exit {status}" }}'
    with make_agent(lab, tmp_path, f"[[rules]]\napprove = 'when-done'\n{check}\n") as agent:
        event = lab.reboot("web-0")
        lab.wait_for(
            lambda: agent.observer.calls and agent.records[0].approval_check and agent.records[0].approval_check.answer
        )
        lines_after_polls(lab, agent)
        assert agent.lines == ["asked"]
        assert event.approved is (answer == "yes")


def test_an_invalid_answer_of_the_approval_check_counts_as_no_answer(lab: Lab, tmp_path: Path) -> None:
    with ScriptedServer(ScriptedReply(body=b"[" * 100_000), json_reply({"approve": True})) as check:
        rule = f"[[rules]]\napprove = 'when-done'\ngate = {{ url = '{check.url}', every = '1s' }}\n"
        with make_agent(lab, tmp_path, DRAIN + rule) as agent:
            event = lab.reboot("web-0")
            wait_for_the_end_of_the_check(lab, agent)
            assert len(check.requests) == 1
            lab.advance("2s")
            lab.wait_for(lambda: event.approved)


def test_an_approval_check_without_an_answer_is_repeated_until_its_deadline(lab: Lab, tmp_path: Path) -> None:
    check = 'gate = { command = "echo asked >> LOG; exit 7", every = "1m", deadline = "2m", on_silence = "approve" }'
    with make_agent(lab, tmp_path, f"[[rules]]\napprove = 'when-done'\n{check}\n") as agent:
        event = lab.reboot("web-0")
        for times in (1, 2):
            wait_for_lines(lab, agent, times)
            wait_for_the_end_of_the_check(lab, agent)
            lines_after_polls(lab, agent)
            assert not event.approved
            lab.advance("61s")
        lab.wait_for(lambda: event.approved)


def test_an_approval_check_whose_folder_cannot_be_created_counts_as_no_answer(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "steps").write_text("in the way")
    rule = "[[rules]]\napprove = 'when-done'\ngate = { command = 'true', on_silence = 'approve', deadline = '2m' }\n"
    with make_agent(lab, tmp_path, rule) as agent:
        event = lab.reboot("web-0")
        wait_for_the_end_of_the_check(lab, agent)
        check = agent.records[0].approval_check
        assert check is not None
        assert (check.answer, check.text) == ("", f"{tmp_path}/state/steps cannot be created: File exists")
        lab.advance("121s")
        lab.wait_for(lambda: event.approved)
    assert not [entry for entry in caplog.records if entry.exc_info]


def test_the_agent_uses_the_servers_time(lab: Lab, tmp_path: Path) -> None:
    """Spec §12."""
    with make_agent(lab, tmp_path) as agent:
        lab.advance("30d")
        lines_after_polls(lab, agent)
        assert abs(agent.report.now - lab.now.timestamp()) < 2
        assert agent.report.vm == "web-0"
        assert agent.report.problems == ()


def test_a_step_that_failed_for_two_events_is_undone_to_the_state_before_both(lab: Lab, tmp_path: Path) -> None:
    """The second run finds what the first one left half done."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        step = f'[steps.away]\nuse = "readiness"\nfile = "FOLDER/away"\nports = [{port}]\nbudget = "1s"\n'
        with make_agent(lab, tmp_path, f"{step}[[rules]]\nsteps = ['away']\n") as agent:
            first = lab.reboot("web-0")
            lab.wait_for(lambda: ("do", "away") in agent.observer.calls)
            second = lab.reboot_host("web-0")
            lab.wait_for(lambda: agent.observer.calls.count(("do", "away")) == 2)
            lab.withdraw(first)
            lab.wait_for(lambda: any(record.closed for record in agent.records))
            assert (tmp_path / "away").exists()
            lab.withdraw(second)
            lab.wait_for(lambda: all(record.closed for record in agent.records))
            assert not (tmp_path / "away").exists()
