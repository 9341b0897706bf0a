"""Random small fleets: sets of all kinds, cloud services and single VMs on a few hosts; rollouts over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from forewarn.core.fleet import AutoApproval, EvictionPolicy, Host, Orchestration, Priority, Vm
from forewarn.core.request import Rollout, RolloutImpact
from forewarn.core.waves import make_waves
from forewarn.core.windows import MaintenanceCalendar
from tests.support.world import a_host, a_vm

LETTERS = "abcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFleet:
    """Hosts and VMs of a generated fleet."""

    hosts: tuple[Host, ...]
    vms: tuple[Vm, ...]


def _availability_set(letter: str) -> dict[str, Any]:
    return {"availability_set": f"set-{letter}"}


def _placement_group(letter: str) -> dict[str, Any]:
    return {"scale_set": f"{letter}", "placement_group": "pg"}


def _flexible_set(letter: str) -> dict[str, Any]:
    return {"scale_set": letter, "orchestration": Orchestration.FLEXIBLE}


def _narrow_set(letter: str) -> dict[str, Any]:
    return {**_flexible_set(letter), "fault_domain_count": 1, "narrow_delivery": True}


def _cloud_service(letter: str) -> dict[str, Any]:
    return {"cloud_service": f"service-{letter}"}


_KINDS = [_availability_set, _availability_set, _placement_group, _flexible_set, _narrow_set, _cloud_service, None]
_VM_SETTINGS: list[dict[str, Any]] = [
    {},
    {},
    {"terminate_notice_min": 5},
    {"priority": Priority.SPOT},
    {"priority": Priority.SPOT, "eviction_policy": EvictionPolicy.DELETE},
    {"auto_approve": AutoApproval(restart=True, redeploy=True)},
    {"tags": {"canary": "yes"}},
]


@st.composite
def small_fleets(draw: st.DrawFn) -> SmallFleet:
    hosts = [f"h{n}" for n in range(1, draw(st.integers(2, 4)) + 1)]
    vms: list[Vm] = []
    for letter in LETTERS[: draw(st.integers(1, len(LETTERS)))]:
        vms.extend(_vms_of_group(draw, letter, hosts))
    return SmallFleet(hosts=tuple(a_host(name) for name in hosts), vms=tuple(vms))


def _vms_of_group(draw: st.DrawFn, letter: str, hosts: list[str]) -> list[Vm]:
    kind = draw(st.sampled_from(_KINDS))
    vm_settings = draw(st.sampled_from(_VM_SETTINGS[2:4] if kind is _placement_group else _VM_SETTINGS))
    if kind is None:
        return [a_vm(f"{letter}_0", host=draw(st.sampled_from(hosts)), **vm_settings)]
    domains = draw(st.integers(2, 4))
    return [
        a_vm(
            f"{letter}_{number}",
            host=draw(st.sampled_from(hosts)),
            update_domain=number % domains,
            **kind(letter),
            **vm_settings,
        )
        for number in range(draw(st.integers(2, 5)))
    ]


_TARGETS: list[dict[str, Any]] = [
    {"everything": True},
    {"tag": "canary"},
    {"location": "westeurope"},
    {"hosts": ("h1", "h2")},
]


@st.composite
def waved_rollouts(draw: st.DrawFn, calendars: st.SearchStrategy[MaintenanceCalendar | None]) -> Rollout:
    """Rollouts in waves that settle or not, over any kind of target but a scope."""
    canary = draw(st.sampled_from(["", "1", "2", "tag=canary"]))
    return Rollout(
        impact=draw(st.sampled_from(RolloutImpact)),
        max_failures=0,
        waves=make_waves(canary, draw(st.sampled_from([(), (30.0,), (50.0, 50.0)]))),
        settle_s=draw(st.sampled_from([0.0, 0.0, 30.0, 900.0])),
        calendar=draw(calendars),
        **draw(st.sampled_from(_TARGETS)),
    )
