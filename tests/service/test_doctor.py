"""What `forewarn doctor` finds in a running service."""

from __future__ import annotations

from forewarn.service.doctor import hypervisor_checks


def test_the_doctor_reports_acts_that_the_hypervisor_does_not_answer() -> None:
    assert list(hypervisor_checks({})) == []
    (check,) = hypervisor_checks({"E:web-0": 15.0, "E:web-1": 180.0})
    assert not check.ok
    assert check.text == "the hypervisor has not answered 2 acts, the oldest for 3 min"
