"""The replicated store over a record in memory passes the conformance suite of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.cluster.replicated_store import ReplicatedStore
from forewarn.cluster.row_changes import copy_digests, snapshot_digests
from forewarn.conformance.store import StoreConformance
from tests.support.memory_record import MemoryRecordServer
from tests.support.replicated_store import open_replicated


class TestReplicatedStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _new_server(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path / "copy.db"
        self.now = 0.0
        self.server = MemoryRecordServer(lambda: self.now)
        yield
        with self.server.connect().snapshot() as snapshot:
            assert copy_digests(self.path) == snapshot_digests(snapshot)

    def open(self) -> ReplicatedStore:
        self.now += 10.0  # the lease of the store before has expired
        return open_replicated(self.path, self.server.connect())
