"""Polls and event deliveries are collected in memory and taken in batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forewarn.core.history import EventDelivery, LastPoll
from forewarn.metadata import GuestObservations, GuestView
from forewarn.metadata.observations import BATCH_SIZE
from forewarn.protocol.document import Document, EventNotice, Kind, NoticeStatus
from forewarn.protocol.instance import InstanceFacts
from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World

OLD = "/metadata/scheduledevents?api-version=2017-08-01"


def delivery(
    event_id: str = "EVENT-1",
    vm: str = "a",
    status: str = "scheduled",
    version: str = "2020-07-01",
    incarnation: int = 2,
    at: float = 1_700_000_000.0,
) -> EventDelivery:
    return EventDelivery(
        event_id=event_id, scope_id="pair", vm=vm, status=status, version=version, incarnation=incarnation, at=at
    )


def view(*notices: EventNotice, vm: str = "a", incarnation: int = 2) -> GuestView:
    return GuestView(
        vm=vm,
        scope_id="pair",
        enabled=True,
        epoch=1,
        document=Document(incarnation=incarnation, notices=notices),
        facts=InstanceFacts(name=vm),
    )


def test_only_the_first_delivery_of_an_event_to_a_vm_is_recorded(run_scenario: RunScenario, notice: MakeNotice) -> None:
    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        client = await world.connect()
        for _ in range(3):
            await client.ask()
        await world.ask(vm="b")
        polls, deliveries = world.server.observations.take_batch()
        assert deliveries == [delivery(vm="a"), delivery(vm="b")]
        assert [(poll.vm, poll.count) for poll in polls] == [("a", 3), ("b", 1)]
        assert world.server.observations.take_batch() == ([], [])

    run_scenario(scenario)


def test_a_started_event_is_a_delivery_of_its_own(run_scenario: RunScenario, notice: MakeNotice) -> None:
    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        await world.ask()
        world.backend.show("pair", notice(status=NoticeStatus.STARTED, not_before=None))
        await world.ask()
        _, deliveries = world.server.observations.take_batch()
        assert deliveries == [delivery(), delivery(status="started", incarnation=3)]

    run_scenario(scenario)


def test_an_event_that_the_version_does_not_list_is_not_delivered(
    run_scenario: RunScenario, notice: MakeNotice
) -> None:
    """Spec §3: a version lists only the kinds it knows."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice(kind=Kind.PREEMPT))
        client = await world.connect()
        await client.ask(OLD)
        assert world.server.observations.take_batch()[1] == []
        await client.ask()
        assert world.server.observations.take_batch()[1] == [delivery()]

    run_scenario(scenario)


def test_a_304_and_an_approval_count_as_polls_without_a_delivery(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §8.2: any such request keeps the scope enabled."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        world.backend.at += 1
        await client.ask(If_None_Match=tag)
        world.backend.at += 1
        await client.ask(OLD, method="POST", body=b'{"StartRequests":[]}')
        [poll], deliveries = world.server.observations.take_batch()
        assert replace(poll, real_at=0.0) == LastPoll(
            vm="a", scope_id="pair", at=1_700_000_002.0, version="2017-08-01", count=3, vm_id="pair-a"
        )
        assert deliveries == []

    run_scenario(scenario)


def test_refused_requests_and_other_paths_are_not_polls(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        await world.ask("/metadata/instance?api-version=2021-02-01")
        await world.ask("/metadata/scheduledevents?api-version=nonsense")
        await world.ask(vm="unknown")
        assert world.server.observations.take_batch() == ([], [])

    run_scenario(scenario)


def test_a_held_poll_is_a_delivery_when_it_is_answered(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        client.send(request_bytes(If_None_Match=tag, Prefer="wait=300"))
        await world.until(lambda: world.server.counters.held == 1)
        assert world.server.observations.take_batch()[1] == []
        world.backend.at += 60
        world.backend.show("pair", notice())
        await client.reply()
        assert world.server.observations.take_batch()[1] == [delivery(at=1_700_000_060.0)]

    run_scenario(scenario)


def test_a_returned_batch_is_taken_again_with_newer_observations(notice: MakeNotice) -> None:
    observations = GuestObservations()
    observations.record_poll(view(), "2020-07-01", 1.0)
    observations.record_poll(view(vm="b"), "2020-07-01", 1.0)
    observations.record_delivery(view(notice()), "2020-07-01", 1.0)
    first = observations.take_batch()
    observations.record_poll(view(), "2020-07-01", 2.0)
    observations.record_delivery(view(notice(), notice("EVENT-2"), incarnation=3), "2020-07-01", 2.0)
    observations.return_batch(*first)
    polls, deliveries = observations.take_batch()
    assert {poll.vm: (poll.at, poll.count) for poll in polls} == {"a": (2.0, 2), "b": (1.0, 1)}
    assert deliveries == [delivery(at=1.0), delivery("EVENT-2", incarnation=3, at=2.0)]


def test_poll_counts_continue_after_a_restart() -> None:
    observations = GuestObservations()
    observations.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version="2020-07-01", count=41)])
    observations.record_poll(view(), "2020-07-01", 2.0)
    assert [poll.count for poll in observations.take_batch()[0]] == [42]


def test_waiting_observations_are_bounded(notice: MakeNotice, caplog: pytest.LogCaptureFixture) -> None:
    observations = GuestObservations(max_deliveries=3, max_vms=2)
    for index in range(5):
        observations.record_delivery(view(notice(), vm=f"vm-{index}"), "2020-07-01", 1.0)
    first = observations.take_batch()
    assert [delivery.vm for delivery in first[1]] == ["vm-0", "vm-1", "vm-2"]
    assert observations.lost_deliveries == 2
    assert caplog.text.count("further ones are lost") == 1
    observations.record_delivery(view(notice(), vm="late"), "2020-07-01", 2.0)
    observations.return_batch(*first)
    assert [delivery.vm for delivery in observations.take_batch()[1]] == ["vm-0", "vm-1", "vm-2"]


def test_batches_are_bounded_and_every_vm_gets_its_turn() -> None:
    observations = GuestObservations()
    vms = [f"vm-{index}" for index in range(2 * BATCH_SIZE + 1)]
    for vm in vms:
        observations.record_poll(view(vm=vm), "2020-07-01", 1.0)
    first, _ = observations.take_batch()
    observations.record_poll(view(vm=first[0].vm), "2020-07-01", 2.0)
    observations.record_poll(view(vm=vms[-1]), "2020-07-01", 2.0)
    (second, _), (third, _), rest = observations.take_batch(), observations.take_batch(), observations.take_batch()
    assert [poll.vm for poll in (*first, *second, *third)] == [*vms, vms[0]]
    assert [poll.count for poll in third] == [2, 2]
    assert rest == ([], [])


def test_a_polling_vm_is_reported_after_an_interval_and_a_new_vm_at_once(notice: MakeNotice) -> None:
    clock = [0.0]
    observations = GuestObservations(real_time=lambda: clock[0])
    observations.record_poll(view(), "2020-07-01", 1.0)
    assert [poll.vm for poll in observations.take_batch(10.0)[0]] == ["a"]
    observations.record_poll(view(), "2020-07-01", 2.0)
    observations.record_poll(view(vm="b"), "2020-07-01", 2.0)
    observations.record_delivery(view(notice()), "2020-07-01", 2.0)
    polls, deliveries = observations.take_batch(10.0)
    assert ([poll.vm for poll in polls], len(deliveries)) == (["b"], 1), "deliveries are reported at once"
    clock[0] = 9.0
    assert observations.take_batch(10.0) == ([], [])
    clock[0] = 10.0
    assert [(poll.vm, poll.count) for poll in observations.take_batch(10.0)[0]] == [("a", 2)]
    observations.record_poll(view(), "2020-07-01", 3.0)
    assert [(poll.vm, poll.count) for poll in observations.take_batch()[0]] == [("a", 3)], "a user is watching"


def test_a_vm_that_is_due_does_not_wait_for_one_that_is_not() -> None:
    clock = [0.0]
    observations = GuestObservations(real_time=lambda: clock[0])
    observations.record_poll(view(vm="seldom"), "2020-07-01", 1.0)
    assert [poll.vm for poll in observations.take_batch(10.0)[0]] == ["seldom"]
    clock[0] = 20.0
    observations.record_poll(view(vm="often"), "2020-07-01", 20.0)
    assert [poll.vm for poll in observations.take_batch(10.0)[0]] == ["often"]
    observations.record_poll(view(vm="often"), "2020-07-01", 21.0)
    observations.record_poll(view(vm="seldom"), "2020-07-01", 21.0)
    assert [poll.vm for poll in observations.take_batch(10.0)[0]] == ["seldom"]
    clock[0] = 30.0
    assert [poll.vm for poll in observations.take_batch(10.0)[0]] == ["often"]
    assert observations.take_batch() == ([], [])


def test_the_pace_of_a_vm_includes_cached_polls(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await client.ask()
        own = world.server.observations.pace("a")
        assert own is not None
        assert own.silent_s < 60
        assert [pace.silent_s < 60 for _, pace in world.server.observations.paces()] == [True]
        [poll], _ = world.server.observations.take_batch()
        assert poll.count == 3

    run_scenario(scenario)
