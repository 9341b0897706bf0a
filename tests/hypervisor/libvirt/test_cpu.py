"""What the CPU of a running domain needs from another host, as its XML and that of its host say."""

from __future__ import annotations

from forewarn.machines.libvirt.session import CpuNeeds, cpu_needs, host_cpu_identity, host_cpu_model, parse_cpu_needs

DOMAIN = "<domain type='kvm'><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><cpu {}</domain>"
CAPABILITIES = (
    "<capabilities><host><cpu><arch>x86_64</arch><model>EPYC</model><vendor>AMD</vendor>"
    "<microcode version='{}'/><feature name='{}'/><feature name='avx'/></cpu></host></capabilities>"
)
HOST = host_cpu_identity(CAPABILITIES.format(1, "xsave"))


def test_a_named_model_is_compared_with_the_other_host() -> None:
    needs = cpu_needs(DOMAIN.format("mode='custom' match='exact'><model>Skylake-Server</model></cpu>"), HOST)
    assert parse_cpu_needs(needs) == CpuNeeds(
        virt_type="kvm",
        arch="x86_64",
        machine="pc-q35-7.2",
        cpu_xml='<cpu mode="custom" match="exact"><model>Skylake-Server</model></cpu>',
    )


def test_the_cpu_of_a_host_that_the_guest_sees_as_it_is_must_be_the_same() -> None:
    for mode in ("host-passthrough", "maximum"):
        assert parse_cpu_needs(cpu_needs(DOMAIN.format(f"mode='{mode}'/>"), HOST)) == CpuNeeds(host_cpu=HOST)


def test_a_domain_that_names_no_cpu_needs_none() -> None:
    assert cpu_needs("<domain type='kvm'/>", HOST) == ""
    assert cpu_needs(DOMAIN.format("><topology sockets='1'/></cpu>"), HOST) == ""
    assert cpu_needs(DOMAIN.format("mode='host-passthrough'/>"), "") == ""


def test_two_hosts_have_the_same_cpu_if_model_and_features_are_the_same() -> None:
    assert host_cpu_identity(CAPABILITIES.format(2, "xsave")) == HOST  # another microcode
    assert host_cpu_identity(CAPABILITIES.format(1, "avx512f")) != HOST
    assert (host_cpu_identity("<capabilities/>"), host_cpu_model("<capabilities/>")) == ("", "")
    assert host_cpu_model(CAPABILITIES.format(1, "avx")) == "EPYC"
