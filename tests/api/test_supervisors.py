"""Supervisors of namespace VMs, and the programs of VMs that are added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from forewarn.service.web_server import build_web_app

FILE = """
[defaults]
location = "westeurope"
[[hosts]]
name = "h1"
[[scale_sets]]
name = "workers"
count = 2
program = ["worker", "--quiet"]
environment = { COLOUR = "blue" }
directory = "/srv"
"""


@dataclass(frozen=True)
class Supervisor:
    pid: int = 7
    state: str = "frozen"
    boot_id: str = "b-1"
    program: tuple[str, ...] | None = ("worker",)


def with_supervisors(api: Any, **supervisors: Supervisor) -> Any:
    """The API with these supervisors, by VM name; a VM may be unknown."""
    api.dependencies = replace(
        api.dependencies,
        vm_supervisors=lambda: {f"sub/lab/{name}": supervisor for name, supervisor in supervisors.items()},
    )
    api.app = build_web_app(api.dependencies)
    return api


def test_no_supervisors_are_listed_at_first(api: Any) -> None:
    assert api.get("/vm-supervisors") == {"supervisors": []}
    assert api.get("/vms/db")["supervisor"] is None


def test_supervisors_are_listed_with_the_names_of_their_vms(api: Any) -> None:
    with_supervisors(api, spot=Supervisor(), db=Supervisor(pid=8, program=None), nobody=Supervisor())
    spot = {"vm": "spot", "pid": 7, "state": "frozen", "boot_id": "b-1", "program": ["worker"]}
    assert api.get("/vm-supervisors")["supervisors"] == [{**spot, "vm": "db", "pid": 8, "program": None}, spot]
    assert api.get("/vms/spot")["supervisor"] == spot


def test_a_vm_added_to_a_scale_set_has_its_program(api_of: Callable[..., Any]) -> None:
    api = api_of()
    api.post("/fleet/apply", {"text": FILE, "source": "f.toml"})
    key = api.post("/fleet/vms", {"name": "workers_9", "scale_set": "workers"})["key"]
    vm = api.world.store.vm(key)
    assert (vm.program, vm.environment, vm.directory) == (("worker", "--quiet"), {"COLOUR": "blue"}, "/srv")


CHANGES = [
    pytest.param('program = ["worker", "--quiet"]', 'program = ["sh", "-c", "cat admin.secret"]', id="program"),
    pytest.param('COLOUR = "blue"', 'LD_PRELOAD = "/tmp/evil.so"', id="environment"),
    pytest.param('directory = "/srv"', 'directory = "/tmp"', id="directory"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_platform_operator_may_not_choose_programs_for_the_services_machine(
    api_of: Callable[..., Any], old: str, new: str
) -> None:
    """A program could read the service's secrets, and so give its author every role."""
    api = api_of()
    platform = api.holding("Platform", "/")
    asked = {"text": FILE, "source": "f.toml"}
    status, code, message = platform.refused("POST", "/fleet/apply", asked)
    assert (status, code) == (403, "Forbidden")
    assert "run programs on the service's machine, such as the program of VM 'workers_0'" in message

    assert api.holding("Administrator", "/").post("/fleet/apply", asked)["applied"]
    changed = {"text": FILE.replace(old, new), "source": "f.toml"}
    assert changed["text"] != FILE
    assert platform.refused("POST", "/fleet/apply", changed)[:2] == (403, "Forbidden")


def test_a_platform_operator_may_add_vms_with_a_known_program(api_of: Callable[..., Any]) -> None:
    api = api_of()
    api.post("/fleet/apply", {"text": FILE, "source": "f.toml"})
    platform = api.holding("Platform", "/")
    more = FILE.replace("count = 2", "count = 3")
    assert platform.post("/fleet/apply", {"text": more, "source": "f.toml"})["difference"]["added"] == ["workers_2"]
    platform.post("/fleet/vms", {"name": "workers_9", "scale_set": "workers"})
    fewer = "".join(line for line in FILE.splitlines(keepends=True) if not line.startswith(("prog", "env", "dir")))
    assert platform.post("/fleet/apply", {"text": fewer, "source": "f.toml"})["applied"]
