"""The programs in docs/how-to/testing.md run unchanged, and docs/reference/lab.md documents every member of a lab."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.lab import Lab
from forewarn.lab.values import LabEvent, LabFault, LabVm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "lab.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
HANDLER, *OTHERS = BLOCKS
TESTS = [block for block in OTHERS if "scheduled_events" in block or "unittest" in block]
SCRIPTS = [block for block in OTHERS if block not in TESTS]
INTERNAL = {"read"}  # used by the lab's own values


def run(*line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "handler.py").write_text(HANDLER, encoding="utf-8")
    (cwd / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = -p no:schemathesis\n", encoding="utf-8")
    ours = {**os.environ, "PYTHONPATH": str(cwd)}
    command = [sys.executable, "-W", "error", *line]
    return subprocess.run(command, cwd=cwd, env=ours, capture_output=True, text=True, timeout=120, check=False)


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    assert len(TESTS) == 2
    for number, block in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(block, encoding="utf-8")
    done = run("-m", "pytest", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_on_the_page_run(tmp_path: Path, script: str) -> None:
    done = run("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_recipe_has_a_script() -> None:
    assert len(SCRIPTS) == 7


@pytest.mark.parametrize("thing", [Lab, LabEvent, LabVm, LabFault])
def test_every_public_member_of_a_lab_is_documented(thing: type) -> None:
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", PAGE + REFERENCE))))
    names = {name for name in vars(thing) if not name.startswith("_")} - INTERNAL
    assert names - known == set()
