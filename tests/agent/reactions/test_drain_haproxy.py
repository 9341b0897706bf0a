"""HAProxy servers are drained and set back, and states that someone else set are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.fake_haproxy import FakeHaproxy
from tests.support.reaction_harness import ReactionHarness

Scenario = Callable[[FakeHaproxy, ReactionHarness], Awaitable[None]]


@pytest.fixture
def run_scenario(tmp_path: Path) -> Callable[..., None]:
    def run(scenario: Scenario, **options: Any) -> None:
        async def run_all() -> None:
            async with FakeHaproxy(tmp_path / "haproxy.sock", "web/web-0", "web/web-1", "api/web-0") as haproxy:
                given = {"socket": str(haproxy.path), "servers": ["web/web-0"], **options}
                await scenario(haproxy, ReactionHarness("drain-haproxy", given, tmp_path / "case"))

        asyncio.run(run_all())

    return run


def test_a_server_is_drained_until_its_sessions_have_ended_and_set_back(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 2
        doing = asyncio.create_task(drain.do())
        await haproxy.wait_for_command("show stat", 3)
        assert not doing.done()
        assert haproxy.admin_states == {"web/web-0": "drain", "web/web-1": "ready", "api/web-0": "ready"}

        haproxy.sessions["web/web-0"] = 0
        assert await doing == StepOutcome(ok=True, text="web/web-0: drained", notes={"web/web-0": "ready"})
        assert await drain.undo() == StepOutcome(ok=True, text="web/web-0: ready again")
        assert haproxy.set_commands == ["set server web/web-0 state drain", "set server web/web-0 state ready"]

    run_scenario(scenario)


def test_server_patterns_may_contain_the_vms_name(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert (await drain.do()).text == "web/web-0, api/web-0: drained"

    run_scenario(scenario, servers=["*/{vm}"])


def test_sessions_that_do_not_end_in_time_are_reported(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 3
        outcome = await drain.do(within_s=0.5)
        assert outcome == StepOutcome(ok=False, text="sessions remain at the end of the step's time: web/web-0 has 3")
        assert (await drain.undo()).text == "web/web-0: ready again"

    run_scenario(scenario)


def test_without_wait_the_step_does_not_wait_for_sessions(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 3
        assert (await drain.do()).text == "web/web-0: no new connections"

    run_scenario(scenario, wait=False)


@pytest.mark.parametrize("state", ["drain", "maint"])
def test_a_server_that_was_not_ready_before_stays_so(run_scenario: Callable[..., None], state: str) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.admin_states["web/web-0"] = state
        assert (await drain.do()).ok
        assert await drain.undo() == StepOutcome(ok=True, text="nothing to undo: no server was ready before")
        assert haproxy.set_commands == []

    run_scenario(scenario)


@pytest.mark.parametrize("state", ["maint", "ready"])
def test_a_state_that_someone_else_set_is_kept_and_reported(run_scenario: Callable[..., None], state: str) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        await drain.do()
        haproxy.admin_states["web/web-0"] = state
        outcome = await drain.undo()
        assert outcome == StepOutcome(ok=True, text=f"web/web-0 is {state}, set by someone else, and stays so")
        assert haproxy.admin_states["web/web-0"] == state

    run_scenario(scenario)


def test_a_repeated_drain_still_knows_which_servers_were_ready(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        await drain.do()
        await drain.do()
        assert (await drain.undo()).text == "web/web-0: ready again"
        assert (await drain.undo()).ok
        assert haproxy.admin_states["web/web-0"] == "ready"

    run_scenario(scenario)


def test_a_drain_that_is_cancelled_is_undone(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 1
        doing = asyncio.create_task(drain.do())
        await haproxy.wait_for_command("set server web/web-0 state drain", 1)
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        assert (await drain.undo()).text == "web/web-0: ready again"

    run_scenario(scenario)


def test_the_check_asks_haproxy(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert await drain.check() is False
        haproxy.admin_states["web/web-0"], haproxy.sessions["web/web-0"] = "drain", 1
        assert await drain.check() is False
        haproxy.sessions["web/web-0"] = 0
        assert await drain.check() is True

    run_scenario(scenario)


def test_a_socket_without_level_admin_is_reported(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.denies_commands = True
        outcome = await drain.do()
        assert outcome == StepOutcome(ok=False, text="HAProxy does not set web/web-0 to drain: Permission denied")

    run_scenario(scenario)


def test_a_server_that_does_not_exist_is_reported(run_scenario: Callable[..., None]) -> None:
    async def scenario(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert await drain.do() == StepOutcome(ok=False, text="HAProxy has no server web/x or api/y")

    run_scenario(scenario, servers=["web/x", "api/y"])


def test_an_unreachable_haproxy_is_reported(tmp_path: Path) -> None:
    drain = ReactionHarness("drain-haproxy", {"socket": str(tmp_path / "none"), "servers": ["a/b"]}, tmp_path / "case")
    outcome = asyncio.run(drain.do())
    assert outcome.text == f"HAProxy at {tmp_path}/none cannot be reached (No such file or directory)"
    assert asyncio.run(drain.check()) is None
