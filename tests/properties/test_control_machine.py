"""Whatever is asked of a control plane, in whatever order, and wherever it dies (spec §4.2, §5, §6, §7, §8)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from control_machine import ControlMachine
from extent import searching
from fate import MortalSqlite, MortalStore

from forewarn.core.policy import Enablement


class _OnRequest(ControlMachine):
    enablement = Enablement.ON_REQUEST


class _OnSqlite(ControlMachine):
    def new_store(self) -> MortalStore:
        self._folder = tempfile.TemporaryDirectory()
        return MortalSqlite.at(Path(self._folder.name) / "store.db")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


class TestInALab(ControlMachine.TestCase):
    """Every scope is enabled from the start (spec §8.3)."""

    settings = searching(120)


class TestInService(_OnRequest.TestCase):
    """Scopes are enabled by their VMs' requests and disabled by a day of silence (spec §8.1, §8.2)."""

    settings = searching(60)


class TestOnSqlite(_OnSqlite.TestCase):
    settings = searching(10, steps=30)
