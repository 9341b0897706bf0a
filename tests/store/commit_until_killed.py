"""A program that commits until it is killed, and prints each commit that the store has acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope
from forewarn.store import SqliteStore

CALLERS = 8


async def commit_forever(store: SqliteStore, scope_id: str) -> None:
    while True:
        scope = store.scope(scope_id) or Scope(id=scope_id)
        text = f"{scope_id}:{scope.version + 1}"
        entry = HistoryEntry(at=0.0, kind=EntryKind.SERVICE, text=text, scope_id=scope_id)
        await store.commit(Commit(scopes=(scope,), entries=(entry,)))
        os.write(1, f"{text}\n".encode())


async def main(path: Path) -> None:
    store = SqliteStore.open(path)
    await asyncio.gather(*(commit_forever(store, f"s{number}") for number in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
