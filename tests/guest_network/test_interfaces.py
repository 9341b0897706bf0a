"""Options, the TOML file and libvirt's XML say which VM has which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forewarn.errors import Rejected
from forewarn.machines.guest_network.interfaces import (
    Attachment,
    VmInterface,
    combine_interfaces,
    parse_domain,
    parse_interface_file,
    parse_option,
    parse_reserved_addresses,
)
from forewarn.machines.guest_network.plan import Link
from forewarn.machines.guest_network.sources import NamedInterfaces, read_domains, select_fleet_vms, vm_interface

MAC = "52:54:00:00:00:01"
DOMAIN = f"""<domain type='kvm' id='3'>
  <name>web-0</name>
  <devices>
    <interface type='network'>
      <mac address='{MAC.upper()}'/><source network='default' bridge='virbr0'/><target dev='vnet3'/>
    </interface>
    <interface type='bridge'>
      <mac address='52:54:00:00:00:02'/><source bridge='br0'/><target dev='tap-web0'/>
      <filterref filter='clean-traffic'><parameter name='IP' value='10.0.0.11'/></filterref>
    </interface>
    <interface type='ethernet'><mac address='52:54:00:00:00:03'/><target dev='tap-b' managed='no'/></interface>
    <interface type='direct'><mac address='52:54:00:00:00:04'/><target dev='macvtap0'/></interface>
    <interface type='user'><mac address='52:54:00:00:00:05'/></interface>
  </devices>
</domain>"""
NETWORK = f"""<network><name>default</name><bridge name='virbr0'/>
  <ip address='192.168.122.1' netmask='255.255.255.0'>
    <dhcp><range start='192.168.122.2' end='192.168.122.9'/><host mac='{MAC}' name='web-0' ip='192.168.122.11'/></dhcp>
  </ip>
  <ip family='ipv6' address='fd00::1' prefix='64'><dhcp><host id='0:1' mac='{MAC}' ip='fd00::11'/></dhcp></ip>
</network>"""


def link(name: str, *, master: str = "", kind: str = "tun") -> Link:
    return Link(name=name, index=1, is_up=True, mac="fe:00:00:00:00:01", kind=kind, master=master)


def test_an_option_names_a_vm_its_device_and_what_its_packets_come_from() -> None:
    assert parse_option("web-0=tap-web0", Attachment.TAP) == VmInterface(
        vm="web-0", device="tap-web0", attachment=Attachment.TAP
    )
    assert parse_option(f"web-0=vnet3,mac={MAC.upper()},ip=10.0.0.12,ip=10.0.0.11", Attachment.PORT) == VmInterface(
        vm="web-0", device="vnet3", attachment=Attachment.PORT, mac=MAC, addresses=("10.0.0.11", "10.0.0.12")
    )


@pytest.mark.parametrize(
    ("text", "attachment", "message"),
    [
        ("web-0", Attachment.TAP, "does not name a VM and a device: write --tap web-0=tap-web0"),
        ("=tap0", Attachment.TAP, "does not name a VM and a device"),
        ("web-0=tap0,speed=1", Attachment.TAP, "'speed=1' is unknown: write mac=… or ip=…"),
        ("web-0=a device", Attachment.TAP, "is not the name of a network device"),
        ('web-0=tap"; drop', Attachment.TAP, "is not the name of a network device"),
        ("web-0=tap*", Attachment.TAP, "is not the name of a network device"),
        ("web-0=a-very-long-name-0", Attachment.TAP, "is not the name of a network device"),
        ("web-0=vnet3", Attachment.PORT, "port vnet3 of VM web-0 has no MAC"),
        ("web-0=vnet3,mac=1", Attachment.PORT, "'1' of VM web-0 is not the MAC of a device"),
        ("web-0=vnet3,mac=01:00:5e:00:00:01", Attachment.PORT, "is not the MAC of a device"),
        (f"web-0=vnet3,mac={MAC},ip=fd00::1", Attachment.PORT, "'fd00::1' of VM web-0 is not an IPv4 address"),
        (f"web-0=vnet3,mac={MAC},ip=169.254.169.254", Attachment.PORT, "cannot be the address of VM web-0"),
    ],
)
def test_an_option_that_is_wrong_gets_one_sentence(text: str, attachment: Attachment, message: str) -> None:
    with pytest.raises(Rejected, match=message.replace("*", r"\*")):
        parse_option(text, attachment)


def test_a_file_names_interfaces_and_libvirt() -> None:
    text = f"""libvirt = "qemu:///system"
    [[interfaces]]
    vm = "web-0"
    tap = "tap-web0"
    mark = 7
    [[interfaces]]
    vm = "web-1"
    port = "vnet3"
    mac = "{MAC}"
    addresses = ["10.0.0.11"]
    """
    read = parse_interface_file(text, "/etc/interfaces.toml")
    assert read.libvirt_uris == ("qemu:///system",)
    first, second = read.interfaces
    assert (first.vm, first.device, first.mark, first.source) == ("web-0", "tap-web0", 7, "/etc/interfaces.toml")
    assert (second.attachment, second.mac, second.addresses) == (Attachment.PORT, MAC, ("10.0.0.11",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[interfaces]\n", "f.toml:1: this is not TOML"),
        ('\nvms = "x"\n', "f.toml:2: the file has no key 'vms'"),
        ("interfaces = 3\n", "f.toml:1: interfaces is not a list of tables: write [[interfaces]]"),
        ("libvirt = 3\n", "f.toml:1: libvirt = 3 is not a list of strings"),
        ('[[interfaces]]\nvm = "a"\n', "f.toml:1: an interface has either a tap or a port"),
        ('[[interfaces]]\nvm = "a"\ntap = "t"\nport = "p"\n', "an interface has either a tap or a port"),
        ('[[interfaces]]\nvm = "a"\ntap = "t"\nspeed = 1\n', "f.toml:4: [[interfaces]] has no key 'speed'"),
        ('[[interfaces]]\nvm = "a"\ntap = 3\n', "f.toml:3: tap = 3 is not a string"),
        ('[[interfaces]]\nvm = "a"\ntap = "t"\naddresses = [1]\n', "addresses = [1] is not a list"),
        (
            '[[interfaces]]\nvm = "a"\ntap = "t"\nmark = 0\n',
            "f.toml:4: mark = 0 is not a whole number",
        ),
        ('[[interfaces]]\ntap = "t"\n', "tap 't' has no VM"),
    ],
)
def test_a_file_that_is_wrong_gets_one_sentence_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse_interface_file(text, "f.toml")
    assert message in str(caught.value)


def test_two_sources_may_describe_a_device_if_they_agree() -> None:
    tap = parse_option("web-0=tap0", Attachment.TAP)
    more = parse_option(f"web-0=tap0,mac={MAC},ip=10.0.0.11", Attachment.TAP)
    assert combine_interfaces([tap, more]) == combine_interfaces([more, tap]) == (more,)
    with pytest.raises(Rejected, match="device tap0 is named for VM web-0 and VM web-1: name only one"):
        combine_interfaces([tap, parse_option("web-1=tap0", Attachment.TAP)])
    with pytest.raises(Rejected, match="device tap0 of VM web-0 is described twice, with a different mac"):
        combine_interfaces([more, parse_option("web-0=tap0,mac=52:54:00:00:00:09", Attachment.TAP)])


def test_a_device_that_an_option_names_too_is_not_left_to_libvirt() -> None:
    """Only what libvirt or a file alone names may be left out, or be dropped by a later plan."""
    tap = parse_option("web-0=tap-b", Attachment.TAP)
    domain = vm_interface(parse_domain(DOMAIN).interfaces[2], {}, source="qemu:///system")
    combined = combine_interfaces([tap, domain])
    assert combined == combine_interfaces([domain, tap]) == (replace(domain, source=""),)
    with pytest.raises(Rejected, match="the fleet has no VM 'web-0', which tap tap-b names"):
        select_fleet_vms(NamedInterfaces(interfaces=combined), ["web-1"], ["qemu:///system"])
    written = replace(tap, source="/etc/f.toml")
    assert combine_interfaces([written, domain]) == (replace(domain, source="/etc/f.toml"),)


def test_a_domain_has_ports_taps_and_interfaces_that_are_left_out() -> None:
    domain = parse_domain(DOMAIN)
    assert [(each.device, each.mac[-2:], each.addresses, each.network, each.is_port) for each in domain.interfaces] == [
        ("vnet3", "01", (), "default", True),
        ("tap-web0", "02", ("10.0.0.11",), "", True),
        ("tap-b", "03", (), "", None),
    ]
    assert list(domain.skipped) == [
        "interface 52:54:00:00:00:04 of domain web-0 is left out: type 'direct' has no bridge port or tap",
        "interface 52:54:00:00:00:05 of domain web-0 is left out: it has no device on this host",
    ]


@pytest.mark.parametrize("xml", ["<domain>", "<network/>", "<domain><name> </name></domain>"])
def test_text_that_is_not_the_xml_of_a_domain_is_rejected(xml: str) -> None:
    with pytest.raises(Rejected, match="libvirt's XML of a domain"):
        parse_domain(xml)


def test_a_network_reserves_ipv4_addresses_by_mac() -> None:
    assert parse_reserved_addresses(NETWORK) == {MAC: "192.168.122.11"}


class FakeVirsh:
    """Answers as virsh with one domain, and with one that has ended when its XML is asked for."""

    def __init__(self) -> None:
        self._names = ["web-0", "ended"]

    def __call__(self, arguments: Sequence[str]) -> str:
        match arguments:
            case ["list", "--name"]:
                return "\n".join([*self._names, "\n"])
            case ["dumpxml", "web-0"]:
                return DOMAIN
            case ["net-dumpxml", "default"]:
                return NETWORK
            case _:
                self._names.remove("ended")
                raise Rejected("`virsh` failed: error: Domain not found")


def test_running_domains_get_the_addresses_that_their_network_reserves() -> None:
    domains = read_domains(FakeVirsh())
    assert [(each.device, each.addresses) for each in domains.interfaces] == [
        ("vnet3", ("192.168.122.11",)),
        ("tap-web0", ("10.0.0.11",)),
        ("tap-b", ()),
    ]
    assert len(domains.skipped) == 2


def test_the_host_decides_whether_an_own_tap_of_a_domain_is_a_port() -> None:
    tap = parse_domain(DOMAIN).interfaces[2]
    routed = vm_interface(tap, {"tap-b": link("tap-b")}, source="qemu:///system")
    bridged = vm_interface(tap, {"tap-b": link("tap-b", master="br0")}, source="qemu:///system")
    assert (routed.attachment, bridged.attachment) == (Attachment.TAP, Attachment.PORT)
    assert (routed.vm, routed.source) == ("web-0", "qemu:///system")


def test_vms_are_checked_with_the_fleet_and_other_domains_are_left_out() -> None:
    tap = parse_option("web-0=tap0", Attachment.TAP)
    other = vm_interface(parse_domain(DOMAIN).interfaces[2], {}, source="qemu:///system")
    named = NamedInterfaces(interfaces=(tap, other), sources=frozenset({"qemu:///system"}))
    assert select_fleet_vms(named, ["WEB-0"], named.sources).interfaces == (tap, other)
    with pytest.raises(Rejected, match="the fleet has no VM 'web-0', which tap tap0 names: did you mean 'wed-0'"):
        select_fleet_vms(named, ["wed-0"], named.sources)
    only_domain = NamedInterfaces(interfaces=(other,), sources=named.sources)
    left = select_fleet_vms(only_domain, ["db-0"], named.sources)
    assert left.interfaces == ()
    assert left.notes == ("domain web-0 is left out: the fleet has no VM of that name",)
