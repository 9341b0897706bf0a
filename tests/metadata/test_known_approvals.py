"""An approval that changes nothing is accepted without the backend (spec §5.2)."""

from __future__ import annotations

import json

import pytest

from forewarn.metadata.interface import GuestView
from forewarn.metadata.responder import KnownApprovals
from forewarn.protocol.document import Document, NoticeStatus
from forewarn.protocol.instance import InstanceFacts
from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World


def start(*event_ids: str) -> bytes:
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()


async def approve(world: World, *event_ids: str, vm: str = "a") -> int:
    return (await world.ask(vm=vm, method="POST", body=start(*event_ids))).status


def test_a_repeated_approval_is_accepted_without_the_store(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §5.2: by any VM of the scope, while it is listed and after it has finished."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        assert await approve(world, "EVENT-1") == 200
        world.backend.is_unavailable = True
        assert await approve(world, "event-1", vm="b") == 200
        world.backend.show("pair")
        assert await approve(world, "EVENT-1") == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]

    run_scenario(scenario)


def test_an_event_that_has_started_needs_no_approval(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §5.2."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice(status=NoticeStatus.STARTED, not_before=None))
        world.backend.is_unavailable = True
        assert await approve(world, "EVENT-1") == 200
        assert world.backend.approved == []

    run_scenario(scenario)


@pytest.mark.parametrize("status", [NoticeStatus.SCHEDULED, NoticeStatus.STARTED])
def test_an_approval_of_another_scopes_event_is_refused_even_if_known(
    run_scenario: RunScenario, notice: MakeNotice, status: NoticeStatus
) -> None:
    """Spec §7.4."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice(status=status))
        assert await approve(world, "EVENT-1") == 200
        assert await approve(world, "EVENT-1", vm="other") == 400

    run_scenario(scenario)


def test_an_approval_with_one_unapproved_event_goes_to_the_backend(
    run_scenario: RunScenario, notice: MakeNotice
) -> None:
    async def scenario(world: World) -> None:
        world.backend.show("pair", notice(status=NoticeStatus.STARTED), notice("EVENT-2"))
        assert await approve(world, "EVENT-1", "NEVER-WAS") == 400
        assert await approve(world, "EVENT-1", "EVENT-2") == 200
        assert await approve(world, "EVENT-2", "EVENT-1") == 200
        assert world.backend.approved == [("a", ("EVENT-1", "EVENT-2"))]

    run_scenario(scenario)


def test_a_failed_approval_is_not_remembered(run_scenario: RunScenario, notice: MakeNotice) -> None:
    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_unavailable = True
        assert await approve(world, "EVENT-1") == 503
        assert await approve(world, "EVENT-1") == 503
        world.backend.is_unavailable = False
        assert await approve(world, "EVENT-1", "NEVER-WAS") == 400
        assert await approve(world, "EVENT-1") == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]

    run_scenario(scenario)


def test_an_approval_of_a_vm_that_moved_meanwhile_is_not_remembered(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """The scope of the approval is not known then."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=start("EVENT-1")))
        await world.until(lambda: world.backend.waiting == 1)
        world.callers.assign("127.0.7.1", "other")
        world.backend.is_open.set()
        assert (await client.reply()).status == 200
        assert await approve(world, "EVENT-1", vm="b") == 200
        assert world.backend.approved == [("a", ("EVENT-1",)), ("b", ("EVENT-1",))]

    run_scenario(scenario)


def test_the_oldest_known_approvals_are_dropped_at_the_limit() -> None:
    view = GuestView(
        vm="a",
        scope_id="pair",
        enabled=True,
        epoch=1,
        document=Document(incarnation=1),
        facts=InstanceFacts(name="a", vm_id="1", location="westeurope"),
    )
    approvals = KnownApprovals(max_size=2)
    approvals.add("pair", ("E1", "E2", "E3"))
    assert [approvals.covers(view, (event_id,)) for event_id in ("E1", "E2", "E3")] == [False, True, True]
    assert not approvals.covers(view, ())
