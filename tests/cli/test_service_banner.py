"""What a service says of itself as it starts: what to try next fits what is there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from forewarn.cli.output import Output
from forewarn.cli.service import print_service

SEAT = ("web-0", "http://127.0.0.1:8254")


@pytest.mark.parametrize(
    ("vms", "seats", "next_", "never"),
    [
        (0, [], "forewarn fleet add NAME", "forewarn fleet show"),
        (4, [], "forewarn fleet show", "the first VM"),
        (4, [SEAT], "forewarn restart web-0", "the first VM"),
    ],
    ids=["an empty fleet", "a service for real VMs", "a lab"],
)
def test_what_to_try_next_fits_the_fleet(vms: int, seats: list[tuple[str, str]], next_: str, never: str) -> None:
    screen = Output()
    shown = io.StringIO()
    screen.stdout = Console(file=shown, force_terminal=True, width=200, markup=False, highlight=False)
    counts = {"vms": vms, "scopes": vms, "hosts": 0, "events": 0}
    info = {"version": "1", "lab": bool(seats), "counts": counts, "listeners": [], "workers": [], "console": None}
    print_service(screen, {**info, "data": "/data", "identity_on_loopback": False}, seats)
    assert next_ in shown.getvalue()
    assert never not in shown.getvalue()
