"""An event whose NotBefore changes before it starts: the agent follows the newest one that it was shown.

This service never changes a NotBefore (spec §4.2). Others might postpone an event, or shorten its notice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.config import parse_config
from forewarn.agent.daemon import AgentDaemon
from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import EventRecord, StepState
from forewarn.protocol.dates import http_date
from tests.agent.conftest import NOW
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

DAY_S = 86_400.0
RULES = """
[[rules]]
name = "days ahead"
begin = "late"
steps = ["announce", "save", "drain"]
[steps.announce]
use = "command"
begin = "at-once"
budget = "5s"
run = ["/bin/sh", "-c", "echo announce >> LOG"]
[steps.save]
use = "command"
budget = "100s"
cut = 1
run = ["/bin/sh", "-c", "echo save >> LOG"]
[steps.drain]
use = "command"
budget = "10s"
run = ["/bin/sh", "-c", "echo drain >> LOG"]
"""


class FixedClock:
    """The server's time, which a test sets; sleepers wait for ever."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep_until(self, at: float | None) -> None:
        await asyncio.Event().wait()


def document(not_before: float | None, incarnation: int = 2) -> ScriptedReply:
    event: dict[str, Any] = {
        "EventId": "8F5F4BE7-8B08-46B3-87C4-D1CEEE73ECF9",
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm"],
        "NotBefore": "soon" if not_before is None else http_date(not_before),
    }
    return json_reply(
        {"DocumentIncarnation": incarnation, "Events": [event]}, headers=(("ETag", f'"1-{incarnation}"'),)
    )


class Agents:
    """Runs an agent once for each document, one after the other on the same journal."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"

    def see(self, reply: ScriptedReply, at: float = NOW) -> EventRecord:
        """What the journal has of the event after an agent that saw this document at this time."""
        with ScriptedServer(reply) as server:
            text = f'endpoint = "{server.url}"\nvm = "vm"\nlisten = ""\nstate = "{self._folder / "state"}"\n{RULES}'
            config = parse_config(text.replace("LOG", str(self._log)))

            async def run_once() -> None:
                await AgentDaemon(config, clock=FixedClock(at), boot_id="boot-1").run_once()

            asyncio.run(run_once())
        journal = AgentJournal(config.journal_path, readonly=True)
        try:
            (record,) = journal.records()
        finally:
            journal.close()
        return record

    @property
    def steps_run(self) -> list[str]:
        return self._log.read_text().split()


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    return Agents(tmp_path)


def test_steps_are_run_by_a_shortened_notice_and_each_only_once(agents: Agents) -> None:
    agents.see(document(NOW + DAY_S))
    assert agents.steps_run == ["announce"]
    for incarnation in (2, 3, 3):
        record = agents.see(document(NOW + 60, incarnation))
        assert (record.event.not_before, record.not_before) == (NOW + 60, NOW + DAY_S)
        assert agents.steps_run == ["announce"]  # 60 s leave no time for `save`, and `drain` needs the last 15 s
    assert [(run.step, run.state) for run in record.step_runs] == [
        ("announce", StepState.DONE),
        ("save", StepState.CUT),
    ]
    for at in (NOW + 46, NOW + 47):
        agents.see(document(NOW + 60, 3), at)
        assert agents.steps_run == ["announce", "drain"]


def test_steps_that_have_not_begun_wait_for_the_new_time_of_a_postponed_event(agents: Agents) -> None:
    agents.see(document(NOW + 1_000))
    record = agents.see(document(NOW + DAY_S), NOW + 990)
    assert (agents.steps_run, record.event.not_before) == (["announce"], NOW + DAY_S)
    agents.see(document(NOW + DAY_S), NOW + DAY_S - 115)
    assert agents.steps_run == ["announce", "save"]
    agents.see(document(NOW + DAY_S), NOW + DAY_S - 15)
    assert agents.steps_run == ["announce", "save", "drain"]


def test_a_step_that_was_cut_is_run_after_all_if_the_event_is_postponed(agents: Agents) -> None:
    record = agents.see(document(NOW + 60))
    assert [run.step for run in record.step_runs if run.state is StepState.CUT] == ["save"]
    for at in (NOW + 1, NOW + 2):
        record = agents.see(document(NOW + DAY_S, 3), at)
        assert [(run.step, run.state) for run in record.step_runs] == [("announce", StepState.DONE)]
    agents.see(document(NOW + DAY_S, 3), NOW + DAY_S - 115)
    assert agents.steps_run == ["announce", "save"]
    record = agents.see(document(NOW + DAY_S, 3), NOW + DAY_S - 14)
    assert agents.steps_run == ["announce", "save", "drain"]
    assert {run.state for run in record.step_runs} == {StepState.DONE}


def test_a_step_is_cut_again_if_the_event_is_postponed_by_too_little(agents: Agents) -> None:
    agents.see(document(NOW + 60))
    record = agents.see(document(NOW + 70, 3), NOW + 1)
    assert [(run.step, run.state, run.text) for run in record.step_runs[1:]] == [
        ("save", StepState.CUT, "no time: 1 min 9 s left")
    ]


def test_a_step_that_was_cut_is_not_run_after_the_steps_that_follow_it(agents: Agents) -> None:
    agents.see(document(NOW + 10))
    assert agents.steps_run == ["announce", "drain"]
    for at in (NOW + 1, NOW + DAY_S - 115):
        record = agents.see(document(NOW + DAY_S, 3), at)
        assert agents.steps_run == ["announce", "drain"]
        assert {run.step: run.state for run in record.step_runs}["save"] is StepState.CUT


def test_an_unreadable_not_before_does_not_replace_a_known_one(agents: Agents) -> None:
    agents.see(document(NOW + DAY_S))
    assert agents.see(document(None, 3)).event.not_before == NOW + DAY_S
    assert agents.see(document(NOW + 2 * DAY_S, 4)).event.not_before == NOW + 2 * DAY_S
    assert agents.steps_run == ["announce"]


def test_an_older_document_does_not_bring_an_old_not_before_back(agents: Agents) -> None:
    agents.see(document(NOW + DAY_S, 2))
    agents.see(document(NOW + 2 * DAY_S, 3))
    assert agents.see(document(NOW + DAY_S, 2)).event.not_before == NOW + 2 * DAY_S
