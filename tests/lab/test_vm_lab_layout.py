"""The files of a lab with real VMs: definitions that the driver accepts, and settings that the service accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.errors import Rejected
from forewarn.lab.vms.image import GuestImage, image_directory
from forewarn.lab.vms.layout import GUESTS, HOSTS, VmLab, create_network, remove_files, remove_network
from forewarn.machines.qemu.definition import parse_definition
from forewarn.service.settings import HypervisorKind, load_settings


@pytest.fixture(params=[pytest.param(True, id="taps"), pytest.param(False, id="slirp")])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> VmLab:
    lab = VmLab(tmp_path, taps=request.param)
    lab.write(GuestImage(tmp_path / "guest"))
    return lab


def test_the_settings_of_the_lab_name_both_hosts_and_a_listener_for_every_guest(lab: VmLab) -> None:
    settings = load_settings({"data": str(lab.directory)}, lab=True, config=lab.settings_file, environ={})
    assert settings.hypervisor is HypervisorKind.QEMU
    assert sorted(settings.qemu.hosts) == list(HOSTS)
    assert {vm for spec in settings.metadata_listeners for _, vm in spec.assignments} == set(GUESTS)


def test_the_directory_of_a_lab_is_for_its_user_alone(tmp_path: Path) -> None:
    lab = VmLab(tmp_path / "lab", taps=False)
    lab.write(GuestImage(tmp_path / "guest"))
    assert lab.directory.stat().st_mode & 0o777 == 0o700


def test_every_guest_is_defined_on_the_host_where_the_fleet_has_it(lab: VmLab) -> None:
    fleet = read_fleet_file(lab.fleet_file.read_text(), source="fleet.toml")
    assert {vm.name for vm in fleet.vms} == set(GUESTS)
    for vm in fleet.vms:
        file = lab.host_directory(vm.host) / f"{vm.name}.toml"
        definition = parse_definition(file.read_bytes(), file)
        assert definition.local_paths() == []  # both hosts reach its disks


def test_a_comma_in_a_path_does_not_end_an_option_of_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/opt/python, new/bin/python3")
    lab = VmLab(tmp_path, taps=False)
    lab.write(GuestImage(tmp_path / "guest"))
    file = lab.host_directory(HOSTS[0]) / "web-0.toml"
    [network] = [word for word in parse_definition(file.read_bytes(), file).command if word.startswith("user,")]
    assert "cmd:'/opt/python,, new/bin/python3' -I" in network


def test_two_labs_have_namespaces_of_their_own(tmp_path: Path) -> None:
    names = {VmLab(tmp_path / name, taps=True).namespace("host-1") for name in ("a", "b")}
    assert len(names) == 2


def test_the_guest_is_kept_in_the_users_cache() -> None:
    assert image_directory({"HOME": "/home/ann"}) == Path("/home/ann/.cache/forewarn/guest")
    assert image_directory({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/forewarn/guest")


@pytest.mark.parametrize("had_files", [False, True])
def test_all_that_a_lab_has_created_is_removed_and_nothing_that_was_there_before(
    tmp_path: Path, had_files: bool
) -> None:
    lab = VmLab(tmp_path / "lab", taps=False)
    if had_files:
        (lab.directory / "tls").mkdir(parents=True)
    lab.write(GuestImage(tmp_path / "guest"))
    (lab.directory / "tls").mkdir(exist_ok=True)
    for file in ("tls/ca.key", "admin.secret", "lock", "new-store", "service.log"):
        (lab.directory / file).touch()
    remove_files(lab)
    assert lab.directory.exists() == had_files
    if had_files:
        assert (lab.directory / "tls" / "ca.key").exists()
        assert not lab.marker_file.exists()


def test_files_of_somebody_else_in_the_directory_of_a_lab_stay(tmp_path: Path) -> None:
    lab = VmLab(tmp_path / "lab", taps=False)
    lab.write(GuestImage(tmp_path / "guest"))
    (lab.directory / "notes.txt").touch()
    remove_files(lab)
    assert list(lab.directory.iterdir()) == [lab.directory / "notes.txt"]


@pytest.mark.skipif(sys.platform != "linux", reason="labs with real VMs need Linux")
def test_without_the_extra_for_qemu_a_lab_says_what_to_install_and_creates_nothing(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("qemu-system-x86_64", "busybox", "cpio", "lz4", "apt-get", "dpkg-deb"):
        (programs / name).symlink_to(sys.executable)
    program = "import sys; sys.modules['qemu'] = None; from forewarn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "lab", "vms", "--data", str(tmp_path / "lab")],
        env={"HOME": str(tmp_path), "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("install it with `pip install 'forewarn[qemu]'`"), done.stderr
    assert not (tmp_path / "lab").exists()


def test_a_lab_with_taps_says_what_to_install_where_ip_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lab = VmLab(tmp_path, taps=True)
    remove_network(lab)
    with pytest.raises(Rejected, match="install iproute2"):
        create_network(lab)
