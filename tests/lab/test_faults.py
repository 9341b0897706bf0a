"""Faults in a lab: what a handler sees, and how often each fault was hit."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.errors import Rejected
from forewarn.lab import Lab


def test_only_the_next_polls_fail(guest: Any) -> None:
    with Lab(["a", "b"]) as lab:
        fault = lab.fail_next_polls(3)
        a, b = guest(lab.vm("a")), guest(lab.vm("b"))
        assert [asked.poll().status for asked in (a, b, a, b, a)] == [500, 500, 500, 200, 200]
        assert fault.applied == 3
        assert repr(fault) == "<fault internal-error, applied 3>"


def test_a_fault_of_one_vm_affects_no_other(guest: Any) -> None:
    with Lab(["a", "b"]) as lab:
        fault = lab.fault("empty-body", vm="a", times=2)
        assert guest(lab.vm("b")).poll().body != b""
        assert [guest(lab.vm("a")).poll().body == b"" for _ in range(3)] == [True, True, False]
        assert fault.applied == 2
        assert lab.fail_next_polls(1, vm="b").applied == 0


def test_a_fault_lasts_until_it_is_cleared(guest: Any) -> None:
    with Lab(["a"]) as lab:
        lab.fault("gone", vm="a", lasts="60s")
        assert [guest(lab.vm("a")).poll().status for _ in range(2)] == [410, 410]
        lab.clear_faults()
        assert guest(lab.vm("a")).poll().status == 200


def test_fault_parameters_are_durations() -> None:
    with Lab(["a"]) as lab:
        fault = lab.fault("short-notice", vm="a", times=1, notice="8s")
        event = lab.reboot("a")
        assert event.notice.total_seconds() == 8
        assert fault.applied == 1
        lab.fault("several-at-once", vm="a", events=4)
        assert [each.kind for each in lab.events] == ["Reboot", *["Freeze"] * 4]


def test_an_event_can_be_withdrawn_after_its_approval(guest: Any) -> None:
    with Lab(["a"]) as lab:
        lab.fault("withdrawn-after-approval", vm="a", times=1)
        event = lab.reboot("a")
        assert guest(lab.vm("a")).approve(event.id).status == 200
        assert guest(lab.vm("a")).events() == []
        assert (event.approved_by, event.withdrawn, event.started) == ("a", True, False)


def test_a_fault_can_affect_only_the_neighbour(guest: Any) -> None:
    with Lab(["a", "b"], availability_set="s") as lab:
        lab.fault("neighbour-only", vm="a")
        assert guest(lab.vm("a")).events()[0]["Resources"] == ["b"]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("emtpy-body", {}, "did you mean 'empty-body'"),
        ("gone", {"often": 3}, "fault gone has no parameter 'often'"),
        ("gone", {"lasts": "2m"}, "lasts 1 min 10 s at most"),
    ],
)
def test_an_invalid_fault_is_refused_with_one_sentence(kind: str, options: dict[str, Any], message: str) -> None:
    with Lab(["a"]) as lab, pytest.raises(Rejected, match=message):
        lab.fault(kind, **options)
