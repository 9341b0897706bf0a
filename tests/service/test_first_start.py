"""The fleet file at a start: applied to an empty store; later, unknown VMs cause a warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.service.first_start import apply_initial_fleet
from forewarn.service.settings import Settings
from tests.support.world import World

HOST = '[[hosts]]\nname = "h1"\n'
WEB = '[[vms]]\nname = "web-0"\n'


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.toml"


def start(world: World, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    world.do(apply_initial_fleet(world.control, Settings(data=str(path.parent), fleet=str(path))))


@pytest.mark.parametrize("second_text", [HOST + WEB, f"# another comment\n{HOST}{WEB}"], ids=["same text", "same VMs"])
def test_a_fleet_file_whose_vms_are_known_causes_no_warning(
    world: World, path: Path, caplog: pytest.LogCaptureFixture, second_text: str
) -> None:
    start(world, path, HOST + WEB)
    for _ in range(2):
        start(world, path, second_text)
    assert [vm.name for vm in world.store.vms()] == ["web-0"]
    assert not caplog.records


def test_a_fleet_file_with_unknown_vms_causes_a_warning_at_every_start(
    world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(world, path, HOST + WEB)
    for _ in range(2):
        start(world, path, HOST + WEB.replace("web", "db"))
    assert ["was not applied" in record.message for record in caplog.records] == [True, True]
    assert [vm.name for vm in world.store.vms()] == ["web-0"]


def test_the_first_fleet_file_is_still_known_after_another_one(
    world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(world, path, HOST + WEB)
    start(world, path, HOST + WEB.replace("web", "db"))
    caplog.clear()
    start(world, path, HOST + WEB)
    assert not caplog.records
