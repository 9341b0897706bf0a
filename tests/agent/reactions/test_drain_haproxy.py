"""Servers of HAProxy are drained and set back, and nobody else's hand is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.fake_haproxy import FakeHaproxy
from tests.support.reaction_harness import ReactionHarness

Story = Callable[[FakeHaproxy, ReactionHarness], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    def run(story: Story, **options: Any) -> None:
        async def whole() -> None:
            async with FakeHaproxy(tmp_path / "haproxy.sock", "web/web-0", "web/web-1", "api/web-0") as haproxy:
                given = {"socket": str(haproxy.path), "servers": ["web/web-0"], **options}
                await story(haproxy, ReactionHarness("drain-haproxy", given, tmp_path / "case"))

        asyncio.run(whole())

    return run


def test_a_server_is_drained_until_its_sessions_are_gone_and_set_back(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 2
        doing = asyncio.create_task(drain.do())
        await haproxy.wait_for_command("show stat", 3)
        assert not doing.done()
        assert haproxy.admin_states == {"web/web-0": "drain", "web/web-1": "ready", "api/web-0": "ready"}

        haproxy.sessions["web/web-0"] = 0
        assert await doing == StepOutcome(ok=True, text="web/web-0: drained", notes={"web/web-0": "ready"})
        assert await drain.undo() == StepOutcome(ok=True, text="web/web-0: ready again")
        assert haproxy.set_commands == ["set server web/web-0 state drain", "set server web/web-0 state ready"]

    play(story)


def test_servers_are_named_by_patterns_with_a_place_for_the_vm(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert (await drain.do()).text == "web/web-0, api/web-0: drained"

    play(story, servers=["*/{vm}"])


def test_sessions_that_do_not_end_in_time_are_told(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 3
        outcome = await drain.do(within_s=0.5)
        assert outcome == StepOutcome(ok=False, text="sessions remain at the end of the step's time: web/web-0 has 3")
        assert (await drain.undo()).text == "web/web-0: ready again"

    play(story)


def test_whoever_does_not_want_to_wait_need_not(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 3
        assert (await drain.do()).text == "web/web-0: no new connections"

    play(story, wait=False)


@pytest.mark.parametrize("state", ["drain", "maint"])
def test_a_server_that_was_out_before_stays_out_afterwards(play: Callable[..., None], state: str) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.admin_states["web/web-0"] = state
        assert (await drain.do()).ok
        assert await drain.undo() == StepOutcome(ok=True, text="nothing to undo: no server was ready before")
        assert haproxy.set_commands == []

    play(story)


@pytest.mark.parametrize("state", ["maint", "ready"])
def test_what_somebody_else_did_meanwhile_is_left_and_told(play: Callable[..., None], state: str) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        await drain.do()
        haproxy.admin_states["web/web-0"] = state
        outcome = await drain.undo()
        assert outcome == StepOutcome(ok=True, text=f"web/web-0 is {state}, set by someone else, and stays so")
        assert haproxy.admin_states["web/web-0"] == state

    play(story)


def test_doing_it_twice_does_not_forget_what_was_ready_before(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        await drain.do()
        await drain.do()
        assert (await drain.undo()).text == "web/web-0: ready again"
        assert (await drain.undo()).ok
        assert haproxy.admin_states["web/web-0"] == "ready"

    play(story)


def test_a_drain_that_is_cancelled_is_undone(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.sessions["web/web-0"] = 1
        doing = asyncio.create_task(drain.do())
        await haproxy.wait_for_command("set server web/web-0 state drain", 1)
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        assert (await drain.undo()).text == "web/web-0: ready again"

    play(story)


def test_the_check_looks_at_the_world(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert await drain.check() is False
        haproxy.admin_states["web/web-0"], haproxy.sessions["web/web-0"] = "drain", 1
        assert await drain.check() is False
        haproxy.sessions["web/web-0"] = 0
        assert await drain.check() is True

    play(story)


def test_a_socket_without_the_level_admin_is_told(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        haproxy.denies_commands = True
        outcome = await drain.do()
        assert outcome == StepOutcome(ok=False, text="HAProxy does not set web/web-0 to drain: Permission denied")

    play(story)


def test_a_server_that_does_not_exist_is_told(play: Callable[..., None]) -> None:
    async def story(haproxy: FakeHaproxy, drain: ReactionHarness) -> None:
        assert await drain.do() == StepOutcome(ok=False, text="HAProxy has no server web/x or api/y")

    play(story, servers=["web/x", "api/y"])


def test_an_haproxy_that_is_not_there_is_told(tmp_path: Path) -> None:
    drain = ReactionHarness("drain-haproxy", {"socket": str(tmp_path / "none"), "servers": ["a/b"]}, tmp_path / "case")
    outcome = asyncio.run(drain.do())
    assert outcome.text == f"HAProxy at {tmp_path}/none cannot be reached (No such file or directory)"
    assert asyncio.run(drain.check()) is None
