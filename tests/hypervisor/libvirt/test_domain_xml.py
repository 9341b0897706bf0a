"""Domain XML: what it says about a VM, and forewarn's own metadata in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.errors import Rejected
from forewarn.machines.driver import MachineMark
from forewarn.machines.libvirt.domain_state import (
    DomainDisk,
    DomainInterface,
    MoveMark,
    backing_image,
    mark_element,
    move_element,
    new_volume,
    parse_domain,
    parse_mark,
    parse_move,
    pool_directory,
    with_own_metadata,
)

DOMAIN = """
<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>web-1</name>
  <uuid>11111111-1111-4111-8111-111111111111</uuid>
  <metadata>
    <libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0">
      <libosinfo:os id="http://microsoft.com/win/2k22"/>
    </libosinfo:libosinfo>
    <forewarn:disks xmlns:forewarn="urn:forewarn:disks:1" ephemeral="vdb, vdc"/>
  </metadata>
  <memory unit='KiB'>2097152</memory>
  <vcpu placement='static'>4</vcpu>
  <cpu mode='custom'><model fallback='forbid'>Skylake-Server</model></cpu>
  <devices>
    <disk type='file' device='disk'><source file='/images/root.qcow2'/><target dev='vda' bus='virtio'/></disk>
    <disk type='volume' device='disk'><source pool='fast' volume='scratch'/><target dev='vdb'/></disk>
    <disk type='block' device='disk'><source dev='/dev/mapper/shared'/><target dev='vdd'/><shareable/></disk>
    <disk type='file' device='cdrom'><target dev='sda'/><readonly/></disk>
    <interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='br0'/><target dev='vnet0'/></interface>
    <interface type='user'/>
  </devices>
  <qemu:commandline><qemu:arg value='-snapshot'/></qemu:commandline>
</domain>
"""
MARK = MachineMark(act_id="E-1:web-1", step="pause")


def test_a_definition_tells_memory_processors_disks_and_interfaces() -> None:
    found = parse_domain(DOMAIN)
    assert (found.name, found.uuid[:8], found.memory_mib, found.cpus) == ("web-1", "11111111", 2048, 4)
    assert (found.cpu_model, found.is_windows) == ("Skylake-Server", True)
    assert found.disks == (
        DomainDisk(target="vda", source="/images/root.qcow2"),
        DomainDisk(target="vdb", source="fast/scratch", is_ephemeral=True),
        DomainDisk(target="vdd", source="/dev/mapper/shared", is_owned=False),
        DomainDisk(target="sda", source="", device="cdrom", is_owned=False),
    )
    assert found.interfaces == (
        DomainInterface(mac="52:54:00:00:00:01", tap="vnet0", network="br0"),
        DomainInterface(),
    )


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("<memory>1048576</memory>", 1024),
        ("<memory unit='bytes'>1073741824</memory>", 1024),
        ("<memory unit='GiB'>3</memory>", 3072),
        ("<memory unit='MiB'>512</memory>", 512),
        ("", 0),
    ],
    ids=["KiB without a unit", "bytes", "GiB", "MiB", "none"],
)
def test_memory_is_read_in_each_unit_that_libvirt_writes(memory: str, mib: int) -> None:
    assert parse_domain(f"<domain><name>a</name>{memory}</domain>").memory_mib == mib


@pytest.mark.parametrize(
    "xml",
    ["", "<domain>", "<network/>", "<!DOCTYPE d [<!ENTITY a 'aa'>]><domain/>", f"<domain>{' ' * 5_000_000}</domain>"],
    ids=["nothing", "cut off", "another thing", "entities", "too long"],
)
def test_what_is_not_the_definition_of_a_vm_is_rejected(xml: str) -> None:
    with pytest.raises(Rejected, match="domain"):
        parse_domain(xml)


@given(
    mark=st.one_of(
        st.none(), st.builds(MachineMark, act_id=st.from_regex(r"[!-~]*", fullmatch=True), step=st.just("a"))
    ),
    move=st.one_of(st.none(), st.sampled_from(MoveMark)),
    earlier=st.one_of(st.none(), st.just(MARK)),
)
def test_own_metadata_replaces_only_what_is_ours(
    mark: MachineMark | None, move: MoveMark | None, earlier: MachineMark | None
) -> None:
    before = with_own_metadata(DOMAIN, mark=earlier, move=MoveMark.SENT)
    after = with_own_metadata(before, mark=mark, move=move)
    assert parse_domain(after) == parse_domain(DOMAIN)
    assert after.count("urn:forewarn:mark:1") == (mark is not None)
    assert after.count("urn:forewarn:move:1") == (move is not None)
    assert 'qemu:arg value="-snapshot"' in after


def test_marks_and_moves_are_read_as_they_were_written() -> None:
    odd = MachineMark(act_id="<\"&'>", step="pause")
    assert parse_mark(mark_element(odd)) == odd
    assert [parse_move(move_element(move)) for move in MoveMark] == list(MoveMark)
    assert parse_mark(None) is None
    assert parse_move(None) is None
    assert parse_move("<move state='later'/>") is None


def test_an_emptied_volume_keeps_its_size_and_format_but_no_content() -> None:
    volume = """<volume type='file'><name>scratch</name><key>/i/scratch</key><capacity unit='bytes'>64</capacity>
      <allocation unit='bytes'>9</allocation><target><path>/i/scratch</path><format type='qcow2'/></target>
      <backingStore><path>/i/base</path></backingStore></volume>"""
    emptied = "".join(new_volume(volume, keep_backing=False).split())
    assert emptied == (
        '<volumetype="file"><name>scratch</name><capacityunit="bytes">64</capacity>'
        '<target><formattype="qcow2"/></target></volume>'
    )
    assert backing_image(volume) == backing_image(new_volume(volume, keep_backing=True)) == "/i/base"
    assert backing_image(new_volume(volume, keep_backing=False)) == ""


def test_the_directory_of_a_pool_is_empty_if_not_named() -> None:
    assert pool_directory("<pool><target><path>/images</path></target></pool>") == "/images"
    assert pool_directory("<pool/>") == ""
