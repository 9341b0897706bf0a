"""The fleet file at a start: applied to an empty store; later, unknown VMs cause a warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.errors import Unavailable
from forewarn.service.first_start import apply_initial_fleet
from forewarn.service.settings import Settings
from forewarn.store.memory import MemoryStore
from tests.support.world import World

HOST = '[[hosts]]\nname = "h1"\n'
RECORD = "postgresql://127.0.0.1/forewarn"  # large fleets take several commits; nothing connects to it here
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


async def apply(world: World, path: Path, *, store: str = RECORD) -> None:
    settings = Settings(data=str(path.parent), fleet=str(path), store=store)
    await apply_initial_fleet(world.control, settings, vms_per_commit=2)


def fleet_entries(world: World) -> list[str]:
    return [entry.text.rpartition("/")[2] for entry in world.store.history() if "set up" in entry.text]


async def interrupted(world: World, path: Path) -> None:
    """Begin to apply the fleet, and fail after the first commit."""
    assert isinstance(world.store, MemoryStore)
    fail_next = world.store.fail_next
    unsubscribe = world.store.subscribe(lambda applied: fail_next(Unavailable("the record is gone")))
    with pytest.raises(Unavailable, match="the record is gone"):
        await apply(world, path)
    unsubscribe()


def test_a_record_gets_a_large_fleet_in_several_commits_that_keep_scopes_together(world: World, path: Path) -> None:
    in_set = '[[availability_sets]]\nname = "s"\n\n[[vms]]\nname = "db-{n}"\ncount = 3\navailability_set = "s"\n'
    path.write_text(HOST + WEB + in_set + WEB.replace("web", "cache"), encoding="utf-8")
    world.do(apply(world, path))
    assert fleet_entries(world) == ["fleet.toml, VMs 1 to 4 of 5", "fleet.toml, VMs 5 to 5 of 5"]
    assert len(world.store.vms()) == 5


def test_a_store_without_a_record_gets_a_fleet_in_one_commit(world: World, path: Path) -> None:
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 5\n", encoding="utf-8")
    world.do(apply(world, path, store=""))
    assert fleet_entries(world) == ["fleet.toml"]
    assert len(world.store.vms()) == 5


def test_an_interrupted_first_start_is_continued_by_the_next(
    world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 5\n", encoding="utf-8")
    world.do(interrupted(world, path))
    first = {vm.key: vm.vm_id for vm in world.store.vms()}
    assert len(first) == 2
    world.do(apply(world, path))
    ids = {vm.key: vm.vm_id for vm in world.store.vms()}
    assert len(ids) == 5
    assert first.items() <= ids.items()
    assert fleet_entries(world) == [f"fleet.toml, VMs {part} of 5" for part in ("1 to 2", "3 to 4", "5 to 5")]
    world.do(apply(world, path))
    assert len(fleet_entries(world)) == 3
    assert not caplog.records


def test_a_fleet_file_that_changed_after_an_interrupted_start_is_not_applied_and_causes_a_warning(
    world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 5\n", encoding="utf-8")
    world.do(interrupted(world, path))
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 6\n", encoding="utf-8")
    world.do(apply(world, path))
    assert ["was not applied" in record.message for record in caplog.records] == [True]
    assert len(world.store.vms()) == 2


def test_a_start_without_the_fleet_file_of_which_only_a_part_was_applied_causes_a_warning(
    world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 5\n", encoding="utf-8")
    world.do(interrupted(world, path))
    world.do(apply_initial_fleet(world.control, Settings(data=str(path.parent), store=RECORD)))
    assert ["only a part" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("is_removed_again", [False, True], ids=["other fleet", "other VMs were removed again"])
def test_the_rest_of_an_interrupted_first_fleet_is_not_applied_over_a_later_fleet(
    world: World, path: Path, caplog: pytest.LogCaptureFixture, is_removed_again: bool
) -> None:
    path.write_text(HOST + WEB.replace("0", "{n}") + "count = 5\n", encoding="utf-8")
    world.do(interrupted(world, path))
    later = read_fleet_file('[[hosts]]\nname = "h2"\n[[vms]]\nname = "app-0"\n')
    gone = tuple(world.store.vms())
    change = FleetChange(hosts=later.hosts, removed_hosts=("h1",), vms=later.vms, removed=gone, text="another fleet")
    if is_removed_again:
        change = FleetChange(vms=(replace(later.vms[0], host="h1"),), text="another VM")
    world.do(world.control.fleet.apply_change(change, who="ann"))
    if is_removed_again:
        added = next(vm for vm in world.store.vms() if vm.name == "app-0")
        world.do(world.control.fleet.apply_change(FleetChange(removed=(added,), text="not any more"), who="ann"))
    before = world.store.vms()
    for _ in range(2):
        world.do(apply(world, path))
    assert world.store.vms() == before
    texts = [record.message for record in caplog.records]
    assert [("the fleet was changed since" in text, "was not applied, because" in text) for text in texts] == [
        (True, False),
        (False, True),
        (False, True),
    ]
