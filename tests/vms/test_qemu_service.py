"""Events become real: the service with real QEMU, and a guest that polls at 169.254.169.254 and approves by itself."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import eventually
from tests.vms.conftest import CloneGuest
from tests.vms.hosts import HOST_NAMES, HostSetup, QemuSite, wait_for
from tests.vms.service import QemuService

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES
FREEZE_S = 9  # of a host update, as the document announces it


@pytest.fixture
def service(site: QemuSite, clone_guest: CloneGuest) -> Iterator[QemuService]:
    clone_guest(site)
    with QemuService(site) as service:
        service.wait_until_polled()
        yield service


def guest_saw(host: HostSetup, kind: str, event_id: str) -> None:
    """Check that the guest saw the event before it approved it."""
    wait_for(rf"^approved {event_id}", host.console)
    seen = host.console.read_text(errors="replace").partition(f"approved {event_id}")[0]
    assert re.search(rf'^doc .*"EventId": *"{event_id}".*"EventType": *"{kind}"', seen, re.MULTILINE)


def test_a_host_update_stops_the_guest_for_the_announced_seconds(service: QemuService) -> None:
    host = service.site.hosts[FIRST]
    event_id = service.roll_out("update")
    guest_saw(host, "Freeze", event_id)
    longest = 0.0
    tick, changed_at = host.last_tick(), time.monotonic()
    while service.api("GET", f"/events/{event_id}").json["status"] != "over":
        now = time.monotonic()
        if (latest := host.last_tick()) != tick:
            longest = max(longest, now - changed_at)
            tick, changed_at = latest, now
    host.wait_for_ticks()
    longest = max(longest, time.monotonic() - changed_at)
    assert longest >= FREEZE_S - 1  # the time between two looks, on a busy machine
    assert len(host.boots()) == 1
    assert any("paused for" in text for text in service.wait_for_end(event_id))


def test_a_restart_boots_the_guest_again(service: QemuService) -> None:
    host = service.site.hosts[FIRST]
    event_id = service.request("restart")
    guest_saw(host, "Reboot", event_id)
    service.wait_for_end(event_id)
    first, second = eventually(lambda: host.boots() if len(host.boots()) == 2 else [], within_s=90)
    assert first != second
    host.wait_for_ticks()
    assert "data used" in host.console.read_text()
    assert "ephemeral used" in host.console.read_text()


def test_a_live_migration_keeps_memory_and_a_tcp_connection(service: QemuService, tmp_path: Path) -> None:
    site, received = service.site, tmp_path / "received"
    source, destination = site.hosts[FIRST], site.hosts[SECOND]
    peer = site.listen_as_peer(received)
    try:
        wait_for(r"^\d+$", received)
        event_id = service.roll_out("migrate")
        guest_saw(source, "Freeze", event_id)
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
    assert not site.hosts[FIRST].directory.joinpath("web-0.toml").exists()
    wait_for(r"^doc \{", destination.console)


def test_a_redeploy_loses_the_ephemeral_disk_and_keeps_the_other(service: QemuService) -> None:
    source, destination = (service.site.hosts[name] for name in HOST_NAMES)
    event_id = service.request("redeploy")
    guest_saw(source, "Redeploy", event_id)
    service.wait_for_end(event_id)
    assert service.host_of_vm() == SECOND
    destination.wait_for_ticks()
    text = destination.console.read_text()
    assert "data used" in text
    assert "ephemeral empty" in text
    assert destination.boots()[0] != source.boots()[0]
    assert not source.directory.joinpath("web-0.toml").exists()


def test_an_eviction_ends_the_vm_and_keeps_its_disk(service: QemuService) -> None:
    host = service.site.hosts[FIRST]
    event_id = service.request("evict")
    guest_saw(host, "Preempt", event_id)
    service.wait_for_end(event_id)
    assert service.host_of_vm() == ""
    assert [path.name for path in host.directory.iterdir()] == ["console.log"]
    assert service.site.data_disk.exists()
