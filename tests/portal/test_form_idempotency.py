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


def test_a_button_pressed_twice_asks_once(portal: Visitor) -> None:
    sent = hidden(confirm(portal, "reapply", {"vm": "db"}))
    first, second = (portal.post(form("reapply"), sent) for _ in range(2))
    assert first.status == second.status == 303
    assert first.headers["location"] == second.headers["location"]
    assert len(portal.world.store.requests()) == 1


def test_a_slip_that_two_use_at_once_is_good_once() -> None:
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


def test_slips_are_one_s_own_and_not_kept_without_end() -> None:
    slips = IdempotencyKeys()
    first = slips.issue("ann")
    assert slips.is_known("ann", first)
    assert not slips.is_known("bob", first)
    for _ in range(1000):
        slips.issue("ann")
    assert not slips.is_known("ann", first)


def test_what_was_refused_can_be_tried_again_with_the_same_slip() -> None:
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


def test_nobody_crowds_out_the_slips_of_others() -> None:
    slips = IdempotencyKeys()
    anns = slips.issue("ann")
    bobs = [slips.issue("bob") for _ in range(2000)]
    assert slips.is_known("ann", anns)
    assert slips.is_known("bob", bobs[-1])
    assert not slips.is_known("bob", bobs[0])
    assert not slips.is_known("ann", bobs[-1])


def test_a_confirmation_that_is_not_known_any_more_is_asked_for_again(portal: Visitor) -> None:
    page = portal.post(form("restart"), {"vm": "db", "confirmed": "yes", "slip": "of-yesterday"})
    assert page.status == 200
    assert "This confirmation has expired, and nothing was done." in page.text
    assert asked(portal) == []
    assert portal.post(form("restart"), hidden(page)).status == 303
