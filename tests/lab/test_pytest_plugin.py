"""The pytest plugin: fixtures, marker and report; unused, it imports nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("msgspec", "uvloop", "httptools", "starlette", "sqlalchemy", "forewarn.lab", "forewarn.service")


def run(tmp_path: Path, test: str, *arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest in its own process, with the installed plugins."""
    (tmp_path / "test_it.py").write_text(test, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    if without:
        (tmp_path / "conftest.py").write_text(f"import sys\nsys.modules[{without!r}] = None\n")
    ours = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments, "."]
    return subprocess.run(line, cwd=tmp_path, env=ours, capture_output=True, text=True, timeout=120, check=False)


def test_the_fixture_is_a_lab_with_the_markers_arguments(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import threading
import pytest

pytestmark = pytest.mark.scheduled_events(vms=["of-the-module"])

def test_module(scheduled_events):
    assert [vm.name for vm in scheduled_events.vms] == ["of-the-module"]

@pytest.mark.scheduled_events(["web-0", "web-1"], availability_set="web")
def test_own(scheduled_events):
    event = scheduled_events.reboot("web-0")
    assert len(scheduled_events.vm("web-1").document()["Events"]) == 1
    scheduled_events.run_until(lambda: event.finished)

def test_factory(scheduled_events_factory):
    one, other = scheduled_events_factory(vms=["a"]), scheduled_events_factory(spot=["b"])
    assert one.reboot("a") != other.evict("b")

def test_nothing_is_left():
    assert [thread.name for thread in threading.enumerate() if "lab" in thread.name] == []
""",
        "-q",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_wrong_argument_of_the_marker_is_reported_in_a_sentence(tmp_path: Path) -> None:
    cases = {
        "flet='fleet.toml'": "has no argument 'flet': did you mean 'fleet'?",
        "size=3": "has no argument 'size': its arguments are vms, spot, availability_set, fleet, at, ",
        "'web-0', 'web-1'": "takes only vms without a name: name the other arguments",
    }
    tests = [
        f"@pytest.mark.scheduled_events({arguments})\ndef test_{number}(scheduled_events): pass\n"
        for number, arguments in enumerate(cases)
    ]
    done = run(tmp_path, "\n".join(["import pytest", *tests]), "-q")
    assert done.returncode == 1
    assert [s for s in cases.values() if f"\nthe marker scheduled_events {s}" not in done.stdout] == []
    assert "TypeError" not in done.stdout


def test_without_a_marker_the_lab_has_one_vm(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(scheduled_events):\n    assert scheduled_events.vm('vm-0').power == 'running'\n")
    assert done.returncode == 0, done.stdout


def test_a_failing_test_is_reported_with_the_report_of_its_lab(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def test_it(scheduled_events):
    event = scheduled_events.reboot("vm-0")
    scheduled_events.advance("15m")
    assert event.approved

def test_fine(scheduled_events):
    scheduled_events.freeze("vm-0")
""",
    )
    assert done.returncode == 1
    assert "where False = <Reboot of vm-0: user restart · +0:00:00 the test requested" in done.stdout
    _, title, report = done.stdout.partition("what happened in the lab")
    assert title
    assert "+0:15:00  started    Reboot of vm-0 started: its notice ended" in report
    assert "+0:15:00  it started: its notice of 15 min ended" in report
    assert "Freeze" not in done.stdout


def test_a_mistake_in_a_test_is_shown_at_the_tests_line(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(scheduled_events):\n    scheduled_events.evict('vm-0')\n")
    assert done.returncode == 1
    assert "E       forewarn.errors.Refused: VM 'vm-0' is not a Spot VM" in done.stdout
    assert re.findall(r"(\S+\.py:\d+): ", done.stdout) == ["test_it.py:2"]


def test_nothing_is_imported_before_a_test_uses_a_lab(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        f"import sys\ndef test_it():\n"
        f"    assert 'forewarn.pytest_plugin' in sys.modules\n"
        f"    assert [name for name in {HEAVY!r} if name in sys.modules] == []\n",
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("missing", ["msgspec", "httptools"])
def test_without_the_server_extra_only_tests_with_a_lab_fail_and_say_what_to_install(
    tmp_path: Path, missing: str
) -> None:
    done = run(
        tmp_path,
        "def test_other():\n    pass\ndef test_it(scheduled_events):\n    pass\n",
        without=missing,
    )
    assert done.returncode == 1
    assert "1 passed, 1 error" in done.stdout
    assert f"forewarn's lab is a whole service, which needs {missing!r}: pip install 'forewarn[server]'" in done.stdout
    assert "exception" not in done.stdout


def test_pytest_lists_the_marker_and_the_fixtures(tmp_path: Path) -> None:
    assert "@pytest.mark.scheduled_events(vms=…" in run(tmp_path, "", "--markers").stdout
    assert "scheduled_events_factory" in run(tmp_path, "", "--fixtures").stdout


def test_an_unknown_name_in_the_lab_package_is_an_attribute_error() -> None:
    import forewarn.lab

    with pytest.raises(AttributeError, match="has no attribute 'Lap'"):
        _ = forewarn.lab.Lap
