"""The fleets of cases: which VMs each layout has."""

from __future__ import annotations

from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.crash_test.case import Layout
from forewarn.crash_test.claims import HandlerProfile
from forewarn.lab.arguments import fleet_file_text

# Names of VMs and hostnames differ here: workers_0 has the hostname worker000000. There is one spare host.
_SCALE_SET_FLEET = """
[[hosts]]
name = "host-{n}"
count = 4

[[scale_sets]]
name = "workers"
count = 3
computer_name_prefix = "worker"
update_domains = 3
terminate_notification = 5
"""


def declare_case_fleet(layout: Layout, vm: str = "") -> DeclaredFleet:
    """Return the fleet of this layout. Each VM is on a host of its own, and one more host is free."""
    return read_fleet_file(_fleet_text(layout, vm), source=f"the layout {layout}")


def _fleet_text(layout: Layout, vm: str) -> str:
    match layout:
        case Layout.SINGLE:
            return fleet_file_text([vm or "web-0"])
        case Layout.CAPITALS:
            return fleet_file_text([vm or "Web-0"])
        case Layout.SPOT:
            return fleet_file_text([], spot=[vm or "spot-0"])
        case Layout.SET:
            neighbours = [name for name in ("db-1", "db-2", "db-3") if name != vm.lower()]
            return fleet_file_text([vm or "db-0", *neighbours[:2]], availability_set="db")
        case Layout.SCALE_SET:
            return _SCALE_SET_FLEET


def vms_with_handler(fleet: DeclaredFleet, profile: HandlerProfile) -> tuple[str, ...]:
    """Return the names of the VMs on which a copy of the handler runs, in the order of the fleet."""
    names = tuple(vm.name for vm in fleet.vms)
    return names if profile is HandlerProfile.CLUSTER else names[:1]
