"""A VM never runs twice: the service is killed during moves of a real guest that would notice a second copy.

The disk is shared by both hosts, without QEMU's locks, and the guest reads before each write what it wrote last.
"""

from __future__ import annotations

import pytest

from forewarn.machines.qemu.processes import QemuInstance
from tests.support.service_process import eventually
from tests.vms.conftest import CloneGuest
from tests.vms.hosts import HOST_NAMES, VM, QemuSite
from tests.vms.service import QemuService

FIRST, SECOND = HOST_NAMES
MIGRATE = (
    *("step:prepare", "before:copy_definition", "after:copy_definition", "before:prepare_to_receive", "spawned"),
    *("listening", "after:prepare_to_receive", "step:send", "before:send", "after:send", "step:activate"),
    *("before:resume", "after:resume", "step:clean-up", "before:power_off", "after:power_off", "before:remove"),
    "after:remove",
)
REDEPLOY = (
    *("step:prepare", "before:copy_definition", "after:copy_definition", "step:shut-down", "before:press_power_button"),
    *("after:press_power_button", "step:activate", "before:power_on", "spawned", "after:power_on", "step:clean-up"),
    *("before:remove", "after:remove"),
)
IN_SHORT_RUNS = {
    *(("migrate", point) for point in ("spawned", "after:send", "step:activate", "after:resume")),
    *(("redeploy", point) for point in ("after:press_power_button", "spawned")),
}
CASES = [(verb, point) for verb, points in (("migrate", MIGRATE), ("redeploy", REDEPLOY)) for point in points]


def alive_hosts(site: QemuSite) -> list[str]:
    return [name for name, host in site.hosts.items() if QemuInstance(name, VM, host.directory).is_alive()]


def check_single_copy_after_a_crash(site: QemuSite, verb: str, crash_point: str) -> None:
    with QemuService(site, crash_point=crash_point) as service:
        service.wait_until_polled()
        event_id = service.roll_out(verb) if verb == "migrate" else service.request(verb)
        service.wait_until_killed()
        service.start()
        service.wait_for_end(event_id)
        assert service.host_of_vm() == SECOND
    source, destination = site.hosts[FIRST], site.hosts[SECOND]
    destination.wait_for_ticks(5)
    assert eventually(lambda: alive_hosts(site) == [SECOND])
    assert [name for name, host in site.hosts.items() if (host.directory / f"{VM}.toml").exists()] == [SECOND]
    assert site.conflicts() == []
    if verb == "migrate":
        assert destination.boots() == []
        assert not set(source.ticks()) & set(destination.ticks())
    else:
        assert [len(host.boots()) for host in (source, destination)] == [1, 1]


@pytest.mark.vms
def test_a_guest_notices_a_second_copy_of_itself(site: QemuSite, clone_guest: CloneGuest) -> None:
    clone_guest(site, FIRST)
    assert site.conflicts() == []
    clone_guest(site, SECOND)
    assert eventually(site.conflicts, within_s=60)
    assert set(site.hosts[FIRST].ticks()) & set(site.hosts[SECOND].ticks())


@pytest.mark.vms
@pytest.mark.parametrize(("verb", "crash_point"), [case for case in CASES if case in IN_SHORT_RUNS])
def test_a_vm_runs_once_although_the_service_was_killed(
    site: QemuSite, clone_guest: CloneGuest, verb: str, crash_point: str
) -> None:
    clone_guest(site)
    check_single_copy_after_a_crash(site, verb, crash_point)


@pytest.mark.vms_long
@pytest.mark.parametrize(("verb", "crash_point"), [case for case in CASES if case not in IN_SHORT_RUNS])
def test_a_vm_runs_once_wherever_the_service_was_killed(
    site: QemuSite, clone_guest: CloneGuest, verb: str, crash_point: str
) -> None:
    clone_guest(site)
    check_single_copy_after_a_crash(site, verb, crash_point)
