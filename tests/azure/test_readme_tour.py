"""The az commands of the README run in order, and print what the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.web_service import open_web_service

ROOT = Path(__file__).parents[2]
AZ = ROOT / ".venv-az" / "bin" / "az"
pytestmark = [pytest.mark.az, pytest.mark.skipif(not AZ.exists(), reason="az was not fetched: `make test-az` does")]
CHANGING = [
    (r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}", "ID"),
    (r"\d{2}:\d{2}:\d{2} \(in [^)]*\)", "WHEN"),
    (r" +", " "),
]


def steps() -> list[tuple[str, str]]:
    """Every command with the output below it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```azurecli\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def normal(text: str) -> list[str]:
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.strip().splitlines()]


def test_the_readmes_tour_with_az_prints_what_it_says(tmp_path: Path) -> None:
    assert len(steps()) > 8
    programs = f"{Path(sys.executable).parent}:{AZ.parent}:{os.environ['PATH']}"
    with open_web_service(tmp_path) as console:
        environ = {"FOREWARN_DATA": str(console.service.data), "PATH": programs, "HOME": str(tmp_path), "TZ": "UTC"}
        before = ""
        for command, expected in steps():
            ran = subprocess.run(
                ["bash", "-c", f"{before}{command}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**environ, "COLUMNS": "120", "NO_COLOR": "1"},
                timeout=120,
                check=False,
            )
            assert normal(ran.stdout) == normal(expected), f"$ {command}\n{ran.stdout}"
            before += f"{command}\n" if command.startswith("eval ") else ""
