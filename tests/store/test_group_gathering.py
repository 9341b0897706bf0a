"""How long a group of writes to a record waits for the callers of the group before it."""

from __future__ import annotations

import pytest

from forewarn.store.writer_thread import GroupGathering


def commit(gathering: GroupGathering, size: int, *, at: float = 0.0, took_s: float = 0.1) -> None:
    gathering.answered(size, at - took_s, at)


def test_the_first_group_does_not_wait() -> None:
    assert GroupGathering().wait_s(64, 0.0) == 0


def test_a_group_waits_until_the_answered_callers_are_back() -> None:
    gathering = GroupGathering()
    commit(gathering, 32)
    assert gathering.wait_s(32, 0.0) == pytest.approx(0.1)  # 32 were queued meanwhile, and 32 may come back
    assert gathering.wait_s(50, 0.04) == pytest.approx(0.06)
    assert gathering.wait_s(56, 0.05) == 0  # most of them


def test_a_group_waits_no_longer_than_the_last_one_took() -> None:
    gathering = GroupGathering()
    commit(gathering, 64, took_s=0.02)
    assert gathering.wait_s(1, 0.0) == pytest.approx(0.02)
    assert gathering.wait_s(2, 0.02) == 0
    assert gathering.wait_s(3, 9.0) == 0


def test_a_group_waits_for_a_tenth_of_a_second_at_most() -> None:
    gathering = GroupGathering()
    commit(gathering, 64, took_s=10.0)
    assert gathering.wait_s(1, 0.0) == pytest.approx(0.1)


def test_a_few_callers_are_not_waited_for() -> None:
    gathering = GroupGathering()
    commit(gathering, 3)
    assert gathering.wait_s(4, 0.0) == 0


def test_callers_that_do_not_come_back_are_waited_for_ever_more_seldom() -> None:
    gathering = GroupGathering()
    waits = []
    for _ in range(40):
        commit(gathering, 20)
        waits.append(gathering.wait_s(20, 0.0) > 0)
    assert [number for number, has_waited in enumerate(waits) if has_waited] == [0, 2, 5, 10, 19, 36]


def test_callers_that_come_back_are_waited_for_every_time() -> None:
    gathering = GroupGathering()
    for _ in range(20):
        commit(gathering, 64)
        assert gathering.wait_s(1, 0.0) > 0
        assert gathering.wait_s(64, 0.1) == 0
