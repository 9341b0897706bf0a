"""A commit of a whole fleet is published in turns: VMs are answered in between, and no scope is lost."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.metadata.workers import publisher
from forewarn.metadata.workers.publisher import PublishQueue

MANY = [f"vm:s/g/{number}" for number in range(publisher._MAX_AT_ONCE + 1)]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn publishes one scope, however fast the machine is; a failed one is tried again at once."""
    monkeypatch.setattr(publisher, "_RETRY_S", 0.0)
    monkeypatch.setattr(publisher, "_TURN_S", 1e-9)


def test_few_scopes_are_published_at_once() -> None:
    async def scenario() -> list[str]:
        published: list[str] = []
        PublishQueue(published.append).add(["a", "b"])
        return published

    assert asyncio.run(scenario()) == ["a", "b"]


def test_other_work_runs_while_many_scopes_are_published() -> None:
    async def scenario() -> None:
        published: list[str] = []
        queue = PublishQueue(published.append)
        queue.add(MANY)
        turns = 0
        while len(published) < len(MANY):
            await asyncio.sleep(0)
            turns += 1
            assert len(published) <= turns
        assert published == MANY
        await queue.wait_until_empty()

    asyncio.run(scenario())


def test_a_scope_that_changes_again_while_it_waits_is_published_at_once_and_only_once() -> None:
    async def scenario() -> list[str]:
        published: list[str] = []
        queue = PublishQueue(published.append)
        queue.add(MANY)
        queue.add([MANY[-1]])
        await queue.wait_until_empty()
        return published

    assert asyncio.run(scenario()) == [MANY[-1], *MANY[:-1]]


def test_scopes_that_are_added_while_others_wait_are_waited_for() -> None:
    async def scenario() -> list[str]:
        published: list[str] = []
        queue = PublishQueue(published.append)
        queue.add(MANY)
        await asyncio.sleep(0)
        queue.add([f"{scope_id}-b" for scope_id in MANY])
        await queue.wait_until_empty()
        return published

    assert asyncio.run(scenario()) == [*MANY, *(f"{scope_id}-b" for scope_id in MANY)]


def test_a_scope_that_cannot_be_published_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[str]:
        published: list[str] = []
        failures = iter([OSError("the disk is gone")])

        def publish(scope_id: str) -> None:
            for failure in failures:
                raise failure
            published.append(scope_id)

        queue = PublishQueue(publish)
        queue.add(MANY)
        await queue.wait_until_empty()
        return published

    assert asyncio.run(scenario()) == [*MANY[1:], MANY[0]]
    assert "cannot be published now" in caplog.text


def test_a_closed_queue_publishes_no_more() -> None:
    async def scenario() -> list[str]:
        published: list[str] = []
        queue = PublishQueue(published.append)
        queue.add(MANY)
        await queue.close()
        await queue.close()
        await queue.wait_until_empty()
        return published

    assert asyncio.run(scenario()) == []
