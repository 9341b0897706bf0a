"""A VM is marked as not ready, and the step waits until no connections are left."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepOutcome
from forewarn.agent.reactions.readiness import count_connections
from tests.support.reaction_harness import ReactionHarness


def make_reaction(tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("readiness", {"file": str(tmp_path / "draining"), **options}, tmp_path / "case")


def test_the_file_exists_while_the_vm_is_not_ready(tmp_path: Path) -> None:
    readiness = make_reaction(tmp_path)
    assert asyncio.run(readiness.check()) is False
    assert asyncio.run(readiness.do()) == StepOutcome(ok=True, text="not ready")
    assert (tmp_path / "draining").exists()
    assert asyncio.run(readiness.check()) is True
    assert asyncio.run(readiness.undo()) == StepOutcome(ok=True, text="ready")
    assert not (tmp_path / "draining").exists()


def test_do_and_undo_can_be_repeated(tmp_path: Path) -> None:
    readiness = make_reaction(tmp_path)
    for again in (readiness.do, readiness.do, readiness.undo, readiness.undo):
        assert asyncio.run(again()).ok
    assert not (tmp_path / "draining").exists()


def test_a_file_that_existed_before_stays(tmp_path: Path) -> None:
    (tmp_path / "draining").write_text("by hand")
    readiness = make_reaction(tmp_path)
    asyncio.run(readiness.do())
    assert asyncio.run(readiness.undo()).text == f"{tmp_path}/draining existed before, and stays"
    assert (tmp_path / "draining").read_text() == "by hand"


def test_a_file_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    readiness = make_reaction(tmp_path, file=str(tmp_path / "none/draining"))
    outcome = asyncio.run(readiness.do())
    assert outcome.text == f"{tmp_path}/none/draining cannot be created: No such file or directory"
    assert not outcome.ok


def test_the_step_waits_for_the_end_of_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", port))
            accepted, _ = server.accept()
            assert count_connections({port}) == 1

            doing = asyncio.create_task(make_reaction(tmp_path, ports=[port]).do())
            while not (tmp_path / "draining").exists():
                await asyncio.sleep(0)
            assert not doing.done()
            client.close()
            accepted.close()
            assert await doing == StepOutcome(ok=True, text="not ready, and no connections are left")

    asyncio.run(scenario())


def test_remaining_connections_are_reported(tmp_path: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("::1", port)), server.accept()[0]:
            outcome = asyncio.run(make_reaction(tmp_path, ports=[port]).do(within_s=0.5))
    assert outcome == StepOutcome(ok=False, text="not ready, but 1 connections remain at the end of the step's time")


def test_a_step_without_a_file_only_affects_the_agents_own_page(tmp_path: Path) -> None:
    readiness = ReactionHarness("readiness", {}, tmp_path / "case")
    assert asyncio.run(readiness.do()).ok
    assert asyncio.run(readiness.undo()).ok
