"""The banner of a service that has started."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forewarn.cli.output import Output
from forewarn.cli.service_banner import print_service, print_status
from forewarn.lab.vms.layout import LAB_MARKER

ENDPOINT = ("web-0", "http://127.0.0.1:8254")
NO_VMS = {"vms": 0, "scopes": 0, "hosts": 0, "events": 0}


def service_info(**fields: Any) -> dict[str, Any]:
    """What the API says of a service, by default one without VMs, listeners and console, in real time."""
    info: dict[str, Any] = {"version": "1", "counts": NO_VMS, "listeners": [], "workers": [], "api": None}
    return {**info, "now": time.time(), "speed": 1, **fields}


@pytest.mark.parametrize(
    ("vms", "endpoints", "next_", "never"),
    [
        (0, [], "forewarn fleet add NAME", "forewarn fleet show"),
        (4, [], "forewarn fleet show", "add a VM"),
        (4, [ENDPOINT], "forewarn restart web-0", "add a VM"),
    ],
    ids=["an empty fleet", "a service for real VMs", "a lab"],
)
def test_the_banner_suggests_commands_that_fit_the_fleet(
    vms: int, endpoints: list[tuple[str, str]], next_: str, never: str
) -> None:
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, force_terminal=True, width=200, markup=False, highlight=False)
    counts = {"vms": vms, "scopes": vms, "hosts": 0, "events": 0}
    info = service_info(lab=bool(endpoints), counts=counts)
    addresses = [{"vm": vm, "url": url} for vm, url in endpoints]
    print_service(output, {**info, "pid": 1, "data": "/data", "identity_on_loopback": False, "endpoints": addresses})
    assert next_ in shown.getvalue()
    assert never not in shown.getvalue()


def test_only_the_status_says_what_the_vms_are() -> None:
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, width=200, markup=False, highlight=False)
    info = service_info(lab=False)
    hypervisor = {"name": "process", "text": "simulated processes"}
    rest = {"pid": 1, "data": "/data", "identity_on_loopback": False, "endpoints": []}
    print_service(output, {**info, **rest, "hypervisor": hypervisor})
    assert "simulated processes" not in shown.getvalue()
    print_status(output, {**info, **rest, "hypervisor": hypervisor})
    assert "VMs      simulated processes" in shown.getvalue()


def test_the_banner_writes_an_ipv6_address_in_brackets() -> None:
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, width=200, markup=False, highlight=False)
    listeners = [
        {"address": "::1", "port": 8254, "identity": "SourceAddress"},
        {"address": "10.0.0.1", "port": 80, "identity": "SourceAddress"},
    ]
    info = service_info(lab=False, listeners=listeners)
    print_service(output, {**info, "pid": 1, "data": "/data", "identity_on_loopback": False, "endpoints": []})
    assert "http://[::1]:8254" in shown.getvalue()
    assert "http://10.0.0.1:80" in shown.getvalue()


@pytest.mark.parametrize(("link", "is_hinted"), [("", True), ("http://localhost:8443/portal/sign-in/once/x", False)])
def test_the_banner_says_how_to_get_a_link_to_the_portal_unless_it_has_one(link: str, is_hinted: bool) -> None:
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, force_terminal=True, width=200, markup=False, highlight=False)
    console = {"url": "https://localhost:8443", "portal": "http://localhost:8443/portal/"}
    info = service_info(lab=True, api=console)
    print_service(output, {**info, "pid": 1, "data": "/d", "identity_on_loopback": False, "endpoints": []}, link)
    assert ("get a link that opens the portal" in shown.getvalue()) == is_hinted
    assert shown.getvalue().rstrip().endswith(link)
    assert "http://localhost:8443/portal/\n" in shown.getvalue()


@pytest.mark.parametrize(
    ("ahead_s", "speed", "clock"),
    [
        (0, 1, None),
        (3600, 1, "1 h ahead of real time"),
        (0, 60, "60 times as fast as real time"),
        (-300, 0, "5 min behind real time, stopped"),
    ],
)
def test_the_clock_of_a_lab_is_shown_if_it_is_not_real_time(ahead_s: float, speed: float, clock: str | None) -> None:
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, width=200, markup=False, highlight=False)
    info = service_info(lab=True)
    times = {"now": time.time() + ahead_s, "speed": speed}
    print_status(output, {**info, **times, "pid": 1, "data": "/d", "identity_on_loopback": False, "endpoints": []})
    assert ("  clock " in shown.getvalue()) == (clock is not None)
    assert clock is None or f", lab time: {clock}\n" in shown.getvalue()


def test_the_banner_of_a_lab_with_real_vms_says_that_its_end_removes_it(tmp_path: Path) -> None:
    (tmp_path / LAB_MARKER).touch()
    output = Output()
    shown = io.StringIO()
    output.stdout = Console(file=shown, force_terminal=True, width=200, markup=False, highlight=False)
    counts = {"vms": 2, "scopes": 2, "hosts": 2, "events": 0}
    info = service_info(lab=True, counts=counts)
    rest = {
        "data": str(tmp_path),
        "identity_on_loopback": False,
        "endpoints": [{"vm": ENDPOINT[0], "url": ENDPOINT[1]}],
    }
    for pid, command in ((1, "`forewarn lab down`"), (os.getpid(), "Ctrl-C")):
        print_service(output, {**info, **rest, "pid": pid})
        assert f"{command} ends the guests, and removes the lab with all its data." in shown.getvalue()
    assert "forewarn vm console web-0" in shown.getvalue()
    assert "all data is kept" not in shown.getvalue()
