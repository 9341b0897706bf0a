"""Faults of transport as a client sees them, byte by byte over real sockets (spec §11, §12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind

APPROVAL = b'{"StartRequests":[{"EventId":"EVENT-1"}]}'
TRANSPORT = [kind for kind, row in FAULT_DEFINITIONS.items() if row.category is FaultCategory.TRANSPORT]
UNKNOWN = "/metadata/scheduledevents?api-version=1999-01-01"


def test_a_late_first_answer_comes_when_its_delay_is_over(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.LATE_FIRST_ANSWER, parameters={"delay_s": 0.05}))
        assert (await world.ask()).json == {"DocumentIncarnation": 1, "Events": []}
        assert world.server.faults.take_hits()[0].count == 1

    play(story)


def test_a_late_first_answer_is_held_while_neighbours_are_answered(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.LATE_FIRST_ANSWER))
        late = await world.connect("a")
        late.send()
        await world.until(lambda: world.server.counters.held == 1)
        assert (await world.ask(vm="b")).status == 200
        assert world.server.counters.held == 1

        await world.server.drain(5.0)
        assert (await late.reply()).status == 200  # whoever is held is answered when the service stops

    play(story)


def test_the_requests_after_a_late_first_one_wait_for_the_same_moment(play: Any, fault: Any) -> None:
    """A client that gave up and asks again is no better off; once the delay is over, all answers come at once."""

    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.LATE_FIRST_ANSWER, parameters={"delay_s": 0.2}))
        first, second = await world.connect(), await world.connect()
        first.send()
        second.send()
        assert {(await first.reply()).status, (await second.reply()).status} == {200}
        assert (await world.ask()).status == 200
        assert [touch.count for touch in world.server.faults.take_hits()] == [2]

    play(story)


def test_an_empty_body_is_200_with_a_length_of_zero(play: Any, fault: Any, notice: Any) -> None:
    async def story(world: Any) -> None:
        world.backend.show("pair", notice())
        world.arm(fault(FaultKind.EMPTY_BODY))
        reply = await world.ask()
        assert (reply.status, reply.headers["content-length"], reply.body) == (200, "0", b"")
        assert "etag" not in reply.headers
        assert world.server.observations.take_batch()[1] == []  # nobody was given the event

    play(story)


def test_gone_is_410(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.GONE))
        reply = await world.ask()
        assert (reply.status, reply.body) == (410, b'{ "error": "Gone" }')

    play(story)


@pytest.mark.parametrize(("given_s", "header"), [(0, None), (3, "3"), (0.5, "1")])
def test_throttled_is_429_as_text_with_or_without_retry_after(
    play: Any, fault: Any, given_s: float, header: str | None
) -> None:
    """Spec §10: the vendor's text."""

    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.THROTTLED, parameters={"retry_after_s": given_s}))
        reply = await world.ask()
        assert (reply.status, reply.body) == (429, b"Throttle Result: Too Many Requests")
        assert reply.headers.get("retry-after") == header

    play(story)


def test_an_internal_error_is_500_and_the_connection_stays(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.INTERNAL_ERROR, count=1))
        guest = await world.connect()
        assert (await guest.ask()).status == 500
        assert (await guest.ask()).status == 200

    play(story)


def test_a_reset_ends_the_connection_with_no_byte(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.RESET))
        guest = await world.connect()
        guest.send()
        with pytest.raises(ConnectionResetError):
            await guest.reader.readexactly(1)

    play(story)


def test_a_slow_body_comes_in_pieces_after_its_head(play: Any, fault: Any, notice: Any) -> None:
    async def story(world: Any) -> None:
        plain = (await world.ask()).raw
        world.arm(fault(FaultKind.SLOW_BODY, parameters={"take_s": 0.2}))
        guest = await world.connect()
        guest.send()
        guest.send()  # the next request waits its turn
        replies = [await guest.reply(), await guest.reply()]
        assert [reply.raw for reply in replies] == [plain, plain]

    play(story)


def test_a_slow_body_is_not_whole_before_its_time(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.SLOW_BODY, parameters={"take_s": 120}))
        guest = await world.connect()
        guest.send()
        _, status, headers = await guest.head()
        assert (status, headers["content-length"]) == (200, "37")
        assert (await world.ask(vm="b")).status == 200  # meanwhile

        await world.server.drain(5.0)
        assert await guest.reader.read() == b'{"DocumentIncarnation":1,"Events":[]}'

    play(story)


def test_who_hangs_up_on_a_slow_body_is_forgotten(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.SLOW_BODY, parameters={"take_s": 120}))
        guest = await world.connect()
        guest.send()
        await guest.head()
        guest.writer.transport.abort()
        world.server.faults.set_faults(())
        assert (await world.ask()).status == 200

    play(story)


def test_a_stale_document_is_the_one_from_before(play: Any, fault: Any, notice: Any) -> None:
    async def story(world: Any) -> None:
        before = await world.ask()
        world.arm(fault(FaultKind.STALE))
        assert (await world.ask()).raw == before.raw
        assert world.server.faults.take_hits() == []  # nothing is older than it should be yet

        world.backend.show("pair", notice())
        assert (await world.ask()).raw == before.raw
        assert (await world.ask(vm="b")).json["DocumentIncarnation"] == 2
        assert [touch.count for touch in world.server.faults.take_hits()] == [1]

        world.arm()
        assert (await world.ask()).json["DocumentIncarnation"] == 2

    play(story)


def test_a_stale_document_is_no_older_than_its_age(play: Any, fault: Any, notice: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.STALE, parameters={"age_s": 0.05}))
        world.backend.show("pair", notice())
        guest = await world.connect()
        while (await guest.ask()).json["DocumentIncarnation"] == 1:
            pass
        world.backend.show("pair", notice(), notice("EVENT-2"))
        assert (await guest.ask()).json["DocumentIncarnation"] in (2, 3)

    play(story)


def test_a_stale_document_is_not_waited_past(play: Any, fault: Any, notice: Any) -> None:
    """Spec §4.4: a held request would be told the news; this one is told at once that there is none."""

    async def story(world: Any) -> None:
        tag = (await world.ask()).headers["etag"]
        world.arm(fault(FaultKind.STALE))
        world.backend.show("pair", notice())
        reply = await world.ask(If_None_Match=tag, Prefer="wait=300")
        assert reply.status == 304
        assert "preference-applied" not in reply.headers

    play(story)


def test_an_unknown_version_is_404_instead_of_400(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        assert (await world.ask(UNKNOWN)).status == 400
        world.arm(fault(FaultKind.UNKNOWN_VERSION_404))
        reply = await world.ask(UNKNOWN)
        assert (reply.status, reply.body) == (404, b'{ "error": "Not found. Invalid version requested" }')
        assert (await world.ask()).status == 200
        assert (await world.ask(UNKNOWN, vm="b")).status == 400
        assert [touch.count for touch in world.server.faults.take_hits()] == [1]

    play(story)


REFUSING = [FaultKind.GONE, FaultKind.THROTTLED, FaultKind.INTERNAL_ERROR]


@pytest.mark.parametrize("kind", REFUSING)
def test_nothing_is_approved_by_a_request_that_a_fault_refuses(play: Any, fault: Any, notice: Any, kind: Any) -> None:
    async def story(world: Any) -> None:
        world.backend.show("pair", notice())
        world.arm(fault(kind, count=1))
        assert (await world.ask(method="POST", body=APPROVAL)).status >= 400
        assert world.backend.approved == []
        assert (await world.ask(method="POST", body=APPROVAL)).status == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]

    play(story)


@pytest.mark.parametrize("kind", [FaultKind.EMPTY_BODY, FaultKind.SLOW_BODY, FaultKind.STALE])
def test_approvals_are_left_alone_by_faults_of_the_document(play: Any, fault: Any, notice: Any, kind: Any) -> None:
    async def story(world: Any) -> None:
        world.backend.show("pair", notice())
        world.arm(fault(kind))
        assert (await world.ask(method="POST", body=APPROVAL)).status == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]
        assert world.server.faults.take_hits() == []

    play(story)


@pytest.mark.parametrize("kind", TRANSPORT)
def test_bad_requests_and_the_instance_are_answered_as_ever(play: Any, fault: Any, kind: FaultKind) -> None:
    targets = ["/metadata/instance?api-version=2021-02-01", "/metadata/nothing", "/metadata/scheduledevents"]

    async def story(world: Any) -> None:
        before = [(await world.ask(target)).raw for target in targets]
        world.arm(fault(kind))
        assert [(await world.ask(target)).raw for target in targets] == before
        assert world.server.faults.take_hits() == []

    play(story)


def test_the_first_request_enables_the_scope_though_its_answer_is_spoiled(play: Any, fault: Any) -> None:
    """Spec §8.1."""

    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.EMPTY_BODY))
        assert (await world.ask()).body == b""
        assert world.backend.enabled_by == ["a"]

    play(story, enabled=False)


@pytest.mark.parametrize("kind", [FaultKind.GONE, FaultKind.EMPTY_BODY])
def test_a_count_touches_so_many_requests_and_no_more(play: Any, fault: Any, kind: FaultKind) -> None:
    async def story(world: Any) -> None:
        plain = (await world.ask()).raw
        world.arm(fault(kind, count=3))
        guest = await world.connect()
        replies = [(await guest.ask()).raw for _ in range(6)]
        assert [raw == plain for raw in replies] == [False] * 3 + [True] * 3

    play(story)


def test_a_count_goes_on_when_other_faults_are_set(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        one = fault(FaultKind.GONE, count=2)
        world.arm(one)
        assert (await world.ask()).status == 410
        world.arm(one, fault(FaultKind.RESET, id="f2", vm="b"))
        assert [(await world.ask()).status for _ in range(2)] == [410, 200]

    play(story)


def test_what_was_touched_before_a_restart_counts(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.GONE, count=5, touched=4))
        assert [(await world.ask()).status for _ in range(2)] == [410, 200]

    play(story)


def test_a_duration_is_real_time(play: Any, fault: Any) -> None:
    """Spec §12: the lab's clock stands still here."""

    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.GONE, until=time.time() + 3600))
        assert (await world.ask()).status == 410
        world.arm(fault(FaultKind.GONE, until=time.time() - 1))
        assert (await world.ask()).status == 200

    play(story)


WHOM: list[tuple[dict[str, str], set[str]]] = [
    ({"vm": "a"}, {"a"}),
    ({"vm": "", "scope_id": "pair"}, {"a", "b"}),
    ({"vm": "", "scope_id": ""}, {"a", "b", "other"}),
]


@pytest.mark.parametrize(("target", "touched"), WHOM, ids=["a VM", "a scope", "everything"])
def test_only_those_it_is_for_are_touched(play: Any, fault: Any, target: Any, touched: set[str]) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.GONE, **target))
        statuses = {vm: (await world.ask(vm=vm)).status for vm in ("a", "b", "other")}
        assert {vm for vm, status in statuses.items() if status == 410} == touched
        assert {touch.vm for touch in world.server.faults.take_hits()} == touched

    play(story)


def test_a_refusal_goes_before_what_spoils_and_of_two_the_first_set(play: Any, fault: Any) -> None:
    async def story(world: Any) -> None:
        kinds = (FaultKind.EMPTY_BODY, FaultKind.INTERNAL_ERROR, FaultKind.GONE)
        world.arm(*(fault(kind, id=f"f{number}", count=1) for number, kind in enumerate(kinds)))
        replies = [await world.ask() for _ in range(4)]
        assert [(reply.status, bool(reply.body)) for reply in replies] == [
            (500, True),
            (410, True),
            (200, False),
            (200, True),
        ]

    play(story)


@pytest.mark.parametrize("kind", TRANSPORT)
def test_a_cleared_fault_leaves_no_trace(play: Any, fault: Any, notice: Any, kind: FaultKind) -> None:
    async def story(world: Any) -> None:
        world.backend.show("pair", notice())
        before = [(await world.ask()).raw, (await world.ask(UNKNOWN)).raw]
        world.arm(fault(kind, parameters={"delay_s": 0.01} if kind is FaultKind.LATE_FIRST_ANSWER else {}))
        if kind not in (FaultKind.RESET, FaultKind.SLOW_BODY):
            await world.ask()
        world.arm()
        assert [(await world.ask()).raw, (await world.ask(UNKNOWN)).raw] == before

    play(story)


def test_counts_that_could_not_be_written_are_kept(play: Callable[..., None], fault: Any) -> None:
    async def story(world: Any) -> None:
        world.arm(fault(FaultKind.GONE))
        await world.ask()
        touches = world.server.faults.take_hits()
        await world.ask()
        world.server.faults.add_hits(touches)
        assert [touch.count for touch in world.server.faults.take_hits()] == [2]

    play(story)
