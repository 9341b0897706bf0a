"""Substitute answers through the proxy: who gets them, how often, and what is recorded."""

from __future__ import annotations

import json

import pytest

from forewarn.crash_test import answers
from forewarn.crash_test.answers import SpoiledAnswer
from forewarn.crash_test.timeline import Approved, ConnectionOpened
from tests.support.proxied_lab import ProxiedLab, RunScenario, approval, converse, request

INSTANCE = request("/metadata/instance?api-version=2021-02-01")


def test_a_withheld_approval_has_no_effect(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        world.proxy.substitute(answers.approval_refused(503), times=1)
        assert (await world.ask()).status == 200
        assert (await world.ask(approval(event.id))).status == 503
        assert await world.in_lab(lambda: event.approved_by) == ""
        assert (await world.ask(approval(event.id))).status == 200
        assert await world.in_lab(lambda: event.approved_by) == "a"
        seen = await world.until_seen(Approved, 2)
        assert [(each.status, each.substitute) for each in seen] == [(503, "approval refused with 503"), (200, "")]

    run_proxied(scenario)


def test_a_status_can_hide_that_the_service_has_acted(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        world.proxy.substitute(answers.status(500, withholds_request=False))
        assert (await world.ask(approval(event.id))).status == 500
        assert await world.in_lab(lambda: event.approved_by) == "a"

    run_proxied(scenario)


def test_a_held_long_poll_gets_the_substitute_of_the_moment_of_its_answer(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.hold_poll()
        world.proxy.substitute(answers.empty_body())
        await world.reboot()
        answer = await client.ask(b"")
        assert (answer.status, answer.body) == (200, b"")

    run_proxied(scenario)


def test_a_substitute_is_given_as_often_as_it_was_set(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.status(503), times=2)
        client = await world.connect()
        assert [(await client.ask(request())).status for _ in range(4)] == [503, 503, 200, 200]
        assert world.proxy.substitute_times_left == 0
        world.proxy.substitute(answers.gone())
        assert [(await client.ask(request())).status for _ in range(2)] == [410, 410]
        world.proxy.substitute(None)
        assert (await client.ask(request())).status == 200
        assert len(world.seen(ConnectionOpened)) == 1

    run_proxied(scenario)


def test_an_edit_that_changes_nothing_gives_the_services_own_bytes_and_does_not_count(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.upper_case_names(), times=1)
        assert await converse(world.address, INSTANCE) == await converse(world.upstream, INSTANCE)
        assert await converse(world.address, request()) == await converse(world.upstream, request())
        assert world.proxy.substitute_times_left == 1

    run_proxied(scenario)


def test_an_edited_document_is_recorded_as_the_handler_got_it(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        world.proxy.substitute(answers.upper_case_names(), times=1)
        names = [json.loads((await world.ask()).body)["Events"][0]["Resources"] for _ in range(2)]
        assert names == [["A"], ["a"]]
        seen = await world.polls(2)
        assert [poll.substitute for poll in seen] == ["VM names in upper case", ""]
        assert [(shown.id, shown.vms) for shown in seen[0].events] == [(event.id, ("A",))]

    run_proxied(scenario)


def test_a_refused_version_is_refused_and_others_are_served(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.version_refused(("2019-08-01",)))
        refused = await world.ask()
        assert refused.status == 400
        assert json.loads(refused.body)["newest-versions"] == ["2019-08-01"]
        assert (await world.ask(request("/metadata/scheduledevents?api-version=2019-08-01"))).status == 200

    run_proxied(scenario)


def test_a_reset_connection_has_no_answer(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.resets_connections(), times=1)
        client = await world.connect()
        client.writer.write(request())
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        (poll,) = await world.polls()
        assert (poll.status, poll.answered_at, poll.substitute) == (None, None, "connection reset")
        assert (await world.ask()).status == 200

    run_proxied(scenario)


def test_a_request_that_is_never_answered_is_recorded_at_once(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.never_answers(), times=1)
        client = await world.connect()
        client.writer.write(request())
        (poll,) = await world.polls()
        assert (poll.status, poll.answered_at, poll.substitute) == (None, None, "no answer")
        assert (await world.ask()).status == 200
        assert world.proxy.open_connections >= 1
        await client.close()
        await world.until(lambda: world.proxy.open_connections == 0)
        assert len(await world.polls(2)) == 2

    run_proxied(scenario)


def test_connections_are_refused_by_the_system_and_accepted_again_afterwards(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        client = await world.connect()
        assert (await client.ask(request())).status == 200
        for _ in range(2):
            world.proxy.substitute(answers.refuses_connections())
            assert await client.is_closed()
            with pytest.raises(ConnectionRefusedError):
                await world.connect()
            world.proxy.substitute(None)
            client = await world.connect()
            assert (await client.ask(request())).status == 200
        assert len(world.seen(ConnectionOpened)) == 3

    run_proxied(scenario)


def test_a_late_answer_is_given_after_its_delay(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.late_answer(0.2), times=1)
        assert (await world.ask()).status == 200
        (poll,) = await world.polls()
        assert poll.answered_at is not None
        assert poll.answered_at - poll.at >= 0.19
        assert poll.substitute == "an answer after 0.2 s"

    run_proxied(scenario)


def test_a_client_that_does_not_wait_for_a_late_answer_did_not_get_it(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        world.proxy.substitute(answers.late_answer(60), times=1)
        client = await world.connect()
        client.writer.write(request())
        await world.until(lambda: world.proxy.substitute_times_left == 0)
        await client.close()
        (poll,) = await world.polls()
        assert (poll.status, poll.answered_at) == (None, None)
        await world.until(lambda: world.proxy.open_connections == 0)

    run_proxied(scenario)


def test_a_client_that_has_ended_its_sending_side_gets_late_and_slow_answers(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        own = await converse(world.upstream, request())
        for substitute in (answers.late_answer(0.05), answers.slow_body(0.1)):
            world.proxy.substitute(substitute, times=1)
            answer = await converse(world.address, request())
            assert answer.partition(b"\r\n\r\n")[2] == own.partition(b"\r\n\r\n")[2]
        assert all(poll.answered_at is not None for poll in await world.polls(2))

    run_proxied(scenario)


@pytest.mark.parametrize("substitute", [answers.slow_body(0.1), answers.chunked_transfer()], ids=lambda each: each.name)
def test_a_body_in_pieces_is_the_same_document(substitute: SpoiledAnswer, run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        await world.reboot()
        own = await world.ask()
        world.proxy.substitute(substitute)
        client = await world.connect()
        assert [(await client.ask(request())).body for _ in range(2)] == [own.body] * 2
        assert len((await world.polls(3))[2].events) == 1

    run_proxied(scenario)


def test_a_truncated_body_ends_with_the_connection_and_delivers_no_event(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        await world.reboot()
        world.proxy.substitute(answers.truncated_body())
        client = await world.connect()
        client.writer.write(request())
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        assert int(length.split()[1]) > len(body) > 0
        (poll,) = await world.polls()
        assert (poll.status, poll.incarnation, poll.events) == (200, None, ())

    run_proxied(scenario)


def test_a_huge_document_arrives_whole(run_proxied: RunScenario) -> None:
    async def scenario(world: ProxiedLab) -> None:
        event = await world.reboot()
        world.proxy.substitute(answers.huge_document())
        answer = await world.ask()
        assert len(answer.body) > 1024 * 1024
        assert json.loads(answer.body)["Events"][-1]["EventId"] == event.id
        (poll,) = await world.polls()
        assert len(poll.events) == 21
        assert poll.events[-1].id == event.id

    run_proxied(scenario)
