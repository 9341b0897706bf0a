"""The real service with `hypervisor = "libvirt"`, on libvirt's test driver inside of its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess, eventually

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = pytest.mark.vms
FLEET = '[[hosts]]\nname = "kvm-a"\n[[vms]]\nname = "test"\nhost = "kvm-a"\n'
SETTINGS = 'hypervisor = "libvirt"\n[libvirt.hosts.kvm-a]\nuri = "test:///default"\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS)
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET, arguments=("--config", str(config))) as service:
        yield service


def perform(service: ServiceProcess, ask: str) -> Any:
    """Request an operation on the VM, approve its event if that waits for it, and return its act once it is over."""
    answer = service.api("POST", "/requests", {"operation": ask, "vms": ["test"]})
    assert answer.status in (200, 201, 202), answer.body
    event = answer.json["events"][0]
    if event["status"] == "scheduled":
        service.api("POST", f"/events/{event['id']}/approve")
    eventually(lambda: service.api("GET", f"/events/{event['id']}").json["status"] == "over", within_s=60)
    (act,) = service.api("GET", f"/events/{event['id']}").json["acts"]
    return act


def test_an_announced_restart_shuts_the_domain_down_and_starts_it(service: ServiceProcess) -> None:
    act = perform(service, "restart")
    assert (act["verb"], act["ok"]) == ("reboot", True), act
    mark = (service.data / "machines" / "definitions" / "kvm-a" / "test.xml").read_text()
    assert "urn:forewarn:mark:1" in mark


def test_a_domain_is_powered_off_and_started(service: ServiceProcess) -> None:
    for ask in ("power-off", "start"):
        act = perform(service, ask)
        assert act["ok"] is True, act
    assert service.api("GET", "/vms/test").json["power"] == "running"
