"""Acknowledged commits survive a kill of the process (spec §5.3: durable before the 200 is sent)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from forewarn.store import SqliteStore

COMMITTER = Path(__file__).with_name("commit_until_killed.py")


def acknowledged_before_the_kill(path: Path, lines: int) -> list[str]:
    """Start the program, kill it once it has printed this many commits, and return all it printed."""
    child = subprocess.Popen([sys.executable, str(COMMITTER), str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        printed = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        printed += child.stdout.readlines()
    # The kill may have cut off the last line.
    return [line.strip() for line in printed if line.endswith("\n")]


def test_a_kill_at_any_time_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    moments = random.Random(20170301)
    acknowledged: list[str] = []
    for _ in range(5):
        acknowledged += acknowledged_before_the_kill(path, moments.randint(1, 400))

        kept, versions = asyncio.run(_content(path))

        assert set(acknowledged) <= kept.keys()
        assert set(kept.values()) == {1}, "a commit was applied twice"
        # A commit is all or nothing: each moved its scope by one version and added one entry.
        assert Counter(text.split(":")[0] for text in kept) == versions


async def _content(path: Path) -> tuple[Counter[str], dict[str, int]]:
    store = SqliteStore.open(path)
    try:
        scopes = [store.scope(scope_id) for scope_id in store.scope_ids()]
        return Counter(entry.text for entry in store.history()), {s.id: s.version for s in scopes if s}
    finally:
        await store.close()
