"""Programs of namespace VMs in fleet files."""

from __future__ import annotations

import pytest

from forewarn.core.fleet import Vm
from forewarn.core.fleet_diff import diff_fleet
from forewarn.core.fleetfile.problems import InvalidFleetFile
from forewarn.core.fleetfile.reader import read_fleet_file

HOSTS = '[[hosts]]\nname = "h"\n'


def vms_of(text: str) -> dict[str, Vm]:
    return {vm.name: vm for vm in read_fleet_file(HOSTS + text).vms}


def test_a_fleet_file_can_declare_the_program_of_a_vm() -> None:
    keys = 'program = ["python3", "app.py"]\nenvironment = { PORT = "80" }\ndirectory = "/srv"'
    vm = vms_of(f'[[vms]]\nname = "web"\n{keys}')["web"]
    assert (vm.program, vm.environment, vm.directory) == (("python3", "app.py"), {"PORT": "80"}, "/srv")


def test_a_vm_inherits_the_program_of_its_scale_set() -> None:
    vms = vms_of(
        '[[scale_sets]]\nname = "pool"\ncount = 2\nprogram = ["a"]\nenvironment = { X = "1", Y = "1" }\n'
        '[[vms]]\nname = "odd"\nscale_set = "pool"\nprogram = ["b"]\nenvironment = { Y = "2" }'
    )
    assert vms["pool_1"].program == ("a",)
    assert (vms["odd"].program, vms["odd"].environment) == (("b",), {"X": "1", "Y": "2"})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('program = "app.py"', "is not a list of texts, a program and its arguments"),
        ("program = []", "is not a list of texts, a program and its arguments"),
        ("program = [7]", "is not a list of texts, a program and its arguments"),
        ('program = ["a\\u0000"]', "is not a list of texts, a program and its arguments"),
        ("environment = { PORT = 80 }", "is not a table of texts, by names without ="),
        ('environment = { "A=B" = "1" }', "is not a table of texts, by names without ="),
        ('directory = "srv"', "is not an absolute path in quotes"),
    ],
)
def test_an_invalid_program_is_rejected_with_its_line(line: str, what: str) -> None:
    with pytest.raises(InvalidFleetFile) as caught:
        vms_of(f'[[vms]]\nname = "web"\n{line}')
    (problem,) = caught.value.problems
    assert problem.line == 5
    assert what in problem.message


def test_applying_a_file_changes_a_program() -> None:
    old = read_fleet_file(HOSTS + '[[vms]]\nname = "web"\nprogram = ["a"]')
    new = read_fleet_file(HOSTS + '[[vms]]\nname = "web"\nprogram = ["b"]')
    diff = diff_fleet(new, hosts=old.hosts, vms=old.vms, live_events=())
    assert diff.to_lines()[0] == '~ VM web: program ["a"] → ["b"]'
