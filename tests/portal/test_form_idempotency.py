"""Idempotency keys: a confirmation runs its action once."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.portal.confirmation import IdempotencyKeys
from tests.portal.conftest import Visitor
from tests.portal.form_helpers import (
    asked,
    confirm,
    form,
    hidden,
)


def test_a_button_pressed_twice_makes_one_request(portal: Visitor) -> None:
    sent = hidden(confirm(portal, "reapply", {"vm": "db"}))
    first, second = (portal.post(form("reapply"), sent) for _ in range(2))
    assert first.status == second.status == 303
    assert first.headers["location"] == second.headers["location"]
    assert len(portal.world.store.requests()) == 1


def test_an_action_runs_once_for_concurrent_calls_with_one_key() -> None:
    async def both() -> tuple[list[str], int]:
        slips, done = IdempotencyKeys(), 0

        async def deed() -> str:
            nonlocal done
            done += 1
            await asyncio.sleep(0)
            return "there"

        slip = slips.issue("ann")
        return await asyncio.gather(*(slips.run_once("ann", slip, deed) for _ in range(5))), done

    assert asyncio.run(both()) == (["there"] * 5, 1)


def test_keys_belong_to_one_user_and_are_bounded() -> None:
    slips = IdempotencyKeys()
    first = slips.issue("ann")
    assert slips.is_known("ann", first)
    assert not slips.is_known("bob", first)
    for _ in range(1000):
        slips.issue("ann")
    assert not slips.is_known("ann", first)


def test_a_key_is_dropped_when_its_action_fails() -> None:
    async def twice() -> str:
        slips = IdempotencyKeys()
        slip = slips.issue("ann")

        async def failing() -> str:
            raise ValueError

        with pytest.raises(ValueError):
            await slips.run_once("ann", slip, failing)
        assert not slips.is_known("ann", slip)
        return "told"

    assert asyncio.run(twice()) == "told"


def test_the_keys_of_one_user_do_not_push_out_those_of_another() -> None:
    slips = IdempotencyKeys()
    anns = slips.issue("ann")
    bobs = [slips.issue("bob") for _ in range(2000)]
    assert slips.is_known("ann", anns)
    assert slips.is_known("bob", bobs[-1])
    assert not slips.is_known("bob", bobs[0])
    assert not slips.is_known("ann", bobs[-1])


def test_an_expired_confirmation_has_to_be_repeated(portal: Visitor) -> None:
    page = portal.post(form("restart"), {"vm": "db", "confirmed": "yes", "slip": "of-yesterday"})
    assert page.status == 200
    assert "This confirmation has expired, and nothing was done." in page.text
    assert asked(portal) == []
    assert portal.post(form("restart"), hidden(page)).status == 303
