"""A control node that commits until it is killed or must stop, and prints each commit that was acknowledged.

It takes the lease as soon as it can, so it may be started again and again with the same copy.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from forewarn.cluster.lease import HeldLease
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import LeaseRow, MustStop, RecordUnavailable
from forewarn.cluster.replicated_store import ReplicatedStore
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.scope import Scope
from forewarn.errors import Unavailable

CALLERS = 8
STOPPED = 75  # the exit status of a node that must stop


async def commit_forever(store: ReplicatedStore, scope_id: str) -> None:
    while True:
        scope = store.scope(scope_id) or Scope(id=scope_id)
        text = f"{scope_id}:{scope.version + 1}"
        entry = HistoryEntry(at=0.0, kind=EntryKind.SERVICE, text=text, scope_id=scope_id)
        try:
            await store.commit(Commit(scopes=(scope,), entries=(entry,)))
        except MustStop:
            return
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            os.write(1, f"{text}\n".encode())


def take_lease(record: PostgresRecord, name: str) -> tuple[LeaseRow, float]:
    while True:
        sent_at = time.monotonic()
        try:
            lease = record.take_lease(name, "")
        except RecordUnavailable:
            lease = None
        if lease is not None:
            return lease, sent_at
        time.sleep(0.05)


async def main(path: Path, url: str, name: str) -> None:
    record = open_record(url)
    lease, sent_at = take_lease(record, name)
    held = HeldLease(record, lease, sent_at=sent_at)
    held.start()
    store = ReplicatedStore.open_copy(
        path, record, lease, guard=held, clock=time.time, on_stop=lambda error: os._exit(STOPPED)
    )
    os.write(1, f"active:{lease.term}\n".encode())
    await asyncio.gather(*(commit_forever(store, f"s{number}") for number in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
