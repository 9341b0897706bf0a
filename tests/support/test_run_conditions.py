"""The tests run alike from a terminal and as a background job of a shell script."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_program_that_a_test_starts_can_be_interrupted() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as child:
        try:
            child.send_signal(signal.SIGINT)
            assert child.wait(20) != 0
        finally:
            child.kill()


@pytest.mark.parametrize("workers", ["0", "1"], ids=["one process", "a worker of pytest-xdist"])
def test_tests_that_run_with_sigint_ignored_can_interrupt_programs(workers: str) -> None:
    node = f"{Path(__file__).relative_to(ROOT)}::{test_a_program_that_a_test_starts_can_be_interrupted.__name__}"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, node]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    outcome = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *line],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout


def _drop(connections: list[sqlite3.Connection]) -> None:
    connections.clear()
    gc.collect()


def test_a_database_that_is_not_closed_gives_a_warning() -> None:
    connections = [sqlite3.connect(":memory:")]
    with pytest.warns(ResourceWarning, match="unclosed database"):
        _drop(connections)


def test_a_database_that_is_closed_gives_no_warning() -> None:
    connections = [sqlite3.connect(":memory:")]
    connections[0].close()
    _drop(connections)
