"""A host with one tap per VM, which are identified by the device (spec §2.1, §7.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network.conftest import EventsOf, World
from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

MANY = 20
NOT_FOUND = (404, '{ "error": "Not found" }')


def fleet(count: int) -> str:
    return f'[[hosts]]\nname = "host-{{n}}"\ncount = 3\n\n[[vms]]\nname = "web-{{n}}"\ncount = {count}\n'


def by_device(count: int) -> str:
    one = '[[listeners]]\nby = "device"\ndevice = "tap{n}"\nvm = "web-{n}"\n'
    return "".join(one.replace("{n}", str(n)) for n in range(count))


def test_vms_with_the_same_address_and_port_see_their_own_documents(
    world: World, events_of: EventsOf, poll: str
) -> None:
    host = world.host()
    vms = [world.vm(f"vm{n}", host, f"tap{n}") for n in range(MANY)]
    service = world.service(host, fleet(MANY), by_device(MANY))

    connections = [vm.connect(source="10.0.0.4", port=40000) for vm in vms]
    assert [connection.ask() for connection in connections] == [(200, f"web-{n}") for n in range(MANY)]

    event_id = service.restart_vm("web-7")
    assert [events_of(connection.ask(poll)) for connection in connections] == [
        [event_id] if n == 7 else [] for n in range(MANY)
    ]


def test_the_service_listens_again_on_a_device_that_is_created_again(world: World) -> None:
    host = world.host()
    vms = [world.vm(f"vm{n}", host, f"tap{n}") for n in range(2)]
    world.service(host, fleet(2), by_device(2))
    assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]
    for _ in range(2):
        host.ip("link del tap0")
        assert vms[1].ask() == (200, "web-1"), "the other VM is still served"
        world.plug(vms[0], host, "tap0")
        assert eventually(lambda: not vms[0].gets_nothing())
        assert vms[0].ask() == (200, "web-0")


def test_the_service_waits_for_a_missing_device_and_logs_it_once(world: World) -> None:
    host = world.host()
    early = world.vm("vm0", host, "tap0")
    service = world.service(host, fleet(2), by_device(2))
    assert early.ask() == (200, "web-0")
    assert service.open_names() == ["169.254.169.254:80 by device tap0"]

    late = world.vm("vm1", host, "tap1")
    eventually(lambda: len(service.open_names()) == 2)
    assert late.ask() == (200, "web-1")
    lines = service.output().splitlines()
    assert sum("not listening on 169.254.169.254:80 by device tap1 yet: device 'tap1'" in line for line in lines) == 1
    assert sum("listening on 169.254.169.254:80 by device tap1 now" in line for line in lines) == 1


def test_a_renamed_tap_no_longer_identifies_its_vm(world: World) -> None:
    """The settings assign a VM to the name of a device, so the name counts."""
    host = world.host()
    first, second = world.vm("vm0", host, "tap0"), world.vm("vm1", host, "tap1")
    service = world.service(host, fleet(2), by_device(2))
    assert (first.ask(), second.ask()) == ((200, "web-0"), (200, "web-1"))
    host.ip("link set tap0 down", "link set tap0 name other", "link set other up")
    eventually(lambda: service.open_names() == ["169.254.169.254:80 by device tap1"])
    assert first.gets_nothing()
    assert second.ask() == (200, "web-1")


def test_an_unassigned_device_gets_no_response_and_a_removed_vm_gets_404(world: World, poll: str) -> None:
    """Spec §10: an unknown caller learns nothing."""
    host = world.host()
    removed, unassigned = world.vm("vm0", host, "tap0"), world.vm("vm9", host, "tap9")
    service = world.service(host, fleet(2), by_device(1))
    assert unassigned.gets_nothing()
    assert removed.ask() == (200, "web-0")
    assert service.api("DELETE", "/fleet/vms/web-0").status < 300
    for target in (poll, "/metadata/versions", "/"):
        assert removed.ask(target) == NOT_FOUND


def test_with_taps_nft_vms_are_refused_at_once_while_no_service_runs(world: World, rules: Path) -> None:
    """Clients without a timeout would hang if there were no response."""
    host = world.host()
    vms = [world.vm(f"vm{n}", host, f"tap{n}") for n in range(2)]
    assert vms[0].gets_nothing()

    host.nft("-f", str(rules / "taps.nft"))
    host.sysctl(fwmark_reflect=1)
    for n in range(2):
        host.nft("add", "element", "ip", "forewarn_taps", "mark_of", f'{{ "tap{n}" : {n + 1} }}')
        host.ip(f"rule add fwmark {n + 1} lookup {101 + n}", f"route add default dev tap{n} table {101 + n}")
    for vm in vms:
        with pytest.raises(ConnectionRefusedError):
            vm.connect(source="10.0.0.4", port=40000)

    world.service(host, fleet(2), by_device(2))
    connections = [vm.connect(source="10.0.0.4", port=40001) for vm in vms]
    assert [connection.ask() for connection in connections] == [(200, "web-0"), (200, "web-1")]
