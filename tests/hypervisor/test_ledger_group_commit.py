"""Writes to the ledger at one moment are committed together, and answered only after the commit."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.interface import ActNotTried
from forewarn.machines.ledger import Effect, EffectLedger


def effect(number: int) -> Effect:
    return Effect(act_id=f"a{number}", vm="v", verb=Verb.REBOOT, event_id="E", begun_at=1.0, ends_at=2.0)


def test_writes_of_one_moment_share_a_commit_and_are_durable_when_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger, statements = EffectLedger(tmp_path / "ledger"), list[str]()
        ledger._connection.set_trace_callback(statements.append)

        async def begin(number: int) -> None:
            assert await ledger.write_in_group(lambda: ledger.record_effect(effect(number)))
            with sqlite3.connect(tmp_path / "ledger") as other:
                assert other.execute("SELECT 1 FROM effect WHERE act_id = ?", (f"a{number}",)).fetchone()
            other.close()

        await asyncio.gather(*map(begin, range(64)))
        ledger._connection.set_trace_callback(None)
        assert statements.count("COMMIT") == 1
        assert len(ledger.effects()) == 64
        ledger.close()

    asyncio.run(scenario())


def test_a_failing_write_does_not_undo_the_others_of_its_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = EffectLedger(tmp_path / "ledger")

        def fail() -> None:
            ledger.record_effect(effect(1))
            raise RuntimeError("not this one")

        writes = [lambda: ledger.record_effect(effect(0)), fail, lambda: ledger.record_effect(effect(2))]
        answers = await asyncio.gather(*(ledger.write_in_group(each) for each in writes), return_exceptions=True)
        assert [answers[0], str(answers[1]), answers[2]] == [True, "not this one", True]
        assert [each.act_id for each in ledger.effects()] == ["a0", "a2"]
        ledger.close()

    asyncio.run(scenario())


def test_if_the_file_is_unavailable_all_writes_of_a_group_fail_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = EffectLedger(tmp_path / "ledger")
        ledger._connection.execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(tmp_path / "ledger", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writes = (ledger.write_in_group(lambda: ledger.count_perform("a")) for _ in range(20))
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(answer, ActNotTried) for answer in answers)
        other.execute("ROLLBACK")
        other.close()
        assert await ledger.write_in_group(lambda: ledger.count_perform("a")) == 1
        ledger.close()

    asyncio.run(scenario())


def test_a_cancelled_write_does_not_block_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = EffectLedger(tmp_path / "ledger")
        impatient, patient = (
            asyncio.create_task(ledger.write_in_group(lambda: ledger.count_perform("a"))) for _ in "ab"
        )
        await asyncio.sleep(0)
        impatient.cancel()
        assert await patient == 2
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await ledger.wait_until_written()
        ledger.close()

    asyncio.run(scenario())
