"""Sessions: the state of a domain at every moment of a switchover, and sessions that open too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import pytest

from forewarn.machines.driver import HostUnreachable, MachineState
from forewarn.machines.libvirt.connection import LibvirtConnection, LibvirtHost
from forewarn.machines.libvirt.domain_state import machine_state
from forewarn.machines.libvirt.session import OPERATION_TIMEOUT, LibvirtFailure, LibvirtSession
from tests.support.fake_libvirt import DOMAIN, FakeConnection, FakeDomain, FakeLibvirt, Moment

RUNNING, PAUSED, OFF = 1, 3, 5
SENDING = Moment(state=RUNNING, job=2)
SWITCHING = Moment(state=PAUSED, reason=2, job=2)
CONFIRMING = Moment(
    state=PAUSED, reason=2, job=3
)  # the memory has arrived; the destination has not said whether it runs
FAILING = [SENDING, SWITCHING, CONFIRMING, Moment(state=RUNNING, reason=5, job=3), Moment(state=RUNNING, reason=5)]
COMPLETING = [SENDING, SWITCHING, CONFIRMING, Moment(state=OFF, reason=4)]
ARRIVING = [
    Moment(state=PAUSED, reason=2, is_incoming=True, live_move="received"),
    Moment(state=PAUSED, reason=1, live_move="received"),
]
_CALLS = 8  # more than one look at a domain takes


def every_plan(moments: Sequence[Moment]) -> Iterator[list[int]]:
    """Yield, for each way in which the moments can pass during the calls, how many pass before each call."""
    for changes in combinations_with_replacement(range(_CALLS), len(moments) - 1):
        yield [changes.count(call) for call in range(_CALLS)]


def look(moments: Sequence[Moment], plan: Sequence[int]) -> tuple[MachineState, Moment]:
    """Return the state that a session reports, and what the domain really was at the end of that look."""
    domain = FakeDomain(moments, plan)
    status = LibvirtSession(FakeLibvirt(), FakeConnection(domain)).status(DOMAIN)
    assert status is not None
    return machine_state(status), domain.moment


def test_a_guest_that_goes_on_after_a_failed_switchover_is_never_taken_for_sent() -> None:
    for plan in every_plan(FAILING):
        assert look(FAILING, plan)[0] is MachineState.RUNNING, plan


def test_a_guest_is_sent_only_once_its_source_has_confirmed_it() -> None:
    for plan in every_plan(COMPLETING):
        state, moment = look(COMPLETING, plan)
        if moment == COMPLETING[-1]:
            assert state in (MachineState.RUNNING, MachineState.SENT), plan
        else:
            assert state is MachineState.RUNNING, plan


def test_an_arriving_guest_is_never_taken_for_sent() -> None:
    for plan in every_plan(ARRIVING):
        assert look(ARRIVING, plan)[0] in (MachineState.RECEIVING, MachineState.RECEIVED), plan


def test_a_domain_that_changes_at_every_look_has_no_known_state() -> None:
    with pytest.raises(LibvirtFailure, match="changes all the time") as raised:
        look([Moment(state=RUNNING, reason=number) for number in range(400)], [1] * 400)
    assert raised.value.code == OPERATION_TIMEOUT


@pytest.mark.parametrize("is_closed_meanwhile", [False, True])
def test_a_session_that_opens_after_its_timeout_is_kept_or_closed(is_closed_meanwhile: bool) -> None:
    answers, opened = threading.Event(), list[FakeConnection]()

    def connect(uri: str) -> LibvirtSession:
        answers.wait(60)
        opened.append(FakeConnection(FakeDomain([Moment(state=RUNNING)], [])))
        return LibvirtSession(FakeLibvirt(), opened[-1])

    async def scenario() -> None:
        connection = LibvirtConnection("host", LibvirtHost(uri="test:///default", timeout_s=0.01), connect=connect)
        with pytest.raises(HostUnreachable):
            await connection.session()
        if is_closed_meanwhile:
            await connection.close()
        answers.set()
        async with asyncio.timeout(60):
            while not opened or len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)
            if not is_closed_meanwhile:
                await connection.session()
                assert [each.is_closed for each in opened] == [False]
                await connection.close()
            while not opened[0].is_closed:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
