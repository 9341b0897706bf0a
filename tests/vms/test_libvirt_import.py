"""`forewarn fleet import libvirt` on libvirt's own test driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.core.fleetfile.reader import read_fleet_file

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = pytest.mark.vms


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forewarn.cli", "fleet", "import", "libvirt", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_domains_of_a_host_become_a_fleet_file_that_is_valid(tmp_path: Path) -> None:
    answer = run(tmp_path, "lab=test:///default")
    assert answer.returncode == 0, answer.stderr
    assert "Wrote fleet.toml with 1 VM on 1 host." in answer.stdout
    assert '[libvirt.hosts."lab"]' in answer.stdout
    fleet = read_fleet_file((tmp_path / "fleet.toml").read_text(), source="fleet.toml")
    assert [(vm.name, vm.host) for vm in fleet.vms] == [("test", "lab")]


def test_an_existing_file_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    answer = run(tmp_path, "test:///default", "--output", "mine.toml")
    assert (answer.returncode, answer.stderr) == (
        2,
        "the file 'mine.toml' exists: name another with --output, or replace it with --force\n",
    )
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert run(tmp_path, "test:///default", "--output", "mine.toml", "--force").returncode == 0
    assert "[[vms]]" in (tmp_path / "mine.toml").read_text()


def test_the_file_alone_is_printed_for_pipes(tmp_path: Path) -> None:
    answer = run(tmp_path, "lab=test:///default", "--output", "-")
    assert [vm.name for vm in read_fleet_file(answer.stdout, source="standard input").vms] == ["test"]
    assert list(tmp_path.iterdir()) == []


def test_json_says_what_was_found_and_where_it_was_written(tmp_path: Path) -> None:
    view = json.loads(run(tmp_path, "lab=test:///default", "--json").stdout)
    assert view == {
        "file": "fleet.toml",
        "hosts": [{"name": "lab", "uri": "test:///default", "cpu_model": ""}],
        "vms": [{"name": "test", "host": "lab", "is_running": True}],
        "notes": [],
    }


def test_a_host_that_does_not_answer_leaves_no_file(tmp_path: Path) -> None:
    answer = run(tmp_path, "kvm-a=qemu+unix:///system?socket=/nonexistent")
    assert answer.returncode == 3
    assert answer.stderr.startswith("the libvirt of host kvm-a cannot be reached at qemu+unix:///system?socket=/none")
    assert list(tmp_path.iterdir()) == []


def test_watching_and_writing_a_file_exclude_each_other(tmp_path: Path) -> None:
    answer = run(tmp_path, "test:///default", "--watch", "--output", "a.toml")
    assert (answer.returncode, answer.stderr.partition(":")[0]) == (2, "--watch writes no file")
