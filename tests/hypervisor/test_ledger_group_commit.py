"""What is asked of the ledger at one moment becomes durable together, and is answered only then."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.hypervisor.interface import ActNotTried
from forewarn.hypervisor.ledger import Effect, EffectLedger


def effect(number: int) -> Effect:
    return Effect(act_id=f"a{number}", vm="v", verb=Verb.REBOOT, event_id="E", begun_at=1.0, ends_at=2.0)


def test_there_is_one_commit_for_all_and_each_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, said = EffectLedger.open(tmp_path / "ledger"), list[str]()
        ledger._connection.set_trace_callback(said.append)

        async def begin(number: int) -> None:
            assert await ledger.write_in_group(lambda: ledger.record_effect(effect(number)))
            with sqlite3.connect(tmp_path / "ledger") as other:
                assert other.execute("SELECT 1 FROM effect WHERE act_id = ?", (f"a{number}",)).fetchone()
            other.close()

        await asyncio.gather(*map(begin, range(64)))
        ledger._connection.set_trace_callback(None)
        assert said.count("COMMIT") == 1
        assert len(ledger.effects()) == 64
        ledger.close()

    asyncio.run(story())


def test_one_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = EffectLedger.open(tmp_path / "ledger")

        def fail() -> None:
            ledger.record_effect(effect(1))
            raise RuntimeError("not this one")

        asked = [lambda: ledger.record_effect(effect(0)), fail, lambda: ledger.record_effect(effect(2))]
        answers = await asyncio.gather(*(ledger.write_in_group(each) for each in asked), return_exceptions=True)
        assert [answers[0], str(answers[1]), answers[2]] == [True, "not this one", True]
        assert [each.act_id for each in ledger.effects()] == ["a0", "a2"]
        ledger.close()

    asyncio.run(story())


def test_while_the_file_is_out_of_reach_nothing_is_tried_and_nobody_waits_for_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = EffectLedger.open(tmp_path / "ledger")
        ledger._connection.execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(tmp_path / "ledger", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        asked = (ledger.write_in_group(lambda: ledger.count_perform("a")) for _ in range(20))
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, ActNotTried) for answer in answers)
        other.execute("ROLLBACK")
        other.close()
        assert await ledger.write_in_group(lambda: ledger.count_perform("a")) == 1
        ledger.close()

    asyncio.run(story())


def test_whoever_gives_up_meanwhile_holds_up_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = EffectLedger.open(tmp_path / "ledger")
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

    asyncio.run(story())
