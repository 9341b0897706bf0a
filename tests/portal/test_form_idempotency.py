"""Idempotency keys: a confirmation runs its action once."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.web.portal.confirmation import IdempotencyKeys
from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import (
    confirm,
    form_path,
    hidden_fields,
    requested_operations,
)
from tests.support.operator_api import Api


def test_a_button_pressed_twice_makes_one_request(portal: PortalUser) -> None:
    sent = hidden_fields(confirm(portal, "reapply", {"vm": "db"}))
    first, second = (portal.post(form_path("reapply"), sent) for _ in range(2))
    assert first.status == second.status == 303
    assert first.headers["location"] == second.headers["location"]
    assert len(portal.world.store.requests()) == 1


def test_an_action_runs_once_for_concurrent_calls_with_one_key() -> None:
    async def both() -> tuple[list[str], int]:
        keys, runs = IdempotencyKeys(), 0

        async def action() -> str:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0)
            return "there"

        key = keys.issue("ann")
        return await asyncio.gather(*(keys.run_once("ann", key, action) for _ in range(5))), runs

    assert asyncio.run(both()) == (["there"] * 5, 1)


def test_keys_belong_to_one_user_and_are_bounded() -> None:
    keys = IdempotencyKeys()
    first = keys.issue("ann")
    assert keys.is_known("ann", first)
    assert not keys.is_known("bob", first)
    for _ in range(1000):
        keys.issue("ann")
    assert not keys.is_known("ann", first)


def test_a_key_is_dropped_when_its_action_fails() -> None:
    async def twice() -> str:
        keys = IdempotencyKeys()
        key = keys.issue("ann")

        async def failing() -> str:
            raise ValueError

        with pytest.raises(ValueError):
            await keys.run_once("ann", key, failing)
        assert not keys.is_known("ann", key)
        return "told"

    assert asyncio.run(twice()) == "told"


def test_the_keys_of_one_user_do_not_push_out_those_of_another() -> None:
    keys = IdempotencyKeys()
    key_of_ann = keys.issue("ann")
    keys_of_bob = [keys.issue("bob") for _ in range(2000)]
    assert keys.is_known("ann", key_of_ann)
    assert keys.is_known("bob", keys_of_bob[-1])
    assert not keys.is_known("bob", keys_of_bob[0])
    assert not keys.is_known("ann", keys_of_bob[-1])


def test_an_expired_confirmation_has_to_be_repeated(portal: PortalUser) -> None:
    page = portal.post(form_path("restart"), {"vm": "db", "confirmed": "yes", "slip": "of-yesterday"})
    assert page.status == 200
    assert "This confirmation has expired, and nothing was done." in page.text
    assert requested_operations(portal) == []
    assert portal.post(form_path("restart"), hidden_fields(page)).status == 303


def restarted(portal: PortalUser) -> PortalUser:
    """The same user at the next process of the service, which knows only what is stored."""
    portal.world.restart()
    return PortalUser(Api(portal.world), portal.principal)


def test_a_confirmation_repeated_after_a_restart_leads_to_the_request_that_it_made(portal: PortalUser) -> None:
    """The answer to the first one was lost with its process."""
    sent = hidden_fields(confirm(portal, "restart", {"vm": "db"}))
    first = portal.post(form_path("restart"), sent)
    second = restarted(portal).post(form_path("restart"), sent)
    assert (second.status, second.headers["location"]) == (303, first.headers["location"])
    assert len(portal.world.store.requests()) == 1


def test_a_confirmation_that_was_never_sent_has_to_be_repeated_after_a_restart(portal: PortalUser) -> None:
    sent = hidden_fields(confirm(portal, "restart", {"vm": "db"}))
    page = restarted(portal).post(form_path("restart"), sent)
    assert page.status == 200
    assert "This confirmation has expired, and nothing was done." in page.text
    assert portal.world.store.requests() == []
