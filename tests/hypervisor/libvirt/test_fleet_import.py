"""The fleet file that is written from the domains of hosts."""

from __future__ import annotations

import tomllib

import pytest

from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.errors import Rejected
from forewarn.machines.libvirt.domain_state import DomainDefinition, DomainDisk, DomainInterface
from forewarn.machines.libvirt.fleet_import import (
    ImportedHost,
    ImportedVm,
    plan_import,
    render_fleet_file,
    render_settings,
    split_named_uri,
)


def a_vm(
    name: str,
    host: str,
    *,
    runs: bool = True,
    is_stored: bool = True,
    is_windows: bool = False,
    disks: tuple[DomainDisk, ...] = (),
    interfaces: tuple[DomainInterface, ...] = (),
) -> ImportedVm:
    definition = DomainDefinition(
        name=name, uuid="", memory_mib=512, cpus=2, is_windows=is_windows, disks=disks, interfaces=interfaces
    )
    return ImportedVm(host=host, is_running=runs, is_stored=is_stored, definition=definition)


def a_host(name: str, *domains: ImportedVm) -> ImportedHost:
    return ImportedHost(name=name, uri=f"qemu+ssh://{name}/system", cpu_model="EPYC", domains=domains)


def test_a_fleet_file_names_each_host_and_vm_and_says_what_they_consist_of() -> None:
    disks = (DomainDisk(target="vda", source="/images/a\nb"), DomainDisk(target="vdb", source="/x", is_ephemeral=True))
    interfaces = (DomainInterface(mac="52:54:00:00:00:01", tap="vnet0", network="br0"),)
    web = a_vm('we"b', "kvm-a", disks=disks, interfaces=interfaces)
    text = render_fleet_file(
        plan_import([a_host("kvm-a", web), a_host("kvm-b", a_vm("win", "kvm-b", is_windows=True))])
    )
    fleet = read_fleet_file(text, source="fleet.toml")
    assert sorted(host.name for host in fleet.hosts) == ["kvm-a", "kvm-b"]
    assert sorted((vm.name, vm.host) for vm in fleet.vms) == [('we"b', "kvm-a"), ("win", "kvm-b")]
    assert tomllib.loads(text)["vms"][1]["os_type"] == "Windows"
    for line in (
        "# qemu+ssh://kvm-a/system, CPU EPYC",
        "# 2 CPUs, 512 MiB, running",
        "# interface 52:54:00:00:00:01 on br0 as vnet0",
        "# disk vda /images/a�b",
        "# disk vdb /x, ephemeral",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(
    ("domains", "taken", "note"),
    [
        ([a_vm("a/b", "h1")], [], "domain 'a/b' of host h1 is left out: its name contains a slash; rename it"),
        ([a_vm("w{n}", "h1")], [], "domain 'w{n}' of host h1 is left out: its name contains braces; rename it"),
        (
            [a_vm("x" * 65, "h1")],
            [],
            f"domain '{'x' * 65}' of host h1 is left out: "
            "its name is 65 characters long, but the limit is 64; rename it",
        ),
        (
            [a_vm("web", "h1", runs=False), a_vm("web", "h2")],
            ["h2"],
            "VM 'web' is defined on hosts h1 and h2: it was taken from h2, where it runs; undefine it on h1",
        ),
        (
            [a_vm("web", "h1"), a_vm("web", "h2"), a_vm("web", "h3")],
            [],
            "VM 'web' runs on hosts h1, h2 and h3, and is left out: "
            "keep it on one of them, and undefine it on the others",
        ),
        (
            [a_vm("web", "h1", runs=False), a_vm("web", "h2", runs=False)],
            [],
            "VM 'web' is off on hosts h1 and h2, and is left out: "
            "keep it on one of them, and undefine it on the others",
        ),
        (
            [a_vm("web", "h1"), a_vm("WEB", "h2")],
            [],
            "domains 'web' and 'WEB' of hosts h1 and h2 are left out: their names differ only in case; rename one",
        ),
        (
            [a_vm("web", "h1", is_stored=False)],
            ["h1"],
            "VM 'web' is transient: host h1 forgets it when it ends; define it with `virsh define`",
        ),
    ],
    ids=["slash", "braces", "long", "runs on one", "runs on all", "off on all", "case", "transient"],
)
def test_a_domain_that_cannot_be_one_vm_of_the_fleet_gets_a_note(
    domains: list[ImportedVm], taken: list[str], note: str
) -> None:
    found = plan_import([a_host(name, *(vm for vm in domains if vm.host == name)) for name in ("h1", "h2", "h3")])
    assert [vm.host for vm in found.vms] == taken
    assert found.notes == (note,)
    assert f"# {note}" in render_fleet_file(found).splitlines()


def test_hosts_of_one_name_or_with_a_name_that_hosts_cannot_have_are_rejected() -> None:
    with pytest.raises(Rejected, match=r"both host 'H1': write NAME=URI for one of them"):
        plan_import([a_host("h1"), a_host("H1")])
    with pytest.raises(Rejected, match=r"calls itself 'a/b', which contains a slash: write NAME="):
        plan_import([a_host("a/b")])


@pytest.mark.parametrize(
    ("text", "name", "uri"),
    [
        ("qemu:///system", "", "qemu:///system"),
        ("kvm-a=qemu+ssh://root@10.0.0.2/system", "kvm-a", "qemu+ssh://root@10.0.0.2/system"),
        ("qemu+unix:///system?socket=/run/a", "", "qemu+unix:///system?socket=/run/a"),
        ("b=qemu+unix:///system?socket=/run/a", "b", "qemu+unix:///system?socket=/run/a"),
    ],
)
def test_a_uri_may_have_the_name_of_its_host_before_it(text: str, name: str, uri: str) -> None:
    assert split_named_uri(text) == (name, uri)


def test_settings_for_imported_hosts_can_be_read_as_toml() -> None:
    table = tomllib.loads(render_settings([a_host("kvm-a"), a_host("kvm b")]))
    assert table == {
        "hypervisor": "libvirt",
        "libvirt": {
            "hosts": {"kvm-a": {"uri": "qemu+ssh://kvm-a/system"}, "kvm b": {"uri": "qemu+ssh://kvm b/system"}}
        },
    }
