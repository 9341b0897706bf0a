"""The examples on the pages about libvirt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.errors import Rejected
from forewarn.machines.libvirt.connection import LibvirtHost, LibvirtSettings, check_libvirt
from forewarn.service.settings import HypervisorKind, load_settings

GUIDES = Path(__file__).parents[3] / "docs" / "how-to"
PAGE = (GUIDES / "libvirt.md").read_text(encoding="utf-8")


def test_the_examples_on_the_pages_are_accepted(tmp_path: Path) -> None:
    both = (GUIDES / "production.md").read_text(encoding="utf-8") + PAGE
    fleet, *settings = re.findall(r"^```toml\n(.*?)^```", both, re.DOTALL | re.MULTILINE)
    assert [vm.name for vm in read_fleet_file(fleet, source="fleet.toml").vms] == ["web-0"]
    assert len(settings) == 2
    for text in settings:
        config = tmp_path / "settings.toml"
        config.write_text(text)
        loaded = load_settings({}, lab=True, config=config, environ={"HOME": "/home/ann"})
        assert loaded.hypervisor is HypervisorKind.LIBVIRT


def test_locks_of_disks_are_refused_as_a_setting_of_libvirt() -> None:
    with pytest.raises(
        Rejected, match=r"'libvirt.lock_directories' cannot be used, because libvirt does not say which"
    ):
        check_libvirt(LibvirtSettings(lock_directories=("/shared",)))


def test_the_page_explains_every_key_of_a_host() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(LibvirtHost.__struct_fields__)
