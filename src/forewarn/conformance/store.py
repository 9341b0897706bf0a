"""The conformance suite for implementations of `Store`.

Subclass it in a test module, say how yours is opened, and pytest does the rest:

    class TestMine(StoreConformance):
        def open(self) -> Store: ...
"""

from __future__ import annotations

from forewarn.conformance.store_commits import StoreCommitTests
from forewarn.conformance.store_history import StoreHistoryTests
from forewarn.conformance.store_queries import StoreQueryTests
from forewarn.conformance.store_scopes import StoreScopeTests


class StoreConformance(StoreScopeTests, StoreCommitTests, StoreQueryTests, StoreHistoryTests):
    """Every requirement on a store. Subclass it in your tests and define `open`."""
