"""The control plane keeps every rule through any requests and crashes (spec §4.2, §5, §6, §7, §8, §12)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis.stateful import run_state_machine_as_test

from forewarn.core.decision import EnablementMode
from tests.properties.crashing_stores import CrashingSqliteStore, CrashingStore
from tests.properties.rollout_machine import RolloutMachine
from tests.properties.search_profile import search_settings


class ServiceMachine(RolloutMachine):
    enablement = EnablementMode.ON_REQUEST


class SqliteMachine(RolloutMachine):
    def new_store(self) -> CrashingStore:
        self._folder = tempfile.TemporaryDirectory()
        return CrashingSqliteStore.open_at(Path(self._folder.name) / "store.db")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


def test_a_lab_keeps_every_rule_through_any_crash() -> None:
    """Every scope is enabled from the start (spec §8.3)."""
    run_state_machine_as_test(RolloutMachine, settings=search_settings(120))


def test_a_service_keeps_every_rule_through_any_crash() -> None:
    """Scopes are enabled by polls and disabled after a day without polls (spec §8.1, §8.2)."""
    run_state_machine_as_test(ServiceMachine, settings=search_settings(60))


def test_a_lab_on_a_sqlite_store_keeps_every_rule_through_any_crash() -> None:
    run_state_machine_as_test(SqliteMachine, settings=search_settings(20, steps=40))
