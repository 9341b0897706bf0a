"""A Patroni leader switches over to a replica that the event spares, and takes back only what it gave."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.fake_patroni import FakePatroni
from tests.support.reaction_harness import ReactionHarness


@pytest.fixture
def patroni() -> Iterator[FakePatroni]:
    with FakePatroni("db-1") as patroni:
        yield patroni


def make_reaction(patroni: FakePatroni, tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness(
        "failover-patroni", {"url": patroni.url, **options}, tmp_path / "case", resources=("db-0",), vm="db-0"
    )


def test_a_leader_switches_over_and_waits_for_the_new_one(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.polls_until_switched = 2
    outcome = asyncio.run(make_reaction(patroni, tmp_path).do())
    assert outcome == StepOutcome(ok=True, text="db-1 leads now", notes={"led": "db-0", "successor": "db-1"})
    assert patroni.switchovers == [{"leader": "db-0"}]


def test_a_node_that_does_not_lead_has_nothing_to_hand_over(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.lead("db-1")
    failover = make_reaction(patroni, tmp_path, return_leadership=True)
    assert asyncio.run(failover.do()) == StepOutcome(ok=True, text="nothing to hand over: db-1 leads")
    assert asyncio.run(failover.undo()).text == "nothing to undo: the current leader stays"
    assert patroni.switchovers == []


def test_a_replica_that_the_event_affects_does_not_become_leader(tmp_path: Path) -> None:
    with FakePatroni("db-1", "db-2", "db-3") as patroni:
        patroni.members["db-2"]["lag"] = 9000
        asyncio.run(make_reaction(patroni, tmp_path).do(resources=("db-0", "db-1")))
    assert patroni.switchovers == [{"leader": "db-0", "candidate": "db-3"}]


def test_a_synchronous_replica_is_preferred(tmp_path: Path) -> None:
    with FakePatroni("db-1", "db-2", "db-3") as patroni:
        patroni.members["db-3"] |= {"role": "sync_standby", "lag": 10}
        asyncio.run(make_reaction(patroni, tmp_path).do(resources=("db-0", "db-1")))
    assert patroni.switchovers == [{"leader": "db-0", "candidate": "db-3"}]


def test_a_replica_tagged_nofailover_never_becomes_leader(tmp_path: Path) -> None:
    with FakePatroni("db-1", "db-2", "db-3", "db-4") as patroni:
        patroni.members["db-2"]["tags"] = {"nofailover": True}
        patroni.members["db-3"]["tags"] = {"failover_priority": 0}
        asyncio.run(make_reaction(patroni, tmp_path).do(resources=("db-0", "db-1")))
    assert patroni.switchovers == [{"leader": "db-0", "candidate": "db-4"}]


def test_a_paused_cluster_gets_an_explicit_candidate(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.paused = True
    assert asyncio.run(make_reaction(patroni, tmp_path).do()).ok
    assert patroni.switchovers == [{"leader": "db-0", "candidate": "db-1"}]


def test_the_candidate_can_be_configured(patroni: FakePatroni, tmp_path: Path) -> None:
    asyncio.run(make_reaction(patroni, tmp_path, candidate="db-1").do())
    assert patroni.switchovers == [{"leader": "db-0", "candidate": "db-1"}]


def test_a_cluster_without_a_replica_is_reported(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.members["db-1"]["state"] = "stopped"
    outcome = asyncio.run(make_reaction(patroni, tmp_path).do(within_s=0.3))
    assert outcome == StepOutcome(ok=False, text="db-0 leads, and no running replica can take over")


def test_a_rejected_switchover_is_reported(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.refusal = "switchover is not possible: no good candidates have been found"
    outcome = asyncio.run(make_reaction(patroni, tmp_path).do())
    assert outcome.text == (
        "Patroni refuses the switchover: 412 (switchover is not possible: no good candidates have been found)"
    )


def test_a_switchover_that_does_not_finish_is_reported(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.polls_until_switched = 1000
    outcome = asyncio.run(make_reaction(patroni, tmp_path).do(within_s=0.5))
    assert outcome.text == "at the end of the step's time no other member leads with this one as replica"
    assert not outcome.ok


def test_leadership_is_not_taken_back_by_default(patroni: FakePatroni, tmp_path: Path) -> None:
    failover = make_reaction(patroni, tmp_path)
    asyncio.run(failover.do())
    assert asyncio.run(failover.undo()).ok
    assert patroni.leader == "db-1"


def test_leadership_is_taken_back_if_configured(patroni: FakePatroni, tmp_path: Path) -> None:
    failover = make_reaction(patroni, tmp_path, return_leadership=True)
    asyncio.run(failover.do())
    assert asyncio.run(failover.undo()) == StepOutcome(ok=True, text="db-0 leads again")
    assert asyncio.run(failover.undo()) == StepOutcome(ok=True, text="db-0 leads again")
    assert patroni.switchovers[1:] == [{"leader": "db-1", "candidate": "db-0"}]


def test_leadership_that_moved_elsewhere_is_not_taken_back(tmp_path: Path) -> None:
    with FakePatroni("db-1", "db-2") as patroni:
        failover = make_reaction(patroni, tmp_path, return_leadership=True)
        asyncio.run(failover.do())
        patroni.lead("db-2")
        assert asyncio.run(failover.undo()).text == "db-2 leads, set by someone else, and stays leader"


def test_a_member_that_is_not_running_yet_does_not_take_over(patroni: FakePatroni, tmp_path: Path) -> None:
    failover = make_reaction(patroni, tmp_path, return_leadership=True)
    asyncio.run(failover.do())
    patroni.members["db-0"]["state"] = "starting"
    outcome = asyncio.run(failover.undo(within_s=0.5))
    assert outcome == StepOutcome(ok=False, text="db-0 is not a running member of a cluster with a leader")
    assert patroni.leader == "db-1"


def test_a_password_is_read_from_its_file_and_shown_nowhere(patroni: FakePatroni, tmp_path: Path) -> None:
    patroni.authorization = "Basic " + base64.b64encode(b"ops:hush-hush").decode()
    secret = tmp_path / "password"
    failover = make_reaction(patroni, tmp_path, user="ops", password_file=str(secret))
    assert asyncio.run(failover.do()).text == f"{secret} cannot be read (No such file or directory)"
    secret.write_text("wrong-one\n")
    refused = asyncio.run(failover.do())
    assert "401" in refused.text
    assert "wrong-one" not in refused.text
    secret.write_text("hush-hush\n")
    assert asyncio.run(failover.do()).ok
    assert not any(b"hush" in file.read_bytes() for file in (tmp_path / "case").iterdir())


def test_the_check_asks_the_cluster(patroni: FakePatroni, tmp_path: Path) -> None:
    failover = make_reaction(patroni, tmp_path)
    assert asyncio.run(failover.check()) is False
    patroni.lead("db-1")
    assert asyncio.run(failover.check()) is True


def test_an_unreachable_patroni_is_reported(tmp_path: Path) -> None:
    failover = ReactionHarness("failover-patroni", {"url": "http://127.0.0.1:9"}, tmp_path / "case")
    assert asyncio.run(failover.do()) == StepOutcome(ok=False, text="127.0.0.1:9 refuses connections")
    assert asyncio.run(failover.check()) is None
