"""The fleet of a lab: VM names, a fleet file, or its text."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forewarn.errors import Rejected
from forewarn.lab import Lab

FLEET = """
[[hosts]]
name = "host-{n}"
count = 2

[[scale_sets]]
name = "workers"
count = 3
terminate_notification = 10
"""


def test_a_lab_without_arguments_has_one_vm() -> None:
    with Lab() as lab:
        assert [vm.name for vm in lab.vms] == ["vm-0"]
        assert repr(lab) == "<lab of vm-0, open>"


def test_each_named_vm_is_on_its_own_host() -> None:
    with Lab(["a", "b"], spot=["c"]) as lab:
        assert [(vm.name, vm.host, vm.power) for vm in lab.vms] == [
            ("a", "host-0", "running"),
            ("b", "host-1", "running"),
            ("c", "host-2", "running"),
        ]
    with Lab(spot=["c"]) as lab:
        assert [vm.name for vm in lab.vms] == ["c"]


def test_a_lab_reads_a_fleet_file_or_its_text_as_the_service_does(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET, encoding="utf-8")
    for lab in (Lab(fleet=path), Lab(fleet=str(path)), Lab.from_text(FLEET)):
        with lab:
            assert [vm.name for vm in lab.vms] == ["workers_0", "workers_1", "workers_2"]
            assert lab.terminate("workers_1").kind == "Terminate"


def test_a_lab_from_the_text_of_a_fleet_file_takes_no_names_of_vms() -> None:
    options: Any = {"vms": ["web-0"]}
    with pytest.raises(TypeError, match="unexpected keyword argument 'vms'"):
        Lab.from_text(FLEET, **options)


def test_every_vm_has_its_own_endpoint_on_loopback() -> None:
    with Lab(["a", "b"]) as lab:
        a, b = lab.vm("a"), lab.vm("b")
        assert a.endpoint.startswith("http://127.0.0.1:")
        assert a.endpoint != b.endpoint
        assert a.url == f"{a.endpoint}/metadata/scheduledevents"
        address = a.endpoint.removeprefix("http://")
        assert a.environment == {"FOREWARN_ENDPOINT": a.endpoint, "SCHEDULEDEVENTSIP": address}
        assert repr(a) == f"<VM a, running, at {a.endpoint}>"


def test_with_enablement_on_request_events_follow_the_first_poll(guest: Any) -> None:
    """Spec §8.1: on Azure a VM that never polled gets no events."""
    with Lab(["a"], enablement="on-request") as lab:
        assert not lab.reboot("a").listed
        lab.advance("1m")
        guest(lab.vm("a")).poll()
        assert lab.reboot("a").listed


def test_a_scope_is_disabled_after_a_day_without_polls(guest: Any) -> None:
    """Spec §8.2: the lab counts a VM that polls as polling while it advances, unless the test says otherwise."""
    with Lab(["a"], enablement="on-request") as lab:
        guest(lab.vm("a")).poll()
        lab.advance("25h")
        assert lab.reboot("a").listed
        lab.advance("1h")
        lab.advance("25h", without_polls=True)
        assert not lab.reboot("a").listed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vms": "web-0"}, r"vms is the text 'web-0': give a list of names, as in vms=\['web-0'\]"),
        ({"vms": 3}, r"vms is 3: give a list of names, as in vms=\['web-0'\]"),
        ({"spot": ["a", 1]}, r"spot is \['a', 1\]: give a list of names"),
        ({"vms": ["a"], "fleet": "x.toml"}, "not both: leave one out"),
        ({"fleet": "nowhere.toml"}, "fleet file 'nowhere.toml' cannot be read"),
        ({"vms": ["a", "a"]}, "'a'"),
        ({"enablement": "often"}, "enablement 'often' does not exist: choose from on-request, always"),
        ({"at": "2026-01-05"}, "at is '2026-01-05': give a time"),
        ({"at": datetime(2026, 1, 5)}, "2026-01-05T00:00:00 has no time zone"),  # noqa: DTZ001
    ],
)
def test_invalid_arguments_of_a_lab_are_refused_with_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected, match=message):
        Lab(**options)


def test_a_lab_starts_at_the_given_time(guest: Any) -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    with Lab(["a"], at=noon) as lab:
        assert lab.now == noon
        assert guest(lab.vm("a")).poll().date == noon.timestamp()
