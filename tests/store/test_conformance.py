"""Both implementations of `Store` pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.conformance.store import StoreConformance
from forewarn.store import MemoryStore, SqliteStore


class TestMemoryStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _new_store(self) -> None:
        self.last = MemoryStore()

    def open(self) -> MemoryStore:
        self.last = self.last.copy()
        return self.last


class TestSqliteStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _new_path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "forewarn.db"

    def open(self) -> SqliteStore:
        return SqliteStore.open(self.path)
