"""Both stores keep the contract that every store must keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.conformance.store import StoreConformance
from forewarn.store import MemoryStore, SqliteStore


class TestMemoryStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _with_a_memory_of_its_own(self) -> None:
        self.last = MemoryStore()

    def open(self) -> MemoryStore:
        self.last = self.last.copy()
        return self.last


class TestSqliteStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path) -> None:
        self.path = tmp_path / "forewarn.db"

    def open(self) -> SqliteStore:
        return SqliteStore.open(self.path)
