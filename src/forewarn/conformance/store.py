"""The conformance suite for implementations of `Store`.

Subclass it in a test module and define how to open your store; pytest collects the tests:

    class TestMine(StoreConformance):
        def open(self) -> Store: ...
"""

from __future__ import annotations

from forewarn.conformance.store_history import StoreHistoryTests, StorePruningTests
from forewarn.conformance.store_queries import StoreQueryTests
from forewarn.conformance.store_scopes import StoreCommitTests, StoreScopeTests


class StoreConformance(StoreScopeTests, StoreCommitTests, StoreQueryTests, StoreHistoryTests, StorePruningTests):
    """The tests that every `Store` must pass: scopes, commits, queries, the history and pruning.

    Subclass it in a test module and define `open`, which opens the store under test. pytest collects the tests.
    """
