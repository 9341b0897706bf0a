"""What applying a fleet file would change in the running fleet, and why it may not be applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm
from forewarn.core.fleet_diff import FleetDiff, diff_fleet
from forewarn.core.fleetfile.reader import read_fleet_file

HOSTS = '[[hosts]]\nname = "h"\ncount = 3\n'
WEB = '[[vms]]\nname = "web"\ncount = 2\n'
SET = '[[availability_sets]]\nname = "db"\n'
DB = '[[vms]]\nname = "db"\ncount = 2\navailability_set = "db"\n'
BASE = HOSTS + WEB + SET + DB


class Fleet:
    """A running fleet: a file that was applied, and what has happened since."""

    def __init__(self, text: str = BASE) -> None:
        declared = read_fleet_file(text)
        self.hosts = list(declared.hosts)
        self.vms = [
            replace(vm, vm_id=f"id-{vm.name}", address=vm.address or f"127.0.0.{n}")
            for n, vm in enumerate(declared.vms, 1)
        ]
        self.events: list[Event] = []

    def vm(self, name: str) -> Vm:
        return next(vm for vm in self.vms if vm.name == name)

    def change(self, name: str, **facts: Any) -> None:
        self.vms = [replace(vm, **facts) if vm.name == name else vm for vm in self.vms]

    def delete(self, name: str) -> None:
        self.change(name, removed_at=1.0, host="")

    def event(self, name: str, status: EventState, acts: Sequence[Act] = ()) -> None:
        vm = self.vm(name)
        self.events.append(
            Event(
                id="E1",
                scope_id=vm.scope_id,
                request_id="R1",
                cause=Cause.USER_REDEPLOY,
                requested_by="ann",
                vms=(name,),
                published_at=0.0,
                not_before=900.0,
                status=status,
                acts=tuple(acts),
            )
        )

    def against(self, text: str, **how: bool) -> FleetDiff:
        return diff_fleet(read_fleet_file(text), hosts=self.hosts, vms=self.vms, live_events=self.events, **how)


def names(vms: Sequence[Vm | Host]) -> list[str]:
    return [vm.name for vm in vms]


def test_applying_a_file_to_an_empty_service_adds_everything() -> None:
    declared = read_fleet_file(BASE)
    diff = diff_fleet(declared, hosts=(), vms=(), live_events=())
    assert (diff.hosts_added, diff.added) == (declared.hosts, declared.vms)
    assert diff.problems == ()


def test_applying_the_same_file_again_changes_nothing() -> None:
    diff = Fleet().against(BASE)
    assert diff.is_empty
    assert names(diff.unchanged) == ["web-0", "web-1", "db-0", "db-1"]
    assert diff.to_lines() == ["nothing to do"]


def test_a_file_never_resets_what_the_running_fleet_owns() -> None:
    fleet = Fleet()
    fleet.change("web-0", host="h-2", power=PowerState.STOPPED)
    fleet.change("web-1", host="", power=PowerState.DEALLOCATED)
    fleet.hosts[1] = replace(fleet.hosts[1], health=HostHealth.FAILED)
    assert fleet.against(BASE).is_empty
    assert fleet.against(BASE.replace("count = 2\n", 'count = 2\nhost = "h-1"\n', 1)).is_empty


def test_a_name_keeps_its_first_spelling() -> None:
    assert Fleet().against(BASE.replace('"web"', '"WEB"').replace('"h"', '"H"')).is_empty


def test_a_changed_vm_lists_its_changed_fields() -> None:
    more = 'count = 2\nsize = "L"\ntags = { a = "1" }\naddress = "10.0.0.1"\n'
    diff = Fleet().against(BASE.replace("count = 2\n", more, 1))
    assert [change.old.name for change in diff.changed] == ["web-0", "web-1"]
    fields = {change.field: (change.old, change.new) for change in diff.changed[1].fields}
    assert fields == {
        "size": ("Standard_D2s_v5", "L"),
        "tags": ({}, {"a": "1"}),
        "address": ("127.0.0.2", "10.0.0.2"),
    }
    assert diff.changed[1].new.vm_id == "id-web-1"


def test_update_domains_stay_the_same_when_a_vm_is_inserted_before_others() -> None:
    fleet = Fleet()
    earlier = '[[vms]]\nname = "db-first"\navailability_set = "db"\n'
    diff = fleet.against(HOSTS + WEB + SET + earlier + DB)
    assert names(diff.added) == ["db-first"]
    assert diff.changed == ()


def test_an_update_domain_that_the_file_gives_is_a_change() -> None:
    diff = Fleet().against(BASE + "update_domain = 4\n")
    assert [change.new.update_domain for change in diff.changed] == [4, 4]
    assert diff.problems == ()


def test_a_new_vm_goes_to_the_healthy_host_with_the_fewest_vms() -> None:
    """Spec §6.4, by the current load of the hosts."""
    fleet = Fleet()
    fleet.hosts[0] = replace(fleet.hosts[0], health=HostHealth.DEGRADED)
    for name in ("web-0", "web-1", "db-0", "db-1"):
        fleet.change(name, host="h-1")
    diff = fleet.against(BASE + '[[vms]]\nname = "new"\n')
    assert [(vm.name, vm.host, vm.vm_id) for vm in diff.added] == [("new", "h-2", "")]


def test_a_moving_vm_counts_on_its_destination_host() -> None:
    fleet = Fleet(HOSTS + '[[vms]]\nname = "a"\n')
    act = Act(
        id="E1:a", vm=fleet.vm("a").key, name="a", verb=Verb.REDEPLOY, event_id="E1", from_host="h-0", to_host="h-1"
    )
    fleet.event("a", EventState.STARTED, [act])
    diff = fleet.against(HOSTS + '[[vms]]\nname = "a"\n[[vms]]\nname = "b"\ncount = 2\n')
    assert [vm.host for vm in diff.added] == ["h-0", "h-2"]


def test_vms_and_hosts_that_the_file_lacks_are_removed() -> None:
    diff = Fleet().against(HOSTS + SET + DB)
    assert names(diff.removed) == ["web-0", "web-1"]
    assert diff.problems == ()


def test_vms_and_hosts_that_the_file_lacks_can_be_kept() -> None:
    diff = Fleet().against(HOSTS.replace("3", "2") + SET + DB, remove_missing=False)
    assert diff.is_empty
    assert (names(diff.kept), names(diff.hosts_kept)) == (["web-0", "web-1"], ["h-2"])
    assert diff.problems == ()
    assert "  VM web-0 is not in the file and is kept" in diff.to_lines()


def test_a_deleted_vm_stays_deleted() -> None:
    fleet = Fleet()
    fleet.delete("web-0")
    diff = fleet.against(BASE)
    assert diff.is_empty
    assert names(diff.stay_deleted) == ["web-0"]
    assert diff.to_lines()[0] == "  VM web-0 was deleted and stays deleted"


def test_a_deleted_vm_is_added_again_if_resurrection_is_requested() -> None:
    fleet = Fleet()
    fleet.delete("web-0")
    (vm,) = fleet.against(BASE, resurrect=True).resurrected
    assert (vm.name, vm.vm_id, vm.removed_at, vm.address) == ("web-0", "", None, "127.0.0.1")
    assert vm.host


def test_a_resurrected_vm_gets_another_address_if_its_own_is_taken() -> None:
    fleet = Fleet()
    fleet.delete("web-0")
    fleet.change("web-1", address="127.0.0.1")
    diff = fleet.against(BASE, resurrect=True)
    assert diff.resurrected[0].address == ""
    assert diff.problems == ()


def test_a_vm_with_a_scheduled_event_may_be_removed() -> None:
    """The event is withdrawn by the lifecycle, with history (spec §4.2)."""
    fleet = Fleet()
    fleet.event("web-0", EventState.SCHEDULED)
    assert fleet.against(HOSTS + SET + DB).problems == ()


# Each: a change of the running fleet, the file, the line, the problem, the remedy.
FORBIDDEN = {
    "a VM with a started event": (
        lambda fleet: fleet.event("web-0", EventState.STARTED),
        HOSTS + SET + DB,
        0,
        "VM 'web-0' is not in the file, but event E1 (user redeploy) has started and affects it",
        "apply again when the event is over",
    ),
    "a VM that would change its scope": (
        lambda fleet: None,
        HOSTS + SET + DB + '[[vms]]\nname = "web"\ncount = 2\navailability_set = "db"\n',
        11,
        "VM 'web-0' is in the scope of VM web-0 and cannot move to the scope of availability set db",
        "remove it from the file, apply, put it back",
    ),
    "a VM that would change its zone": (
        lambda fleet: None,
        BASE.replace("count = 2\n", 'count = 2\nzone = "1"\n', 1) + '[[hosts]]\nname = "z"\nzone = "1"\n',
        5,
        "VM 'web-0' is in location 'local', no zone and cannot move to location 'local', zone '1'",
        "remove it from the file, apply, put it back",
    ),
    "a VM with a pending event that would change its update domain": (
        lambda fleet: fleet.event("db-1", EventState.SCHEDULED),
        BASE + "update_domain = 0\n",
        10,
        "VM 'db-1' cannot change from update domain 1 to 0 while event E1 (user redeploy) is scheduled",
        "apply again when the event is over",
    ),
    "a host that still has VMs": (
        lambda fleet: None,
        BASE.replace("count = 3", "count = 2"),
        0,
        "host 'h-2' is not in the file, but VM 'db-0' stays on it",
        "keep the host in the file",
    ),
    "a host that a VM is moving to": (
        lambda fleet: (
            fleet.change("db-0", host="h-0"),
            fleet.event(
                "web-0",
                EventState.STARTED,
                [Act(id="a", vm="v", name="web-0", verb=Verb.REDEPLOY, event_id="E1", to_host="h-2")],
            ),
        ),
        BASE.replace("count = 3", "count = 2"),
        0,
        "host 'h-2' is not in the file, but VM 'web-0' stays on it or moves to it",
        "keep the host in the file",
    ),
    "a host that would be elsewhere than its VMs": (
        lambda fleet: None,
        BASE.replace("count = 3", "count = 2") + '[[hosts]]\nname = "h-2"\nzone = "1"\n',
        0,
        "host 'h-2' cannot move to location 'local', zone '1': VM 'db-0' runs on it",
        "redeploy or remove its VMs first",
    ),
    "a new VM with no healthy host": (
        lambda fleet: setattr(fleet, "hosts", [replace(host, health=HostHealth.FAILED) for host in fleet.hosts]),
        BASE + '[[vms]]\nname = "new"\n',
        14,
        "VM 'new' has no host to run on: there is no healthy host in location 'local', no zone",
        "add or repair a host first",
    ),
    "a new VM on a failed host": (
        lambda fleet: fleet.hosts.__setitem__(0, replace(fleet.hosts[0], health=HostHealth.FAILED)),
        BASE + '[[vms]]\nname = "new"\nhost = "h-0"\n',
        14,
        "VM 'new' cannot start on host 'h-0', which is failed",
        "name another host",
    ),
    "a new VM on a host that is confirmed down": (  # its health may be healthy still
        lambda fleet: fleet.hosts.__setitem__(0, replace(fleet.hosts[0], confirmed_down=True)),
        BASE + '[[vms]]\nname = "new"\nhost = "h-0"\n',
        14,
        "VM 'new' cannot start on host 'h-0', which is confirmed down",
        "name another host",
    ),
    "an address that was given to another VM": (
        lambda fleet: None,
        BASE + '[[vms]]\nname = "new"\naddress = "127.0.0.1"\n',
        14,
        "address '127.0.0.1' would belong to VM 'web-0' and to VM 'new'",
        "another address",
    ),
    "the lab address of another VM": (  # spec §7.4: it would identify both
        lambda fleet: fleet.change("web-0", address="", lab_address="127.0.0.9"),
        BASE + '[[vms]]\nname = "new"\naddress = "127.0.0.9"\n',
        14,
        "address '127.0.0.9' would belong to VM 'web-0' and to VM 'new'",
        "another address",
    ),
}


@pytest.mark.parametrize(("change", "text", "line", "what", "remedy"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_diff_names_the_problems_that_forbid_it(change: Any, text: str, line: int, what: str, remedy: str) -> None:
    fleet = Fleet()
    change(fleet)
    diff = fleet.against(text)
    assert diff.problems
    problem = diff.problems[0]
    assert problem.line == line
    assert what in problem.message
    assert remedy in problem.remedy


def test_kept_vms_count_towards_the_size_of_a_placement_group() -> None:
    """Spec §7.1."""
    fleet = Fleet(HOSTS + '[[scale_sets]]\nname = "s"\ncount = 60\nplacement_group = "pg"\n')
    text = (
        HOSTS + '[[scale_sets]]\nname = "s"\nplacement_group = "pg"\n[[vms]]\nname = "x"\ncount = 41\nscale_set = "s"\n'
    )
    assert fleet.against(text).problems == ()
    (problem,) = fleet.against(text, remove_missing=False).problems
    assert "placement group 'pg' of scale set 's' would have 101 VMs" in problem.message


def test_a_resurrected_vm_may_be_in_another_scope() -> None:
    """This is the remedy that a refused move names."""
    fleet = Fleet()
    fleet.delete("web-0")
    fleet.delete("web-1")
    text = HOSTS + SET + DB + '[[vms]]\nname = "web"\ncount = 2\navailability_set = "db"\n'
    diff = fleet.against(text, resurrect=True)
    assert [vm.availability_set for vm in diff.resurrected] == ["db", "db"]
    assert diff.problems == ()


def test_a_diff_prints_one_line_per_change() -> None:
    fleet = Fleet()
    fleet.delete("db-1")
    text = '[[hosts]]\nname = "h"\ncount = 4\n[[vms]]\nname = "web-0"\nsize = "L"\n[[vms]]\nname = "new"\n' + SET + DB
    assert fleet.against(text).to_lines() == [
        "+ host h-3",
        "+ VM new on h-1",
        '~ VM web-0: size "Standard_D2s_v5" → "L"',
        "- VM web-1",
        "  VM db-1 was deleted and stays deleted",
        "VMs: 1 to add, 1 to change, 1 to remove; hosts: 1 to add, 0 to change, 0 to remove",
    ]


def test_a_long_diff_is_shortened() -> None:
    text = HOSTS + '[[vms]]\nname = "web"\ncount = 1000\n'
    lines = Fleet(HOSTS).against(text).to_lines(limit=2)
    assert lines[:3] == ["+ VM web-0 on h-0", "+ VM web-1 on h-1", "+ … and 998 more"]
    assert len(Fleet(HOSTS).against(text).to_lines(limit=None)) == 1001


def test_a_refused_diff_names_the_line_of_each_problem() -> None:
    fleet = Fleet()
    fleet.event("web-0", EventState.STARTED)
    diff = fleet.against(HOSTS + SET + DB)
    assert diff.to_lines()[-2].startswith("! fleet.toml: VM 'web-0' is not in the file")
    assert diff.to_lines()[-1].endswith("cannot be applied")


def test_added_and_changed_vms_and_hosts_are_written() -> None:
    diff = Fleet().against(BASE.replace("count = 2\n", 'count = 3\nsize = "L"\n', 1) + '[[hosts]]\nname = "new"\n')
    assert names(diff.vms_to_set) == ["web-2", "web-0", "web-1"]
    assert names(diff.hosts_to_set) == ["new"]


def test_a_hundred_thousand_vms_can_be_compared() -> None:
    sets = '[[scale_sets]]\nname = "s"\ncount = 50000\n'
    text = f'[[hosts]]\nname = "h"\ncount = 100\n[[vms]]\nname = "v"\ncount = 50000\n{sets}'
    diff = Fleet(text.replace("50000", "25000")).against(text)
    assert (len(diff.added), len(diff.unchanged)) == (50_000, 50_000)
    assert diff.problems == ()
