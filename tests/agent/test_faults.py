"""Every fault of spec §11 in virtual time: the agent still reacts, once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.lab.lab import Lab
from forewarn.protocol.dates import http_date
from forewarn.protocol.http_message import HttpRequest
from tests.agent.conftest import DRAIN, SAVE, AgentThread
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply
from tests.support.service_process import eventually

TEXT = f'profile = "fifteen-minutes"\n{DRAIN}{SAVE}'
ALL_LINES = ["drain", "save", "restore", "undrain"]

# Faults of polls while an event comes and goes; faults of events have their own tests below.
FAULTS: dict[str, dict[str, object]] = {
    "late-first-answer": {"delay_s": 0.5},
    "empty-body": {"times": 5},
    "gone": {"times": 5},
    "throttled": {"times": 5},
    "internal-error": {"times": 5},
    "reset": {"times": 5},
    "slow-body": {"times": 2, "take_s": 0.3},
    "unknown-version-404": {"times": 3},
    "unsigned-401": {"times": 5},
}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_agent_reacts_once_despite_faults_of_the_endpoint(kind: str, tmp_path: Path) -> None:
    with Lab(vms=["web-0"]) as lab, AgentThread(tmp_path, lab.vm("web-0").endpoint, TEXT) as agent:
        lab.fault(kind, **FAULTS[kind])  # type: ignore[arg-type]
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        lab.fault(kind, **FAULTS[kind])  # type: ignore[arg-type]
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == ALL_LINES
        assert len(agent.records) == 1


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in ("late-first-answer", "slow-body")])
def test_the_agent_can_start_during_a_fault(kind: str, tmp_path: Path) -> None:
    with Lab(vms=["web-0"]) as lab:
        event = lab.reboot("web-0")
        lab.fault(kind, **FAULTS[kind])  # type: ignore[arg-type]
        with AgentThread(tmp_path, lab.vm("web-0").endpoint, TEXT) as agent:
            lab.wait_for(lambda: event.approved)
            assert agent.lines == ["drain", "save"]


def test_a_stale_document_neither_undoes_nor_repeats_steps(tmp_path: Path) -> None:
    with Lab(vms=["web-0"]) as lab, AgentThread(tmp_path, lab.vm("web-0").endpoint, TEXT) as agent:
        event = lab.reboot("web-0")
        lab.wait_for(lambda: event.approved)
        lab.fault("stale", times=10, age_s=60)
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: agent.records[0].closed)
        lab.fault("stale", times=10, age_s=60)
        polls = agent.observer.polls
        lab.wait_for(lambda: agent.observer.polls > polls + 15)
        assert agent.lines == ALL_LINES
        assert len(agent.records) == 1


def test_an_incarnation_reset_changes_nothing_for_pending_events(tmp_path: Path) -> None:
    with Lab(vms=["web-0"]) as lab, AgentThread(tmp_path, lab.vm("web-0").endpoint, TEXT) as agent:
        event = lab.reboot("web-0", notice="1h")
        lab.wait_for(lambda: agent.lines == ["drain", "save"])
        lab.fault("incarnation-reset", vm="web-0")
        polls = agent.observer.polls
        lab.wait_for(lambda: agent.observer.polls > polls + 5)
        assert agent.lines == ["drain", "save"]
        lab.run_until(lambda: event.over)
        lab.wait_for(lambda: agent.records[0].closed)
        assert agent.lines == ALL_LINES


def test_a_notice_shorter_than_the_minimum_is_used_for_the_steps_that_fit(tmp_path: Path) -> None:
    text = f"{DRAIN}cut = 1\n{SAVE}[[rules]]\nsteps = ['drain', 'save']\nmargin = '0s'\n"
    with Lab(vms=["web-0"]) as lab, AgentThread(tmp_path, lab.vm("web-0").endpoint, text) as agent:
        lab.fault("short-notice", vm="web-0", notice_s=30)
        lab.reboot("web-0")
        lab.wait_for(lambda: agent.lines == ["save"])
        assert ("cut", "drain") in agent.observer.calls


@pytest.mark.parametrize(
    ("replies", "problem_text"),
    [
        ((ScriptedReply(status=404, body=b'{ "error": "Not found" }'),), "the service does not know this VM"),
        ((ScriptedReply(status=503),), "the service cannot answer now"),
        ((ScriptedReply(body=b"<html>"),), "is not JSON"),
    ],
)
def test_an_endpoint_without_a_usable_answer_is_reported_and_does_not_end_the_agent(
    tmp_path: Path, replies: tuple[ScriptedReply, ...], problem_text: str
) -> None:
    with ScriptedServer(*replies) as server, AgentThread(tmp_path, server.url, f'vm = "web-0"\n{TEXT}') as agent:
        eventually(lambda: agent.observer.failures > 0)
        assert [problem for problem in agent.report.problems if problem_text in problem]
        assert agent.report.silent_s is None


class ChangingServer(ScriptedServer):
    """Answers every poll with `current`, which the test changes."""

    def __init__(self, current: ScriptedReply) -> None:
        super().__init__(current)
        self.current = current

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        super().next_reply(request)
        return self.current


DRAIN_TEXT = f"vm = 'web-0'\n{DRAIN}[[rules]]\nsteps = ['drain']\n"


def listing(*ids: str, incarnation: int = 3, more: tuple[object, ...] = ()) -> ScriptedReply:
    event = {"EventStatus": "Scheduled", "EventType": "Reboot", "Resources": ["web-0"], "NotBefore": ""}
    elements = [*(event | {"EventId": each} for each in ids), *more]
    return json_reply({"DocumentIncarnation": incarnation, "Events": elements})


MALFORMED = {
    "no members": ScriptedReply(body=b"{}"),
    "an error": json_reply({"error": "Not found"}),
    "Events null": json_reply({"DocumentIncarnation": 4, "Events": None}),
    "Events a text": json_reply({"DocumentIncarnation": 4, "Events": "none"}),
    "no event": json_reply({"DocumentIncarnation": 4, "Events": [{}]}),
    "no incarnation": json_reply({"Events": []}),
    "a textual incarnation": json_reply({"DocumentIncarnation": "four", "Events": []}),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_a_failed_poll_and_not_a_document_without_events(
    tmp_path: Path, malformed: ScriptedReply
) -> None:
    """The agent would undo what it prepared, and repeat every step after the next whole document."""
    with ChangingServer(listing("A")) as server, AgentThread(tmp_path, server.url, DRAIN_TEXT) as agent:
        eventually(lambda: agent.lines == ["drain"])
        server.current = malformed
        eventually(lambda: agent.observer.failures > 3)
        assert [problem for problem in agent.report.problems if "the response is not a document" in problem]
        server.current = listing("A")
        polls = agent.observer.polls
        eventually(lambda: agent.observer.polls > polls + 3)
        assert agent.report.problems == ()
        assert agent.lines == ["drain"]
        server.current = listing(incarnation=4)
        eventually(lambda: agent.lines == ["drain", "undrain"])
        assert len(agent.records) == 1


@pytest.mark.parametrize("element", [{}, None, {"EventType": "Reboot", "Resources": ["web-0"]}, {"EventId": "a"}])
def test_an_unusable_element_does_not_end_an_event_that_it_may_stand_for(tmp_path: Path, element: object) -> None:
    with ChangingServer(listing("A", "B")) as server, AgentThread(tmp_path, server.url, DRAIN_TEXT) as agent:
        eventually(lambda: len(agent.records) == 2 and agent.lines == ["drain"])
        server.current = listing("B", incarnation=4, more=(element,))
        polls = agent.observer.polls
        eventually(lambda: agent.observer.polls > polls + 3)
        assert [problem for problem in agent.report.problems if "1 of the 2 elements of the document" in problem]
        assert all(record.gone_at is None for record in agent.records)
        server.current = listing("B", incarnation=4)
        eventually(lambda: [record.gone_at is not None for record in agent.records] == [False, True])
        assert agent.report.problems == ()


class DatedServer(ChangingServer):
    """Answers with the right Date, except that the next `wrong` answers are a day ahead."""

    def __init__(self, current: ScriptedReply, *, wrong: int = 0) -> None:
        super().__init__(current)
        self.wrong = wrong

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        reply, ahead_s = super().next_reply(request), 86_400 if self.wrong else 0
        self.wrong = max(0, self.wrong - 1)
        return replace(reply, headers=(("Date", http_date(time.time() + ahead_s)),))


@pytest.mark.parametrize("when", ["first answer", "later answer"])
def test_one_wrong_date_cuts_no_step(tmp_path: Path, when: str) -> None:
    due = {"EventId": "A", "EventStatus": "Scheduled", "EventType": "Reboot", "Resources": ["web-0"]}
    due |= {"NotBefore": http_date(time.time() + 900)}
    announced = json_reply({"DocumentIncarnation": 2, "Events": [due]})
    text = DRAIN_TEXT.replace("[[rules]]", "cut = 1\n[[rules]]")
    is_first = when == "first answer"
    start = announced if is_first else json_reply({"DocumentIncarnation": 1, "Events": []})
    with DatedServer(start, wrong=int(is_first)) as server, AgentThread(tmp_path, server.url, text) as agent:
        eventually(lambda: agent.observer.polls > 2)
        if not is_first:
            server.current, server.wrong = announced, 1
        eventually(lambda: agent.records and agent.records[0].step_runs)
        eventually(lambda: agent.records[0].step_runs[0].state != "begun")
        assert agent.lines == ["drain"], agent.records[0].step_runs
        assert abs(agent.records[0].seen_at - time.time()) < 3_600


def test_names_come_from_the_service_and_may_have_the_underscore_of_2017(tmp_path: Path) -> None:
    """Hostnames are not what Resources list."""
    event = {"EventId": "A", "EventStatus": "Scheduled", "EventType": "Reboot", "Resources": ["_Front_7"]}
    document = json_reply({"DocumentIncarnation": 2, "Events": [event | {"NotBefore": "no date"}]})
    text = f"{DRAIN}[[rules]]\nsteps = ['drain']\n"
    with (
        ScriptedServer(ScriptedReply(body=b"front_7"), document) as server,
        AgentThread(tmp_path, server.url, text) as agent,
    ):
        eventually(lambda: agent.lines == ["drain"])


@pytest.mark.timeout(60)  # it takes a few seconds; a cursor write for each change would take minutes
def test_thousands_of_other_vms_events_do_not_delay_the_agents_own(tmp_path: Path) -> None:
    event = {"EventStatus": "Scheduled", "EventType": "Freeze", "NotBefore": ""}
    others = [event | {"EventId": f"E{number}", "Resources": [f"web-{number}"]} for number in range(1, 2000)]
    document = json_reply(
        {"DocumentIncarnation": 2, "Events": [*others, event | {"EventId": "A", "Resources": ["web-0"]}]}
    )
    text = f"vm = 'web-0'\n{DRAIN}[[rules]]\nsteps = ['drain']\n"
    with ScriptedServer(document) as server, AgentThread(tmp_path, server.url, text) as agent:
        eventually(lambda: agent.lines == ["drain"], within_s=50)


def test_while_the_vms_name_is_unknown_the_reason_is_reported(tmp_path: Path) -> None:
    with ScriptedServer(ScriptedReply(status=404)) as server, AgentThread(tmp_path, server.url, TEXT) as agent:
        eventually(lambda: agent.observer.failures > 0)
        assert [problem for problem in agent.report.problems if "this VM's name is not known yet" in problem]
