"""Maintenance requests in a lab, and what VMs see of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from forewarn.errors import NotFound, Refused, Rejected
from forewarn.lab import Lab
from forewarn.lab.values import LabEvent

FIFTEEN, TEN = timedelta(minutes=15), timedelta(minutes=10)
ASKED = [
    pytest.param(lambda lab: lab.reboot("web-0"), "Reboot", "User", FIFTEEN, "reboot", id="reboot"),
    pytest.param(lambda lab: lab.redeploy("web-0"), "Redeploy", "User", TEN, "redeploy", id="redeploy"),
    pytest.param(lambda lab: lab.evict("cheap"), "Preempt", "Platform", timedelta(seconds=30), "evict", id="evict"),
    pytest.param(
        lambda lab: lab.terminate("web-0"), "Terminate", "User", timedelta(minutes=5), "delete", id="terminate"
    ),
    pytest.param(lambda lab: lab.delete("web-0"), "Terminate", "User", timedelta(minutes=5), "delete", id="delete"),
    pytest.param(lambda lab: lab.freeze("web-0"), "Freeze", "Platform", FIFTEEN, "freeze", id="freeze"),
    pytest.param(lambda lab: lab.migrate("web-0"), "Freeze", "Platform", FIFTEEN, "migrate", id="migrate"),
    pytest.param(lambda lab: lab.reboot_host("web-0"), "Reboot", "Platform", FIFTEEN, "reboot", id="reboot-host"),
    pytest.param(
        lambda lab: lab.degrade("host-0", in_="7d")[0], "Redeploy", "Platform", timedelta(days=7), "redeploy",
        id="degrade",
    ),
]  # fmt: skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(vms=["web-0", "web-1"], spot=["cheap"]) as lab:
        yield lab


@pytest.mark.parametrize(("ask", "kind", "source", "notice", "verb"), ASKED)
def test_maintenance_is_published_to_its_vm_and_performed_after_its_notice(
    lab: Lab, guest: Any, ask: Callable[[Lab], LabEvent], kind: str, source: str, notice: timedelta, verb: str
) -> None:
    event = ask(lab)
    (name,) = event.vms
    (seen,) = guest(lab.vm(name)).events()
    assert (seen["EventId"], seen["EventType"], seen["EventSource"]) == (event.id, kind, source)
    assert (seen["EventStatus"], seen["Resources"]) == ("Scheduled", [name])
    assert (event.kind, event.status, event.notice, event.notice_given) == (kind, "scheduled", notice, None)
    assert event.not_before - lab.now == notice
    assert event.seen_by == (name,)
    assert (event.approved, event.started, event.over) == (False, False, False)

    lab.advance(notice - timedelta(seconds=1))
    assert not event.started
    lab.advance("1s")
    assert event.started
    assert event.notice_given == notice
    assert event.started_at == lab.now
    lab.run_until(lambda: event.over, within="10m")
    assert event.finished
    assert (event.approved, event.approved_by, event.status) == (False, "", "over")
    assert event.over_at == lab.now
    assert lab.vm(name).performed == (verb,)


def test_an_approval_starts_an_event_before_it_is_answered(lab: Lab, guest: Any) -> None:
    """Spec §5.1: the next poll shows it, so that no test has to wait."""
    event, handler = lab.reboot("web-0"), guest(lab.vm("web-0"))
    assert handler.approve(event.id).status == 200
    assert handler.events()[0]["EventStatus"] == "Started"
    assert event.approved_by == "web-0"
    assert event.notice_given == timedelta(0)
    lab.advance("30s")
    assert event.finished
    assert lab.vm("web-0").reboots == 1
    assert lab.vm("web-1").reboots == 0


def test_a_vm_does_not_see_events_of_other_scopes(lab: Lab, guest: Any) -> None:
    lab.reboot("web-0")
    assert guest(lab.vm("web-1")).events() == []
    assert lab.vm("web-1").document() == {"DocumentIncarnation": 1, "Events": []}
    assert len(lab.vm("web-0").document()["Events"]) == 1
    assert [vm.polls for vm in lab.vms] == [0, 1, 0]


def test_vms_of_an_availability_set_see_each_others_events(guest: Any) -> None:
    with Lab(vms=["db-0", "db-1"], availability_set="db") as lab:
        event = lab.reboot("db-0")
        assert guest(lab.vm("db-1")).events()[0]["Resources"] == ["db-0"]
        assert event.seen_by == ("db-1",)


def test_a_rollout_takes_one_update_domain_at_a_time() -> None:
    with Lab(vms=["db-0", "db-1"], availability_set="db") as lab:
        (first,) = lab.roll_out("db-0", impact="update")
        assert [event.vms for event in lab.events] == [("db-0",)]
        lab.run_until(lambda: first.finished)
        assert [event.vms for event in lab.events] == [("db-0",), ("db-1",)]
        with pytest.raises(Rejected, match="impact 'flood' does not exist: choose from update, migrate, reboot"):
            lab.roll_out("db-0", impact="flood")


def test_a_host_that_fails_gives_no_notice(lab: Lab, guest: Any) -> None:
    vm = lab.vm("web-0")
    (event,) = lab.fail_host(vm.host)
    assert event.started
    assert event.notice_given == timedelta(0)
    assert guest(vm).events()[0]["EventStatus"] == "Started"
    lab.advance("2m")
    assert event.finished
    assert vm.host == "host-3"


def test_a_notice_may_be_shorter_than_the_platforms(lab: Lab) -> None:
    event = lab.reboot("web-0", notice="8s")
    assert event.notice == timedelta(seconds=8)
    assert lab.freeze("web-1", notice=timedelta(seconds=9)).notice == timedelta(seconds=9)
    assert lab.degrade("host-2", in_=10)[0].notice == timedelta(seconds=10)


def test_an_evicted_vm_is_deallocated_until_it_is_started(lab: Lab) -> None:
    event = lab.evict("cheap")
    lab.run_until(lambda: event.finished)
    assert lab.vm("cheap").power == "deallocated"
    lab.start("cheap")
    lab.advance("5m")
    assert lab.vm("cheap").power == "running"


def test_power_off_has_no_event_that_vms_see(lab: Lab, guest: Any) -> None:
    event = lab.power_off("web-0")
    assert not event.listed
    assert guest(lab.vm("web-0")).events() == []
    lab.advance("1m")
    assert (lab.vm("web-0").power, event.kind) == ("stopped", "Power-off")


def test_a_deleted_vm_is_unknown_to_the_endpoint(lab: Lab, guest: Any) -> None:
    event = lab.terminate("web-0")
    lab.run_until(lambda: event.finished)
    assert lab.vm("web-0").power == "deleted"
    assert guest(lab.vm("web-0")).poll().status == 404


def test_acts_can_be_made_to_fail_or_to_be_slow() -> None:
    rules: list[dict[str, Any]] = [{"vm": "web-0", "then": "fail"}, {"verb": "freeze", "then": "take", "seconds": 3600}]
    with Lab(vms=["web-0", "web-1"], simulate=rules) as lab:
        event, long = lab.reboot("web-0", notice="1s"), lab.freeze("web-1", notice="1s")
        lab.advance("59m")
        assert (event.failed, event.finished, event.over) == (True, False, True)
        assert lab.vm("web-0").reboots == 0
        assert long.started
        assert not long.over
        lab.advance("2m")
        assert long.finished
    with pytest.raises(Rejected, match="hypervisor rule"):
        Lab(simulate=[{"then": "dance"}])


def test_an_operator_can_approve_or_withdraw(lab: Lab) -> None:
    event, other = lab.reboot("web-0"), lab.reboot("web-1")
    lab.approve(event)
    assert event.approved_by == "the test"
    lab.withdraw(other)
    assert other.withdrawn
    assert other.over
    assert not other.started
    assert not other.failed
    with pytest.raises(
        Refused, match=r"has started and can no longer be withdrawn: the explanation of event .* says what"
    ):
        lab.withdraw(event)


def test_host_maintenance_that_must_wait_for_another_update_domain_is_refused() -> None:
    fleet = """
        [[hosts]]
        name = "h"
        [[availability_sets]]
        name = "db"
        [[vms]]
        name = "db-{n}"
        count = 2
        availability_set = "db"
    """
    with Lab.from_text(fleet) as lab, pytest.raises(Refused, match="waits for another update domain on h"):
        lab.freeze("db-1")


@pytest.mark.parametrize("ask", [Lab.freeze, Lab.migrate, Lab.reboot_host])
def test_host_maintenance_that_an_earlier_request_serves_is_refused_with_that_event(
    lab: Lab, ask: Callable[[Lab, str], LabEvent]
) -> None:
    event = ask(lab, "web-0")
    with pytest.raises(Refused, match=f"of web-0 is pending already: use event {event.id}, "):
        ask(lab, "web-0")
    lab.advance("1h")

    assert lab.events == (event,)


def test_mistakes_are_refused_with_one_sentence(lab: Lab) -> None:
    with pytest.raises(NotFound, match=r"the lab has no VM 'web-9': it has web-0, web-1, cheap"):
        lab.reboot("web-9")
    with pytest.raises(Refused, match="is not a Spot VM"):
        lab.evict("web-0")
    with pytest.raises(Rejected, match=r"'soon' is not a duration: write it like 15m"):
        lab.reboot("web-0", notice="soon")


def test_host_maintenance_returns_the_event_of_the_vm_that_was_named(guest: Any) -> None:
    """Two VMs of one host have the same name, in two resource groups."""
    groups = "".join(f'[[vms]]\nname = "web"\nresource_group = "{group}"\nhost = "host-0"\n' for group in "ab")
    with Lab.from_text(f'[[hosts]]\nname = "host-0"\n{groups}') as lab:
        event = lab.freeze("b/web")
        assert [listed["EventId"] for listed in guest(lab.vm("b/web")).events()] == [event.id]
