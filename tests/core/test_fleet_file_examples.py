"""Fleet files that people copy: the sample fleet, and the examples of docs/how-to/fleet.md."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from forewarn.core.fleet import Priority
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.problems import InvalidFleetFile
from forewarn.core.fleetfile.reader import read_fleet_file

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "src/forewarn/service/sample-fleet.toml"
GUIDE = (ROOT / "docs/how-to/fleet.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/reference/fleet-file.md").read_text(encoding="utf-8")
SHORTEST, SHOP = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
FULL = (ROOT / "examples/fleets/full.toml").read_text(encoding="utf-8")


def test_the_sample_fleet_shows_every_kind_of_scope() -> None:
    """Spec §7.1."""
    fleet = read_fleet_file(SAMPLE.read_text(encoding="utf-8"))
    assert fleet.vms[0].name == "web-0"
    assert {vm.scope_id.partition(":")[0] for vm in fleet.vms} == {"vm", "set", "placement", "service"}
    assert {vm.update_domain for vm in fleet.vms if vm.availability_set} == {0, 1, 2}
    assert any(vm.terminate_notice_min for vm in fleet.vms)
    assert any(vm.priority is Priority.SPOT for vm in fleet.vms)


def test_every_vm_of_the_sample_fleet_can_move_to_another_host() -> None:
    """Spec §6.4: a VM moves to another healthy host of its location and zone."""
    fleet = read_fleet_file(SAMPLE.read_text(encoding="utf-8"))
    for vm in fleet.vms:
        assert any(h.name != vm.host and (h.location, h.zone) == (vm.location, vm.zone) for h in fleet.hosts)


@pytest.mark.parametrize("text", [SHORTEST, FULL, SHOP], ids=["shortest", "full", "shop"])
def test_every_example_of_the_page_is_a_valid_fleet(text: str) -> None:
    assert read_fleet_file(text).vms


def test_the_production_service_of_the_page_has_its_own_data_and_identifies_vms_by_declared_addresses() -> None:
    """A tutorial leaves a lab in the default directory, which a service refuses; a VM without address is unknown."""
    (command,) = re.findall(r"`(forewarn\s+serve [^`]*)`", GUIDE)
    assert "--data ./production" in command
    (address,) = re.findall(r'`address = "([^"]*)"`', GUIDE)
    vms = read_fleet_file(f'{SHOP}address = "{address}"\n').vms
    assert [vm.address for vm in vms] == [f"10.0.0.{n}" for n in range(4, 10)]


def test_the_page_names_every_key() -> None:
    structs: list[type[msgspec.Struct]] = [tables.DefaultsTable, tables.RoleTable, *tables.TABLES.values()]
    keys = {field.name for struct in structs for field in msgspec.structs.fields(struct)} - {"roles"}
    assert {key for key in keys if f"`{key}`" not in PAGE} == set()
    assert all(f"[[{table}]]" in PAGE for table in tables.TABLES)


def test_the_problems_on_the_page_are_the_real_ones() -> None:
    shown = [line for line in GUIDE.splitlines() if line.startswith("fleet.toml:")]
    text = SHORTEST + '\navaliability_set = "x"\n\n[[vms]]\nname = "b"\n\nterminate_notification = 20\n'
    with pytest.raises(InvalidFleetFile) as caught:
        read_fleet_file(text)
    assert str(caught.value).splitlines() == shown
