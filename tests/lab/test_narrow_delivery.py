"""Narrow delivery in the whole service and its real server: VMs see only the events that affect them (spec §14.6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.lab import Lab

FLEET = """\
[[hosts]]
name = "h"
count = 3
[[scale_sets]]
name = "gpu"
count = 3
orchestration = "Flexible"
fault_domains = 1
narrow_delivery = {narrow}
"""


def lab_with(narrow: bool, *, enablement: str = "always") -> Lab:
    return Lab.from_text(FLEET.format(narrow=str(narrow).lower()), enablement=enablement)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_with(narrow=True) as lab:
        yield lab


def seen_by(lab: Lab, guest: Any) -> list[list[str]]:
    """The ids of the events that each VM of the lab sees, in the order of the VMs."""
    return [[event["EventId"] for event in guest(vm).events()] for vm in lab.vms]


def test_a_vm_sees_only_the_events_that_hit_it(lab: Lab, guest: Any) -> None:
    first, second, _ = (vm.name for vm in lab.vms)
    one, two = lab.reboot(first), lab.redeploy(second)
    assert seen_by(lab, guest) == [[one.id], [two.id], []]
    assert (one.seen_by, two.seen_by) == ((first,), (second,))
    lab.advance("1h")
    assert (one.finished, two.finished) == (True, True)
    assert seen_by(lab, guest) == [[], [], []]


def test_the_document_of_a_vm_has_what_it_receives(lab: Lab, guest: Any) -> None:
    lab.reboot(lab.vms[0].name)
    lab.redeploy(lab.vms[1].name)
    assert [vm.document() for vm in lab.vms] == [guest(vm).poll().json for vm in lab.vms]
    assert [len(vm.document()["Events"]) for vm in lab.vms] == [1, 1, 0]


def test_without_the_setting_every_vm_of_a_set_with_one_fault_domain_sees_every_event(guest: Any) -> None:
    """Spec §7.2, and §14: off unless a setting turns it on."""
    with lab_with(narrow=False) as lab:
        event = lab.reboot(lab.vms[0].name)
        assert seen_by(lab, guest) == [[event.id]] * 3
        assert "narrow delivery" not in lab.explain(event)


def test_an_event_that_hits_several_vms_is_seen_by_each_of_them(guest: Any) -> None:
    fleet = FLEET.format(narrow="true").replace("count = 3\n[[", "count = 1\n[[") + "update_domains = 1\n"
    with Lab.from_text(fleet) as lab:
        event = lab.freeze(lab.vms[0].name)
        assert set(event.vms) == {vm.name for vm in lab.vms}
        assert seen_by(lab, guest) == [[event.id]] * 3


def test_the_incarnation_is_that_of_the_whole_scope(lab: Lab, guest: Any) -> None:
    """Spec §14.6: it grows although this VM's list stays the same."""
    neighbour = guest(lab.vms[1])
    before = neighbour.poll().json
    lab.reboot(lab.vms[0].name)
    after = neighbour.poll().json
    assert before["Events"] == after["Events"] == []
    assert after["DocumentIncarnation"] == before["DocumentIncarnation"] + 1
    assert guest(lab.vms[0]).poll().json["DocumentIncarnation"] == after["DocumentIncarnation"]


def test_a_vm_of_the_scope_may_approve_an_event_that_it_does_not_see(lab: Lab, guest: Any) -> None:
    """Spec §14.6, §5.3: whether or not it is listed."""
    event, neighbour = lab.reboot(lab.vms[0].name), guest(lab.vms[1])
    assert neighbour.events() == []
    assert neighbour.approve(event.id).status == 200
    assert (event.started, event.approved_by) == (True, lab.vms[1].name)
    assert neighbour.events() == []
    unknown = neighbour.approve("00000000-0000-0000-0000-000000000000")
    assert (unknown.status, unknown.json["error"][:24]) == (400, "Bad request. Unknown Eve")


def test_a_poll_by_any_vm_enables_the_scope(guest: Any) -> None:
    """Spec §14.6, §8.1."""
    with lab_with(narrow=True, enablement="on-request") as lab:
        assert guest(lab.vms[1]).events() == []
        event = lab.reboot(lab.vms[0].name)
        assert event.status == "scheduled"
        assert seen_by(lab, guest) == [[event.id], [], []]


def test_explain_says_which_vms_see_an_event(lab: Lab, guest: Any) -> None:
    first = lab.vms[0].name
    event = lab.reboot(first)
    assert f"Only {first} can see it, because scale set gpu has narrow delivery." in lab.explain(event)
    assert f"It was not delivered to {first} yet." in lab.explain(event)
    assert "It sees only events that affect it (narrow delivery)." in lab.explain(lab.vms[1])
    lab.advance("1h")
    assert "can see it" not in lab.explain(event)
