"""The fleet commands, and the fleet file."""

from pathlib import Path
from typing import Any

import pytest

MORE = """
[[hosts]]
name = "h{n}"
count = 2
first = 1
location = "westeurope"

[[vms]]
name = "new"
location = "westeurope"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(MORE)
    return path


def test_the_fleet_is_shown_with_hosts_scopes_and_endpoints(lab: Any) -> None:
    text = lab.good("fleet", "show")
    assert "HOST  LOCATION    ZONE  HEALTH   VMS" in text
    assert "VM     SCOPE  UD  HOST  POWER    EVENTS  POLLED  ENDPOINT" in text
    assert "db-0   db     0   h1    running  -       never" in text
    assert "127.0.1.1:8080" in text


def test_the_fleet_can_be_narrowed_to_a_host(lab: Any) -> None:
    view = lab.json("fleet", "show", "--host", "h3")
    assert [vm["name"] for vm in view["vms"]] == ["quick"]


def test_one_vm_is_shown_with_its_events(lab: Any) -> None:
    lab.good("restart", "db-0")
    text = lab.good("fleet", "show", "db-0")
    assert "last poll       never" in text
    assert "Reboot" in text


def test_a_check_shows_the_difference_and_changes_nothing(lab: Any, file: Path) -> None:
    text = lab.good("fleet", "check", str(file))
    assert "+ VM new" in text
    assert text.startswith(f"Compared with the fleet of the service in {lab.data}; nothing is changed:\n")
    assert "new" not in {vm["name"] for vm in lab.json("fleet", "show")["vms"]}


def test_each_problem_of_a_fleet_file_is_shown_with_its_line(lab: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[[vms]]\nnme = "x"\n')
    for verb in ("check", "apply"):
        lines = lab.refused("fleet", verb, str(bad)).splitlines()
        assert lines[1] == f"{bad}:2: [[vms]] has no key 'nme': did you mean 'name'?"


def test_a_file_is_checked_before_there_is_a_service(command: Any, file: Path, tmp_path: Path) -> None:
    text = command.good("fleet", "check", str(file))
    nobody = f"Compared with nothing, because no service answers in {command.data}:\n"
    assert text == f"{nobody}{file} is valid: 1 VM on 2 hosts.\n"
    assert command.json("fleet", "check", str(file)) == {"difference": None, "vms": 1, "hosts": 2}
    (tmp_path / "bad.toml").write_text('[[vms]]\nnme = "x"\n')
    assert "bad.toml:2: [[vms]] has no key 'nme': did you mean 'name'?" in command.refused(
        "fleet", "check", str(tmp_path / "bad.toml")
    )


def test_apply_does_not_ask_about_a_file_that_cannot_be_applied(production: Any, file: Path) -> None:
    production.good("restart", "web", "--yes")  # has started, and the file lacks its VM
    result = production.at_terminal("fleet", "apply", str(file), typed="y\n")
    assert result.exit_code == 2
    assert "[y/N]" not in result.output
    assert "it cannot be removed now; apply again when the event is over" in result.stderr


@pytest.mark.parametrize("content", [b"\xff\xfe", b"["], ids=["not UTF-8", "not TOML"])
def test_a_file_that_is_not_a_fleet_file_is_refused(lab: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.toml").write_bytes(content)
    assert "odd.toml" in lab.refused("fleet", "check", str(tmp_path / "odd.toml"))


def test_a_missing_fleet_file_is_refused(command: Any) -> None:
    assert "No such file" in command.refused("fleet", "check", "/nowhere/fleet.toml")


@pytest.mark.parametrize(
    ("typed", "code", "applied"), [("y\n", 0, True), ("n\n", 1, False), (None, 2, False)], ids=["yes", "no", "nobody"]
)
def test_a_production_service_asks_before_a_fleet_file_removes_vms(
    production: Any, file: Path, typed: str | None, code: int, applied: bool
) -> None:
    call = ("fleet", "apply", str(file))
    result = production(*call, typed="y\n") if typed is None else production.at_terminal(*call, typed=typed)
    assert result.exit_code == code
    assert "Removed from the fleet at once, without an event: " in result.output
    assert ("+ VM new" in result.stdout) is applied
    assert ("new" in {vm["name"] for vm in production.json("fleet", "show")["vms"]}) is applied
    if not applied:
        assert "nothing was changed" in result.stderr


def test_a_fleet_file_that_removes_nothing_is_applied_without_a_question(production: Any, file: Path) -> None:
    production.good("fleet", "apply", str(file), "--yes")
    file.write_text(f'{MORE}\n[[vms]]\nname = "newer"\nlocation = "westeurope"\n')
    assert "Applied." in production.good("fleet", "apply", str(file))


def test_a_lab_applies_a_fleet_file_that_removes_vms_without_a_question(lab: Any, file: Path) -> None:
    assert "Applied." in lab.good("fleet", "apply", str(file))
    assert [vm["name"] for vm in lab.json("fleet", "show")["vms"]] == ["new"]


def test_a_program_applies_with_yes_and_gets_one_document(lab: Any, file: Path) -> None:
    assert lab.json("fleet", "apply", str(file), "--dry-run")["applied"] is False
    assert lab.json("fleet", "apply", str(file), "--yes")["applied"] is True
    assert "nothing to change" in lab.good("fleet", "apply", str(file))


def test_a_deleted_vm_of_the_file_is_left_out_with_a_remedy(lab: Any, file: Path) -> None:
    lab.good("fleet", "apply", str(file), "--yes")
    lab.good("fleet", "remove", "new")
    text = lab.good("fleet", "apply", str(file), "--yes")
    assert f"1 VM of {file} was deleted before and left out, and nothing else differs" in text
    assert "--resurrect" in text
    assert "left out" not in lab.good("fleet", "apply", str(file), "--yes", "--resurrect")


def test_a_file_can_come_from_stdin(lab: Any) -> None:
    result = lab("fleet", "check", "-", typed=MORE)
    assert (result.exit_code, "+ VM new" in result.stdout) == (0, True)


def test_a_question_about_one_vm_names_it(production: Any, file: Path) -> None:
    production.good("fleet", "apply", str(file), "--yes")
    file.write_text(MORE.partition("[[vms]]")[0])
    message = production.refused("fleet", "apply", str(file))
    assert "Removed from the fleet at once, without an event: 1 VM (new)" in message
