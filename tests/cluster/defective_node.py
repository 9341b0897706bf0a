"""Runs `forewarn` with a defect that the checkers of clusters must find: `python defective_node.py DEFECT ARGUMENTS…`.

The defects are made here, by replacing parts of the program: forewarn itself has no switch for them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from forewarn.cli import main
from forewarn.cluster import postgres_record
from forewarn.cluster.lease import HeldLease, LeaseState
from forewarn.cluster.record import RecordGroup
from forewarn.cluster.replicated_store import RecordReplication
from forewarn.service import node_wiring

LATE_S = 5.0  # how long after its answer a write is committed, with the defect "answered first"


def answer_before_the_commit() -> None:
    """Answer writes at once, and commit them to the record seconds later, in order."""
    commit = RecordReplication._commit_to_record
    lock = threading.Lock()

    def commit_later(self: RecordReplication, group: RecordGroup) -> None:
        def run() -> None:
            time.sleep(LATE_S)
            with lock:
                commit(self, group)

        threading.Thread(target=run, daemon=True).start()

    RecordReplication._commit_to_record = commit_later  # type: ignore[method-assign]
    # Its own renewals would find that the server lacks the group.
    HeldLease.deposed = lambda self, reason: self.renewed(time.monotonic())  # type: ignore[method-assign]


def leave_out_the_fence() -> None:
    """Write under any term and number, believe to hold the lease for ever, and never end."""
    fence = postgres_record._FENCE.replace("WHERE shard = 0 AND term = %s AND n = %s", "WHERE %s > 0 AND %s >= 0")
    assert fence != postgres_record._FENCE
    postgres_record._FENCE = fence
    postgres_record._ADD_TO_LOG += " ON CONFLICT (n) DO UPDATE SET term = excluded.term, body = excluded.body"
    HeldLease.state = property(lambda self: LeaseState.HELD)  # type: ignore[assignment,method-assign]
    HeldLease.deposed = lambda self, reason: None  # type: ignore[method-assign]
    run = node_wiring.running_control_node
    run.__wrapped__.__kwdefaults__["end"] = lambda reason: None  # type: ignore[attr-defined]


DEFECTS: dict[str, Callable[[], None]] = {
    "answered-first": answer_before_the_commit,
    "no-fence": leave_out_the_fence,
}


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    sys.exit(main())
