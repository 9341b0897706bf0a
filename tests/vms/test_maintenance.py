"""Events become real: in a real guest Pacemaker's agent polls and approves, and the service acts on the VM.

Each test runs with QEMU and with libvirt; libvirt's live migration is among the long tests. The agent is
`azure-events-az` of Debian's package resource-agents; scripts stand in for the commands of its cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.service_process import eventually
from tests.vms.hosts import HOST_NAMES, START_S, Site, wait_for
from tests.vms.libvirt_hosts import LibvirtSite
from tests.vms.service import VmService

pytestmark = pytest.mark.timeout(1200)
FIRST, SECOND = HOST_NAMES
FREEZE_S = 9  # of a host update, as the document announces it
LONG_NOTICE_S = 600  # so that a slow guest can approve before its notice ends

StartService = Callable[..., VmService]
with_both = pytest.mark.parametrize("start", ["qemu", "libvirt"], indirect=True)


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartService]:
    """Start the service for a site whose guest runs; returns when the agent in the guest polls."""
    site: Site = request.getfixturevalue(f"{request.param}_agent_site")
    with ExitStack() as stack:

        def start(*, has_disks: bool = True) -> VmService:
            if isinstance(site, LibvirtSite):
                site.start_guest(has_disks=has_disks)
            service = VmService(site, data=tmp_path / "data")
            stack.enter_context(service)
            service.wait_until_polled()
            return service

        yield start


@pytest.mark.vms
@with_both
def test_a_host_update_stops_the_guest_for_the_announced_seconds(start: StartService) -> None:
    service = start()
    host = service.site.hosts[FIRST]
    begin = len(host.console_text())
    wait_for("^clocks ", host.console, after=begin)
    event_id = service.roll_out("update")
    service.check_approved_by_agent(host, "Freeze", event_id)
    assert any("paused for" in text for text in service.wait_for_end(event_id))
    eventually(lambda: host.paused_s(after=begin) >= FREEZE_S - 1)  # its real-time clock has whole seconds
    ticks = host.ticks()
    assert ticks == list(range(ticks[0], ticks[-1] + 1)), "the guest counted on from where it was stopped"
    assert len(host.boots()) == 1


@pytest.mark.vms
@with_both
def test_a_restart_boots_the_guest_again(start: StartService) -> None:
    service = start()
    host = service.site.hosts[FIRST]
    event_id = service.request("restart")
    service.check_approved_by_agent(host, "Reboot", event_id)
    service.wait_for_end(event_id)
    first, second = eventually(lambda: host.boots() if len(host.boots()) == 2 else [], within_s=START_S)
    assert first != second
    host.wait_for_ticks()
    assert "data used" in host.console_text()
    assert "ephemeral used" in host.console_text()


@pytest.mark.parametrize(
    "start",
    [pytest.param("qemu", marks=pytest.mark.vms), pytest.param("libvirt", marks=pytest.mark.vms_long)],
    indirect=True,
)
def test_a_live_migration_keeps_memory_and_a_tcp_connection(start: StartService, tmp_path: Path) -> None:
    service = start(has_disks=False)  # libvirt migrates no VM with disks on a local file system
    site, received = service.site, tmp_path / "received"
    source, destination = site.hosts[FIRST], site.hosts[SECOND]
    peer = site.listen_as_peer(received)
    try:
        wait_for(r"^\d+$", received)
        event_id = service.roll_out("migrate")
        service.check_approved_by_agent(source, "Freeze", event_id)
        wait_for(r"^tick \d+", destination.console)
        site.route_to(SECOND)
        notes = service.wait_for_end(event_id)
        assert any("now on 'host-2'" in note for note in notes), notes
        assert service.host_of_vm() == SECOND
        last = destination.wait_for_ticks(10)
        wait_for(rf"^{last}$", received)
        numbers = [int(line) for line in received.read_text().split()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert peer.poll() is None
    finally:
        peer.kill()
        peer.communicate()
    assert (len(source.boots()), destination.boots()) == (1, [])
    on_source, on_destination = (set(host.ticks()) for host in (source, destination))
    assert not on_source & on_destination
    assert min(on_destination) - max(on_source) in (1, 2)  # the line on the way was cut in two
    assert not site.knows_vm(FIRST)
    wait_for(r"remove finished local clusterEvent", destination.console)


@pytest.mark.vms
@with_both
def test_a_redeploy_loses_the_ephemeral_disk_and_keeps_the_other(start: StartService) -> None:
    service = start()
    source, destination = (service.site.hosts[name] for name in HOST_NAMES)
    event_id = service.request("redeploy")
    service.check_approved_by_agent(source, "Redeploy", event_id)
    service.wait_for_end(event_id)
    assert service.host_of_vm() == SECOND
    destination.wait_for_ticks()
    text = destination.console_text()
    assert "data used" in text
    assert "ephemeral empty" in text
    assert destination.boots()[0] != source.boots()[0]
    assert not service.site.knows_vm(FIRST)


@pytest.mark.vms
@with_both
def test_an_eviction_ends_the_vm_and_keeps_its_disk(start: StartService) -> None:
    service = start()
    host = service.site.hosts[FIRST]
    event_id = service.request("evict", notice_s=LONG_NOTICE_S)
    service.check_approved_by_agent(host, "Preempt", event_id)
    service.wait_for_end(event_id)
    assert service.host_of_vm() == ""
    assert not service.site.knows_vm(FIRST)
    assert b"used" in service.site.data_disk.read_bytes()


@pytest.mark.vms_long
@pytest.mark.parametrize("start", ["libvirt"], indirect=True)
@pytest.mark.parametrize(("kind", "boots"), [("migrate", 1), ("redeploy", 2)])
def test_a_vm_whose_destination_lacks_its_tap_stays_on_its_host_or_comes_back(
    start: StartService, kind: str, boots: int
) -> None:
    service = start(has_disks=kind == "redeploy")
    site, source = service.site, service.site.hosts[FIRST]
    site.remove_tap(SECOND)
    try:
        event_id = service.roll_out("migrate") if kind == "migrate" else service.request("redeploy")
        notes = service.wait_for_end(event_id)
    finally:
        site.add_tap(SECOND)
    assert any("specified dev doesn't exist" in note for note in notes), notes
    assert service.host_of_vm() == FIRST
    eventually(lambda: len(source.boots()) == boots, within_s=START_S)
    source.wait_for_ticks()
    assert site.hosts[SECOND].boots() == []
