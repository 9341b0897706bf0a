"""Whatever is asked of a control plane, in whatever order, and wherever it dies (spec §4.2, §5, §6, §7, §8, §12)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis.stateful import run_state_machine_as_test

from forewarn.core.decision import EnablementMode
from tests.properties.control_machine import ControlMachine
from tests.properties.crashing_stores import MortalSqlite, MortalStore
from tests.properties.search_profile import searching


class OnRequest(ControlMachine):
    enablement = EnablementMode.ON_REQUEST


class OnSqlite(ControlMachine):
    def new_store(self) -> MortalStore:
        self._folder = tempfile.TemporaryDirectory()
        return MortalSqlite.at(Path(self._folder.name) / "store.db")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


def test_a_lab_keeps_every_rule_through_any_crash() -> None:
    """Every scope is enabled from the start (spec §8.3)."""
    run_state_machine_as_test(ControlMachine, settings=searching(250))


def test_a_service_keeps_every_rule_through_any_crash() -> None:
    """Scopes are enabled by their VMs' requests and disabled by a day of silence (spec §8.1, §8.2)."""
    run_state_machine_as_test(OnRequest, settings=searching(100))


def test_a_store_in_a_file_keeps_every_rule_through_any_crash() -> None:
    run_state_machine_as_test(OnSqlite, settings=searching(20, steps=40))
