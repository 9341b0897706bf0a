"""Transport faults as a client sees them, byte by byte over real sockets (spec §11, §12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind

APPROVAL = b'{"StartRequests":[{"EventId":"EVENT-1"}]}'
TRANSPORT = [kind for kind, row in FAULT_DEFINITIONS.items() if row.category is FaultCategory.TRANSPORT]
UNKNOWN = "/metadata/scheduledevents?api-version=1999-01-01"


def test_a_late_first_answer_comes_after_its_delay(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.LATE_FIRST_ANSWER, parameters={"delay_s": 0.05}))
        assert (await world.ask()).json == {"DocumentIncarnation": 1, "Events": []}
        assert world.server.faults.take_hits()[0].count == 1

    run_scenario(scenario)


def test_a_late_first_answer_is_held_while_neighbours_are_answered(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.LATE_FIRST_ANSWER))
        late = await world.connect("a")
        late.send()
        await world.wait_until(lambda: world.server.counters.held == 1)
        assert (await world.ask(vm="b")).status == 200
        assert world.server.counters.held == 1

        await world.server.drain(5.0)
        assert (await late.read_reply()).status == 200  # held requests are answered when the service stops

    run_scenario(scenario)


def test_requests_after_a_late_first_one_are_answered_at_the_same_time(run_scenario: Any, fault: Any) -> None:
    """A client that tries again does not get an earlier answer; after the delay all answers come at once."""

    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.LATE_FIRST_ANSWER, parameters={"delay_s": 0.2}))
        first, second = await world.connect(), await world.connect()
        first.send()
        second.send()
        assert {(await first.read_reply()).status, (await second.read_reply()).status} == {200}
        assert (await world.ask()).status == 200
        assert [hit.count for hit in world.server.faults.take_hits()] == [2]

    run_scenario(scenario)


def test_an_empty_body_is_200_with_a_length_of_zero(run_scenario: Any, fault: Any, notice: Any) -> None:
    async def scenario(world: Any) -> None:
        world.backend.show("pair", notice())
        world.set_faults(fault(FaultKind.EMPTY_BODY))
        reply = await world.ask()
        assert (reply.status, reply.headers["content-length"], reply.body) == (200, "0", b"")
        assert "etag" not in reply.headers
        assert world.server.observations.take_batch()[1] == []  # no delivery was recorded

    run_scenario(scenario)


def test_the_fault_gone_is_410(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.GONE))
        reply = await world.ask()
        assert (reply.status, reply.body) == (410, b'{ "error": "Gone" }')

    run_scenario(scenario)


@pytest.mark.parametrize(("given_s", "header"), [(0, None), (3, "3"), (0.5, "1")])
def test_the_fault_throttled_is_429_as_text_with_or_without_retry_after(
    run_scenario: Any, fault: Any, given_s: float, header: str | None
) -> None:
    """Spec §10: the vendor's text."""

    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.THROTTLED, parameters={"retry_after_s": given_s}))
        reply = await world.ask()
        assert (reply.status, reply.body) == (429, b"Throttle Result: Too Many Requests")
        assert reply.headers.get("retry-after") == header

    run_scenario(scenario)


def test_the_fault_internal_error_is_500_and_keeps_the_connection(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.INTERNAL_ERROR, count=1))
        guest = await world.connect()
        assert (await guest.ask()).status == 500
        assert (await guest.ask()).status == 200

    run_scenario(scenario)


def test_a_reset_ends_the_connection_with_no_byte(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.RESET))
        guest = await world.connect()
        guest.send()
        with pytest.raises(ConnectionResetError):
            await guest.reader.readexactly(1)

    run_scenario(scenario)


def test_a_slow_body_comes_in_pieces_after_its_head(run_scenario: Any, fault: Any, notice: Any) -> None:
    async def scenario(world: Any) -> None:
        plain = (await world.ask()).raw
        world.set_faults(fault(FaultKind.SLOW_BODY, parameters={"take_s": 0.2}))
        guest = await world.connect()
        guest.send()
        guest.send()  # the second request waits for the first
        replies = [await guest.read_reply(), await guest.read_reply()]
        assert [reply.raw for reply in replies] == [plain, plain]

    run_scenario(scenario)


def test_a_slow_body_is_completed_early_when_the_service_stops(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.SLOW_BODY, parameters={"take_s": 120}))
        guest = await world.connect()
        guest.send()
        _, status, headers = await guest.read_head()
        assert (status, headers["content-length"]) == (200, "37")
        assert (await world.ask(vm="b")).status == 200  # meanwhile

        await world.server.drain(5.0)
        assert await guest.reader.read() == b'{"DocumentIncarnation":1,"Events":[]}'

    run_scenario(scenario)


def test_a_client_that_disconnects_from_a_slow_body_leaves_nothing_behind(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.SLOW_BODY, parameters={"take_s": 120}))
        guest = await world.connect()
        guest.send()
        await guest.read_head()
        guest.writer.transport.abort()
        world.server.faults.set_faults(())
        assert (await world.ask()).status == 200

    run_scenario(scenario)


def test_a_stale_document_is_the_previous_one(run_scenario: Any, fault: Any, notice: Any) -> None:
    async def scenario(world: Any) -> None:
        before = await world.ask()
        world.set_faults(fault(FaultKind.STALE))
        assert (await world.ask()).raw == before.raw
        assert world.server.faults.take_hits() == []  # the document has not changed yet, so it is not stale

        world.backend.show("pair", notice())
        assert (await world.ask()).raw == before.raw
        assert (await world.ask(vm="b")).json["DocumentIncarnation"] == 2
        assert [hit.count for hit in world.server.faults.take_hits()] == [1]

        world.set_faults()
        assert (await world.ask()).json["DocumentIncarnation"] == 2

    run_scenario(scenario)


def test_a_stale_document_is_no_older_than_its_age(run_scenario: Any, fault: Any, notice: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.STALE, parameters={"age_s": 0.05}))
        world.backend.show("pair", notice())
        guest = await world.connect()
        while (await guest.ask()).json["DocumentIncarnation"] == 1:
            pass
        world.backend.show("pair", notice(), notice("EVENT-2"))
        assert (await guest.ask()).json["DocumentIncarnation"] in (2, 3)

    run_scenario(scenario)


def test_a_poll_is_not_held_while_its_document_is_stale(run_scenario: Any, fault: Any, notice: Any) -> None:
    """Spec §4.4: a held poll would get the new document; this one gets 304 at once."""

    async def scenario(world: Any) -> None:
        tag = (await world.ask()).headers["etag"]
        world.set_faults(fault(FaultKind.STALE))
        world.backend.show("pair", notice())
        reply = await world.ask(If_None_Match=tag, Prefer="wait=300")
        assert reply.status == 304
        assert "preference-applied" not in reply.headers

    run_scenario(scenario)


def test_an_unknown_version_is_404_instead_of_400(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        assert (await world.ask(UNKNOWN)).status == 400
        world.set_faults(fault(FaultKind.UNKNOWN_VERSION_404))
        reply = await world.ask(UNKNOWN)
        assert (reply.status, reply.body) == (404, b'{ "error": "Not found. Invalid version requested" }')
        assert (await world.ask()).status == 200
        assert (await world.ask(UNKNOWN, vm="b")).status == 400
        assert [hit.count for hit in world.server.faults.take_hits()] == [1]

    run_scenario(scenario)


REFUSING = [FaultKind.GONE, FaultKind.THROTTLED, FaultKind.INTERNAL_ERROR]


@pytest.mark.parametrize("kind", REFUSING)
def test_a_request_that_a_fault_refuses_approves_nothing(run_scenario: Any, fault: Any, notice: Any, kind: Any) -> None:
    async def scenario(world: Any) -> None:
        world.backend.show("pair", notice())
        world.set_faults(fault(kind, count=1))
        assert (await world.ask(method="POST", body=APPROVAL)).status >= 400
        assert world.backend.approved == []
        assert (await world.ask(method="POST", body=APPROVAL)).status == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]

    run_scenario(scenario)


@pytest.mark.parametrize("kind", [FaultKind.EMPTY_BODY, FaultKind.SLOW_BODY, FaultKind.STALE])
def test_faults_of_the_document_do_not_affect_approvals(run_scenario: Any, fault: Any, notice: Any, kind: Any) -> None:
    async def scenario(world: Any) -> None:
        world.backend.show("pair", notice())
        world.set_faults(fault(kind))
        assert (await world.ask(method="POST", body=APPROVAL)).status == 200
        assert world.backend.approved == [("a", ("EVENT-1",))]
        assert world.server.faults.take_hits() == []

    run_scenario(scenario)


@pytest.mark.parametrize("kind", TRANSPORT)
def test_faults_do_not_affect_bad_requests_and_instance_metadata(
    run_scenario: Any, fault: Any, kind: FaultKind
) -> None:
    targets = ["/metadata/instance?api-version=2021-02-01", "/metadata/nothing", "/metadata/scheduledevents"]

    async def scenario(world: Any) -> None:
        before = [(await world.ask(target)).raw for target in targets]
        world.set_faults(fault(kind))
        assert [(await world.ask(target)).raw for target in targets] == before
        assert world.server.faults.take_hits() == []

    run_scenario(scenario)


def test_the_first_request_enables_the_scope_even_if_a_fault_replaces_its_answer(run_scenario: Any, fault: Any) -> None:
    """Spec §8.1."""

    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.EMPTY_BODY))
        assert (await world.ask()).body == b""
        assert world.backend.enabled_by == ["a"]

    run_scenario(scenario, enabled=False)


@pytest.mark.parametrize("kind", [FaultKind.GONE, FaultKind.EMPTY_BODY])
def test_a_fault_with_a_count_affects_that_number_of_requests(run_scenario: Any, fault: Any, kind: FaultKind) -> None:
    async def scenario(world: Any) -> None:
        plain = (await world.ask()).raw
        world.set_faults(fault(kind, count=3))
        guest = await world.connect()
        replies = [(await guest.ask()).raw for _ in range(6)]
        assert [raw == plain for raw in replies] == [False] * 3 + [True] * 3

    run_scenario(scenario)


def test_a_count_continues_when_other_faults_are_set(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        one = fault(FaultKind.GONE, count=2)
        world.set_faults(one)
        assert (await world.ask()).status == 410
        world.set_faults(one, fault(FaultKind.RESET, id="f2", vm="b"))
        assert [(await world.ask()).status for _ in range(2)] == [410, 200]

    run_scenario(scenario)


def test_requests_affected_before_a_restart_count(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.GONE, count=5, applied=4))
        assert [(await world.ask()).status for _ in range(2)] == [410, 200]

    run_scenario(scenario)


def test_the_duration_of_a_transport_fault_is_real_time(run_scenario: Any, fault: Any) -> None:
    """Spec §12: the lab clock stands still here."""

    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.GONE, until=time.time() + 3600))
        assert (await world.ask()).status == 410
        world.set_faults(fault(FaultKind.GONE, until=time.time() - 1))
        assert (await world.ask()).status == 200

    run_scenario(scenario)


TARGETS: list[tuple[dict[str, str], set[str]]] = [
    ({"vm": "a"}, {"a"}),
    ({"vm": "", "scope_id": "pair"}, {"a", "b"}),
    ({"vm": "", "scope_id": ""}, {"a", "b", "other"}),
]


@pytest.mark.parametrize(("target", "affected"), TARGETS, ids=["a VM", "a scope", "everything"])
def test_a_fault_affects_only_its_target(run_scenario: Any, fault: Any, target: Any, affected: set[str]) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.GONE, **target))
        statuses = {vm: (await world.ask(vm=vm)).status for vm in ("a", "b", "other")}
        assert {vm for vm, status in statuses.items() if status == 410} == affected
        assert {hit.vm for hit in world.server.faults.take_hits()} == affected

    run_scenario(scenario)


def test_faults_that_refuse_come_first_and_then_the_oldest(run_scenario: Any, fault: Any) -> None:
    async def scenario(world: Any) -> None:
        kinds = (FaultKind.EMPTY_BODY, FaultKind.INTERNAL_ERROR, FaultKind.GONE)
        world.set_faults(*(fault(kind, id=f"f{number}", count=1) for number, kind in enumerate(kinds)))
        replies = [await world.ask() for _ in range(4)]
        assert [(reply.status, bool(reply.body)) for reply in replies] == [
            (500, True),
            (410, True),
            (200, False),
            (200, True),
        ]

    run_scenario(scenario)


@pytest.mark.parametrize("kind", TRANSPORT)
def test_a_cleared_fault_has_no_effect(run_scenario: Any, fault: Any, notice: Any, kind: FaultKind) -> None:
    async def scenario(world: Any) -> None:
        world.backend.show("pair", notice())
        before = [(await world.ask()).raw, (await world.ask(UNKNOWN)).raw]
        world.set_faults(fault(kind, parameters={"delay_s": 0.01} if kind is FaultKind.LATE_FIRST_ANSWER else {}))
        if kind not in (FaultKind.RESET, FaultKind.SLOW_BODY):
            await world.ask()
        world.set_faults()
        assert [(await world.ask()).raw, (await world.ask(UNKNOWN)).raw] == before

    run_scenario(scenario)


def test_counts_that_could_not_be_stored_are_kept(run_scenario: Callable[..., None], fault: Any) -> None:
    async def scenario(world: Any) -> None:
        world.set_faults(fault(FaultKind.GONE))
        await world.ask()
        hits = world.server.faults.take_hits()
        await world.ask()
        world.server.faults.add_hits(hits)
        assert [hit.count for hit in world.server.faults.take_hits()] == [2]

    run_scenario(scenario)
