"""Killed at any moment (SIGKILL, seeded), a hypervisor neither forgets nor repeats an effect."""

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
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor

PERFORMER = Path(__file__).with_name("perform_until_killed.py")
LATER_THAN_ALL = 1_800_000_000.0


@contextmanager
def start_performer(ledger: Path, acts: int, line: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PERFORMER), str(ledger), str(acts), str(line)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_performer(ledger: Path, acts: int, line: int = 0) -> tuple[int, list[dict[str, Any]]]:
    with start_performer(ledger, acts, line) as process:
        lines_printed, _ = process.communicate(timeout=60)
    return process.returncode, [json.loads(text) for text in lines_printed.splitlines()]


@contextmanager
def open_ledger(path: Path) -> Iterator[EffectLedger]:
    ledger = EffectLedger(path)
    try:
        yield ledger
    finally:
        ledger.close()


def check_outcomes_are_recorded(path: Path, outcomes: list[dict[str, Any]]) -> None:
    """The ledger has every outcome that was printed before the crash."""
    with open_ledger(path) as ledger:
        for answer in outcomes:
            effect = ledger.find(answer["act"])
            assert effect is not None, answer
            assert effect.ends_at == answer.get("later", effect.ends_at), answer
            assert effect.ended or "ok" not in answer, answer


def check_each_effect_once(path: Path, count: int, outcomes: list[dict[str, Any]]) -> None:
    """Performed again from the start, every act is done, and none has a second effect."""
    code, _ = run_performer(path, count)
    assert code == 0
    check_outcomes_are_recorded(path, outcomes)
    with open_ledger(path) as ledger:
        entries = ledger.effects()
        assert [e.act_id for e in entries] == [f"E{n}:vm-{n % 3}" for n in range(count)]
        assert all(e.ended for e in entries)
        assert ledger.repeated_effects == 0


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines of the hypervisor run when seven acts are performed without a crash."""
    code, lines_printed = run_performer(tmp_path_factory.mktemp("whole") / "ledger.db", 7)
    assert code == 0
    return int(lines_printed[-1]["lines"])


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_before_any_line_of_code_leaves_each_effect_once(tmp_path: Path, lines: int, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "ledger.db"
    outcomes: list[dict[str, Any]] = []
    deaths = 0
    for _ in range(5):
        code, lines_printed = run_performer(path, 7, line=rng.randint(1, lines))
        deaths += code == -signal.SIGKILL
        outcomes += [answer for answer in lines_printed if "act" in answer]
        check_outcomes_are_recorded(path, outcomes)

    assert deaths
    check_each_effect_once(path, 7, outcomes)


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_from_outside_leaves_each_effect_once(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "ledger.db"
    outcomes: list[dict[str, Any]] = []
    for _ in range(4):
        with start_performer(path, 120) as process:
            assert process.stdout is not None
            lines_read = [process.stdout.readline() for _ in range(rng.randint(1, 150))]
            process.kill()
            rest, _ = process.communicate(timeout=60)
        complete_lines = "".join([*lines_read, rest]).splitlines(keepends=True)
        outcomes += [json.loads(text) for text in complete_lines if text.endswith("\n") and "act" in text]
        check_outcomes_are_recorded(path, outcomes)

    check_each_effect_once(path, 120, outcomes)


def test_a_crash_while_a_ledger_is_created_leaves_a_file_that_opens(tmp_path: Path) -> None:
    _, lines_printed = run_performer(tmp_path / "whole.db", 0)
    for line in range(1, lines_printed[-1]["lines"] + 1):
        path = tmp_path / f"died-before-{line}.db"
        assert run_performer(path, 0, line)[0] == -signal.SIGKILL
        with open_ledger(path) as ledger:
            assert ledger.effects() == []


def test_an_act_begun_before_a_crash_ends_at_its_planned_time(tmp_path: Path) -> None:
    """Spec §12: acts take lab time, whatever happens to the process."""
    act = Act(id="E:a", vm="s/g/a", name="a", verb=Verb.REDEPLOY, event_id="E", to_host="h2")

    async def perform(now: float) -> ActDone | ActUnderWay:
        with open_ledger(tmp_path / "ledger.db") as ledger:
            return await SimulatedHypervisor(ledger).perform(act, now)

    assert asyncio.run(perform(1000.0)) == ActUnderWay(at=1120.0)
    assert asyncio.run(perform(1119.0)) == ActUnderWay(at=1120.0)
    assert asyncio.run(perform(LATER_THAN_ALL)) == ActDone(ok=True, note="redeploy took 2 min, now on 'h2'")
