"""Definitions of VMs and the settings of QEMU hosts: what is accepted, and what is said about mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.errors import Refused, Rejected
from forewarn.machines.qemu.definition import (
    EphemeralDisk,
    QemuHost,
    QemuSettings,
    VmDefinition,
    check_qemu,
    check_vm_name,
    parse_definition,
)
from forewarn.service.settings import load_settings

FILE = Path("/hosts/1/web-0.toml")
GOOD = """
command = ["qemu-system-x86_64", "-m", "2048"]
memory_mib = 2048
disks = ["/shared/web-0.raw"]
image = "/images/debian.raw"

[ephemeral]
path = "temporary.raw"
size_mib = 10
"""


def test_a_definition_is_read() -> None:
    assert parse_definition(GOOD.encode(), FILE) == VmDefinition(
        command=("qemu-system-x86_64", "-m", "2048"),
        memory_mib=2048,
        disks=("/shared/web-0.raw",),
        image="/images/debian.raw",
        ephemeral=EphemeralDisk(path="temporary.raw", size_mib=10),
    )


def test_disks_with_relative_paths_are_local() -> None:
    assert parse_definition(GOOD.encode(), FILE).local_paths() == ["temporary.raw"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("command", "comand", "is wrong (Object contains unknown field `comand`): correct it"),
        ('["qemu-system-x86_64", "-m", "2048"]', "[]", "'command' is empty: give QEMU's program and its options"),
        ('"-m", ', '"-incoming", ', "'command' has the option -incoming, which forewarn sets or does not allow"),
        ('"-m", ', '"--qmp", ', "'command' has the option -qmp, which forewarn sets or does not allow: remove it"),
        ("memory_mib = 2048", "memory_mib = 0", "'memory_mib' is 0: give the VM's memory, 1 or more"),
        ("memory_mib = 2048", "", "is wrong (Object missing required field `memory_mib`): correct it"),
        ("memory_mib = 2048", 'memory_mib = "2"', "is wrong (Expected `int`, got `str` - at `$.memory_mib`)"),
        ('["/shared/web-0.raw"]', '[""]', "'disks' has an empty path: name a file or a device"),
        ('["/shared/web-0.raw"]', "[]", "'image' needs a disk"),
        ('path = "temporary.raw"', 'path = ""', "'ephemeral.path' is empty: name a file"),
        ("size_mib = 10", "size_mib = -1", "'ephemeral.size_mib' is -1: give 1 or more"),
        ("[ephemeral]", "[ephemeral", "is not TOML ("),
    ],
)
def test_a_wrong_definition_is_refused_with_the_file_and_the_mistake(old: str, new: str, message: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_definition(GOOD.replace(old, new).encode(), FILE)
    assert str(caught.value).startswith("definition '/hosts/1/web-0.toml'")
    assert message in str(caught.value)


def test_a_definition_that_is_not_text_is_refused() -> None:
    with pytest.raises(Refused, match="is not UTF-8 text"):
        parse_definition(b"\xff\xfe", FILE)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../web-0", "a,b", "a\0b"])
def test_names_that_cannot_be_files_are_refused(name: str) -> None:
    with pytest.raises(Refused, match="cannot be the name of a file"):
        check_vm_name(name, Path("/hosts/1"))


def test_a_socket_with_a_path_that_is_too_long_is_refused() -> None:
    check_vm_name("x" * (107 - len("/hosts/1/.migrate")), Path("/hosts/1"))
    with pytest.raises(Refused, match="more than 107 bytes: choose a directory with a shorter path"):
        check_vm_name("x" * (108 - len("/hosts/1/.migrate")), Path("/hosts/1"))


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (QemuHost(directory="hosts/1"), "setting 'qemu.hosts.b.directory' is 'hosts/1': give an absolute path"),
        (QemuHost(directory="/hosts/a"), "setting 'qemu.hosts.b.directory' is also that of host 'a'"),
        (QemuHost(directory="/hosts/b", memory_mib=-1), "'qemu.hosts.b.memory_mib' is -1: give 0 or more"),
        (QemuHost(directory="/hosts/b", fence=("",)), "'qemu.hosts.b.fence' begins with an empty string"),
        (QemuHost(directory="/hosts/b", fence_timeout_s=0), "'qemu.hosts.b.fence_timeout_s' is 0: give more than 0"),
    ],
)
def test_wrong_settings_of_a_host_are_rejected(host: QemuHost, message: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_qemu(QemuSettings(hosts={"a": QemuHost(directory="/hosts/a"), "b": host}))
    assert message in str(caught.value)


def test_a_relative_directory_of_locks_is_rejected() -> None:
    with pytest.raises(Rejected, match=r"setting 'qemu\.lock_directories' has 'shared': give absolute paths"):
        check_qemu(QemuSettings(lock_directories=("shared",)))


def test_the_examples_on_the_page_are_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "qemu.md").read_text(encoding="utf-8")
    settings_text, definition_text, locks_text = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert "lock_directories" in locks_text
    config = tmp_path / "settings.toml"
    config.write_text(settings_text)
    settings = load_settings({}, lab=True, config=config, environ={"HOME": "/home/ann"})
    assert sorted(settings.qemu.hosts) == ["host-1", "host-2"]
    definition = parse_definition(definition_text.encode(), FILE)
    assert definition.local_paths() == []
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert documented >= {*QemuHost.__struct_fields__, *VmDefinition.__struct_fields__}
