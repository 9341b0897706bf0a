"""A checkpoint is saved, and restored only if it is complete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness

SAVE = 'cp "$STATE" "$FOREWARN_CHECKPOINT"'
RESTORE = 'cp "$FOREWARN_CHECKPOINT" "$STATE"'


def make_reaction(tmp_path: Path, **more: Any) -> ReactionHarness:
    state = tmp_path / "state"
    state.write_text("41")
    save, restore = (f"STATE={state}; {line}" for line in (SAVE, RESTORE))
    return ReactionHarness("checkpoint", {"save": save, "restore": restore, **more}, tmp_path / "case")


def test_a_saved_checkpoint_is_restored(tmp_path: Path) -> None:
    checkpoint = make_reaction(tmp_path)
    saved = asyncio.run(checkpoint.do())
    (tmp_path / "state").write_text("lost")
    restored = asyncio.run(checkpoint.undo())
    place = tmp_path / "case/checkpoint"
    assert saved == StepOutcome(ok=True, text=f"saved in {place}", notes={"checkpoint": str(place)})
    assert restored == StepOutcome(ok=True, text=f"restored from {place}")
    assert (tmp_path / "state").read_text() == "41"


def test_a_checkpoint_can_be_kept_in_another_directory(tmp_path: Path) -> None:
    place = tmp_path / "mnt" / f"{SAMPLE_EVENT.id}-checkpoint"
    outcome = asyncio.run(make_reaction(tmp_path, directory=str(tmp_path / "mnt")).do())
    assert outcome.text == f"saved in {place}"
    assert place.read_text() == "41"


def test_an_event_id_cannot_leave_the_directory(tmp_path: Path) -> None:
    checkpoint = make_reaction(tmp_path, directory=str(tmp_path / "mnt"))
    assert asyncio.run(checkpoint.do(id="../../etc/x")).text == f"saved in {tmp_path}/mnt/______etc_x-checkpoint"


def test_a_checkpoint_whose_save_failed_is_not_restored(tmp_path: Path) -> None:
    checkpoint = make_reaction(tmp_path, save='echo half > "$FOREWARN_CHECKPOINT"; exit 1')
    assert not asyncio.run(checkpoint.do()).ok
    restored = asyncio.run(checkpoint.undo())
    assert restored == StepOutcome(ok=True, text="not restored: no complete checkpoint was saved")
    assert (tmp_path / "state").read_text() == "41"


def test_a_checkpoint_that_is_saved_again_and_fails_then_is_not_restored(tmp_path: Path) -> None:
    assert asyncio.run(make_reaction(tmp_path).do()).ok
    again = make_reaction(tmp_path, save="exit 1")
    assert not asyncio.run(again.do()).ok
    assert "not restored" in asyncio.run(again.undo()).text


def test_a_failed_restore_is_reported_and_can_be_retried(tmp_path: Path) -> None:
    checkpoint = make_reaction(tmp_path, restore="exit 3")
    asyncio.run(checkpoint.do())
    outcome = asyncio.run(checkpoint.undo())
    assert not outcome.ok
    assert outcome.text.startswith("exit status 3; its output is in ")
    assert asyncio.run(make_reaction(tmp_path).undo()).ok


def test_the_check_knows_that_a_save_finished(tmp_path: Path) -> None:
    checkpoint = make_reaction(tmp_path)
    assert asyncio.run(checkpoint.check()) is None
    asyncio.run(checkpoint.do())
    assert asyncio.run(checkpoint.check()) is True


def test_a_save_that_its_check_finds_complete_is_restored(tmp_path: Path) -> None:
    """The agent was killed after the save and before it noted that."""
    checkpoint = make_reaction(tmp_path, check='grep -q 41 "$FOREWARN_CHECKPOINT"')
    checkpoint.step_context()
    (tmp_path / "case/checkpoint").write_text("41")
    assert asyncio.run(checkpoint.check()) is True
    assert asyncio.run(checkpoint.undo()).text == f"restored from {tmp_path}/case/checkpoint"
