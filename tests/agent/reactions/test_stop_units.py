"""systemd units are stopped and started, by a fake systemctl that keeps state in files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import ReactionHarness

SYSTEMCTL = """#!/bin/sh
cd {units}
for last; do :; done
case " $* " in
*" show "*) cat "$last" 2>/dev/null || echo inactive ;;
*" stop "*) echo "$*" >> calls; test -e "$last.fails" && exit 5; test -e "$last.slow" || echo inactive > "$last" ;;
*" start "*) echo "$*" >> calls; test -e "$last.fails" && exit 6; echo active > "$last" ;;
esac
"""


class FakeSystemd:
    """Units are files with their state; NAME.fails and NAME.slow make a unit fail or stop slowly."""

    def __init__(self, folder: Path) -> None:
        self.units = folder / "units"
        self.units.mkdir()
        program = folder / "bin/systemctl"
        program.parent.mkdir()
        program.write_text(SYSTEMCTL.format(units=self.units))
        program.chmod(0o755)
        self.path = program.parent

    def put(self, **states: str) -> None:
        for name, state in states.items():
            (self.units / f"{name}.service").write_text(f"{state}\n")

    def state(self, name: str) -> str:
        return (self.units / f"{name}.service").read_text().strip()

    @property
    def calls(self) -> list[str]:
        calls = self.units / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    systemd = FakeSystemd(tmp_path)
    monkeypatch.setenv("PATH", f"{systemd.path}:/usr/bin:/bin")
    systemd.put(web="active", worker="active", cron="inactive")
    return systemd


UNITS = ["web.service", "worker.service", "cron.service"]


def make_reaction(tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("stop-units", {"units": UNITS, **options}, tmp_path / "case")


def test_units_stop_in_order_and_those_that_ran_start_in_reverse_order(systemd: FakeSystemd, tmp_path: Path) -> None:
    units = make_reaction(tmp_path)
    assert asyncio.run(units.check()) is False
    assert asyncio.run(units.do()).text == "stopped web.service, worker.service, cron.service"
    assert asyncio.run(units.check()) is True
    assert asyncio.run(units.undo()) == StepOutcome(ok=True, text="started worker.service, web.service")
    stops = ["stop web.service", "stop worker.service", "stop cron.service"]
    assert systemd.calls == [*stops, "start worker.service", "start web.service"]


def test_a_repeated_stop_still_knows_which_units_ran(systemd: FakeSystemd, tmp_path: Path) -> None:
    units = make_reaction(tmp_path)
    for _ in range(2):
        assert asyncio.run(units.do()).ok
    asyncio.run(units.undo())
    assert (systemd.state("web"), systemd.state("worker"), systemd.state("cron")) == ("active", "active", "inactive")


def test_a_unit_that_cannot_be_stopped_is_reported_and_the_rest_keeps_running(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    (systemd.units / "worker.service.fails").touch()
    units = make_reaction(tmp_path)
    outcome = asyncio.run(units.do())
    assert not outcome.ok
    assert outcome.text.startswith("systemctl stop worker.service: exit status 5; its output is in ")
    assert systemd.calls[-1] == "stop worker.service"


def test_a_unit_that_is_still_stopping_is_waited_for_and_reported(systemd: FakeSystemd, tmp_path: Path) -> None:
    (systemd.units / "web.service.slow").touch()
    systemd.put(web="deactivating")
    outcome = asyncio.run(make_reaction(tmp_path).do(within_s=2))
    assert outcome == StepOutcome(ok=False, text="web.service is still deactivating at the end of the step's time")


def test_units_that_did_not_run_are_not_started(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.put(web="failed", worker="inactive")
    units = make_reaction(tmp_path)
    asyncio.run(units.do())
    assert asyncio.run(units.undo()) == StepOutcome(ok=True, text="nothing to undo: no unit ran before")


def test_a_unit_that_does_not_start_is_reported(systemd: FakeSystemd, tmp_path: Path) -> None:
    units = make_reaction(tmp_path)
    asyncio.run(units.do())
    (systemd.units / "worker.service.fails").touch()
    outcome = asyncio.run(units.undo())
    assert not outcome.ok
    assert outcome.text.startswith("systemctl start worker.service: exit status 6; its output is in ")


def test_the_users_own_systemd_can_be_used(systemd: FakeSystemd, tmp_path: Path) -> None:
    asyncio.run(make_reaction(tmp_path, user=True, units="web.service").do())
    assert systemd.calls == ["--user stop web.service"]


def test_a_machine_without_systemd_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    units = make_reaction(tmp_path)
    outcome = asyncio.run(units.do())
    assert outcome.text == (
        "systemctl does not show the state of web.service: 'systemctl' cannot be run: No such file or directory"
    )
    assert asyncio.run(units.check()) is None
