"""Keepers as the API shows them, and programs of VMs that are added one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forewarn.console.app import build

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
class Kept:
    pid: int = 7
    state: str = "frozen"
    boot_id: str = "b-1"
    program: tuple[str, ...] | None = ("worker",)


def with_keepers(api: Any, **keepers: Kept) -> Any:
    """Key → keeper; of VMs that the world has, or has no more."""
    api.house = replace(api.house, keepers=lambda: {f"sub/lab/{name}": kept for name, kept in keepers.items()})
    api.app = build(api.house)
    return api


def test_nobody_keeps_a_vm_at_first(api: Any) -> None:
    assert api.get("/keepers") == {"keepers": []}
    assert api.get("/vms/db")["keeper"] is None


def test_keepers_are_shown_by_the_names_of_their_vms(api: Any) -> None:
    with_keepers(api, spot=Kept(), db=Kept(pid=8, program=None), nobody=Kept())
    spot = {"vm": "spot", "pid": 7, "state": "frozen", "boot_id": "b-1", "program": ["worker"]}
    assert api.get("/keepers")["keepers"] == [{**spot, "vm": "db", "pid": 8, "program": None}, spot]
    assert api.get("/vms/spot")["keeper"] == spot


def test_a_vm_added_to_a_scale_set_has_its_program(api_of: Callable[..., Any]) -> None:
    api = api_of()
    api.post("/fleet/apply", {"text": FILE, "source": "f.toml"})
    key = api.post("/fleet/vms", {"name": "workers_9", "scale_set": "workers"})["key"]
    vm = api.world.store.vm(key)
    assert (vm.program, vm.environment, vm.directory) == (("worker", "--quiet"), {"COLOUR": "blue"}, "/srv")
