"""What `forewarn doctor` finds in a running service."""

from __future__ import annotations

from pathlib import Path

from forewarn.service.doctor import hypervisor_checks, run_checks
from forewarn.service.settings import Settings


def test_the_doctor_reports_acts_that_the_hypervisor_does_not_answer() -> None:
    assert list(hypervisor_checks({})) == []
    (check,) = hypervisor_checks({"E:web-0": 15.0, "E:web-1": 180.0})
    assert not check.ok
    assert check.text == "the hypervisor has not answered 2 acts, the oldest for 3 min"


def test_the_doctor_reports_an_empty_database_beside_files_of_an_earlier_service(tmp_path: Path) -> None:
    database = tmp_path / "forewarn.db"
    database.touch()
    assert database_check(tmp_path) == (True, "no database yet: the first start creates it")
    (tmp_path / "admin.secret").write_text("secret")
    assert database_check(tmp_path) == (False, "forewarn.db is empty beside admin.secret")


def database_check(data: Path) -> tuple[bool, str]:
    checks = run_checks(Settings(data=str(data), lab=True), data / "forewarn.db")
    return next((check.ok, check.text) for check in checks if check.name == "database")
