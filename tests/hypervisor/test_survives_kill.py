"""Killed at any moment, a hypervisor neither forgets nor repeats an effect (SIGKILL, seeded moments)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.hypervisor.interface import ActDone, ActUnderWay
from forewarn.hypervisor.ledger import EffectLedger
from forewarn.hypervisor.simulated import SimulatedHypervisor

PERFORMER = Path(__file__).with_name("perform_until_killed.py")
LATER_THAN_ALL = 1_800_000_000.0


@contextmanager
def performer(ledger: Path, acts: int, line: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PERFORMER), str(ledger), str(acts), str(line)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_to_its_end(ledger: Path, acts: int, line: int = 0) -> tuple[int, list[dict[str, Any]]]:
    with performer(ledger, acts, line) as process:
        said, _ = process.communicate(timeout=60)
    return process.returncode, [json.loads(text) for text in said.splitlines()]


@contextmanager
def opened(path: Path) -> Iterator[EffectLedger]:
    ledger = EffectLedger.open(path)
    try:
        yield ledger
    finally:
        ledger.close()


def check_promises(path: Path, told: list[dict[str, Any]]) -> None:
    """What was said before the crash is what the ledger shows after it."""
    with opened(path) as ledger:
        for answer in told:
            effect = ledger.find(answer["act"])
            assert effect is not None, answer
            assert effect.ends_at == answer.get("later", effect.ends_at), answer
            assert effect.ended or "ok" not in answer, answer


def check_each_effect_once(path: Path, count: int, told: list[dict[str, Any]]) -> None:
    """Performed again from the start, every act is done and none has had a second effect."""
    code, _ = run_to_its_end(path, count)
    assert code == 0
    check_promises(path, told)
    with opened(path) as ledger:
        entries = ledger.effects()
        assert [e.act_id for e in entries] == [f"E{n}:vm-{n % 3}" for n in range(count)]
        assert all(e.ended for e in entries)
        assert ledger.repeated_effects == 0


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines of the hypervisor run when seven acts are performed with nobody dying."""
    code, said = run_to_its_end(tmp_path_factory.mktemp("whole") / "ledger.db", 7)
    assert code == 0
    return int(said[-1]["lines"])


@pytest.mark.parametrize("seed", range(6))
def test_dying_before_any_line_of_code_leaves_each_effect_once(tmp_path: Path, lines: int, seed: int) -> None:
    fate, path = random.Random(seed), tmp_path / "ledger.db"
    told: list[dict[str, Any]] = []
    deaths = 0
    for _ in range(5):
        code, said = run_to_its_end(path, 7, line=fate.randint(1, lines))
        deaths += code == -signal.SIGKILL
        told += [answer for answer in said if "act" in answer]
        check_promises(path, told)

    assert deaths
    check_each_effect_once(path, 7, told)


@pytest.mark.parametrize("seed", range(3))
def test_being_killed_from_outside_leaves_each_effect_once(tmp_path: Path, seed: int) -> None:
    fate, path = random.Random(seed), tmp_path / "ledger.db"
    told: list[dict[str, Any]] = []
    for _ in range(4):
        with performer(path, 120) as process:
            assert process.stdout is not None
            heard = [process.stdout.readline() for _ in range(fate.randint(1, 150))]
            process.kill()
            rest, _ = process.communicate(timeout=60)
        whole = "".join([*heard, rest]).splitlines(keepends=True)
        told += [json.loads(text) for text in whole if text.endswith("\n") and "act" in text]
        check_promises(path, told)

    check_each_effect_once(path, 120, told)


def test_dying_while_a_ledger_is_made_leaves_a_file_that_opens(tmp_path: Path) -> None:
    _, said = run_to_its_end(tmp_path / "whole.db", 0)
    for line in range(1, said[-1]["lines"] + 1):
        path = tmp_path / f"died-before-{line}.db"
        assert run_to_its_end(path, 0, line)[0] == -signal.SIGKILL
        with opened(path) as ledger:
            assert ledger.effects() == []


def test_an_act_begun_before_the_crash_ends_when_it_would_have(tmp_path: Path) -> None:
    """Spec §12: impact is lab time's business, not the process's."""
    act = Act(id="E:a", vm="s/g/a", name="a", verb=Verb.REDEPLOY, event_id="E", to_host="h2")

    async def perform(now: float) -> ActDone | ActUnderWay:
        with opened(tmp_path / "ledger.db") as ledger:
            return await SimulatedHypervisor(ledger).perform(act, now)

    assert asyncio.run(perform(1000.0)) == ActUnderWay(at=1120.0)
    assert asyncio.run(perform(1119.0)) == ActUnderWay(at=1120.0)
    assert asyncio.run(perform(LATER_THAN_ALL)) == ActDone(ok=True, note="redeploy took 120 s, now on 'h2'")
