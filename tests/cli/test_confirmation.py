"""On a production service, what is lost for good or happens at once is shown and confirmed first."""

from __future__ import annotations

from typing import Any

import pytest

ASKED = [
    ("delete", "web"),
    ("fail", "h1"),
    ("evict", "spot"),
    ("power", "web", "off"),
    ("power", "web", "deallocate"),
    ("power", "db-0", "reimage"),
    ("restart", "web"),
    ("redeploy", "web"),
    ("restart", "db-0", "--notice", "0", "--short-notice"),
    ("fleet", "remove", "spot"),
]
NOT_ASKED = [
    ("restart", "db-0"),
    ("redeploy", "db-0"),
    ("degrade", "h3"),
    ("power", "web", "reapply"),
    ("fleet", "add-host", "h4", "--location", "x"),
]


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_a_script_without_yes_changes_nothing_on_a_production_service(
    production: Any, arguments: tuple[str, ...]
) -> None:
    before = production.json("history")
    for json in ((), ("--json",)):
        message = production.refused(*arguments, *json)
        assert "--yes" in message
        assert "--dry-run" in message
    assert production.json("history") == before
    assert production(*arguments, "--yes").exit_code == 0
    assert production.json("history") != before


@pytest.mark.parametrize("arguments", NOT_ASKED, ids=" ".join)
def test_what_has_notice_or_interrupts_nothing_needs_no_confirmation(
    production: Any, arguments: tuple[str, ...]
) -> None:
    production.good(*arguments)


def test_a_person_sees_the_preview_and_is_asked(production: Any) -> None:
    dry_run = production.good("delete", "web", "--dry-run")
    for typed in ("\n", "n\n"):
        declined = production.at_terminal("delete", "web", typed=typed)
        assert declined.exit_code == 1
        assert "nothing was changed" in declined.stderr
    assert production.json("events", "--all")["events"] == []
    for line in dry_run.splitlines()[1:]:
        assert line in declined.stdout
    done = production.at_terminal("delete", "web", typed="y\n")
    assert done.exit_code == 0, done.output
    assert [event["verb"] for event in production.json("events", "--all")["events"]] == ["delete"]


def test_a_question_is_visible_if_only_the_answer_goes_to_a_file(production: Any) -> None:
    result = production.at_terminal("delete", "web", typed="n\n", FORCE_COLOR=None)
    assert "Deleted VMs and their data cannot be brought back." in result.stderr


def test_a_restart_says_before_which_vms_get_no_notice_and_why(production: Any) -> None:
    result = production.at_terminal("restart", "web", "db-0", typed="n\n")
    reason = "no VM of the scope has polled within 24 h, so scheduled events are disabled there"
    assert f"Reboot of web at once, without an event: {reason}." in result.stdout
    assert "db-0 at once" not in result.stdout


def test_vms_that_lose_notice_for_one_reason_stand_in_one_sentence(production: Any) -> None:
    message = " ".join(production.refused("delete", "web", "spot", "quick").split())
    assert "(Delete of web, spot, quick at once, without an event: no terminate notification is set)" in message


def test_an_abort_and_a_confirmed_host_are_asked_about(production: Any) -> None:
    started = production.json("rollout", "start", "--all-hosts", "--impact", "update", "--no-wait")
    assert "cannot be resumed" in production.good("rollout", "abort", started["id"], "--dry-run")
    assert "--yes" in production.refused("rollout", "abort", started["id"])
    assert production.json("rollout", "abort", started["id"], "--yes")["progress"] == "aborted"
    assert "has ended" in production.refused("rollout", "abort", started["id"])
    production.good("fail", "h3", "--yes")
    assert "--yes" in production.refused("confirm-down", "h3")
    assert "run twice" in production.good("confirm-down", "h3", "--dry-run")
    production.good("confirm-down", "h3", "--yes")
    production.good("fleet", "add-host", "h4", "--location", "x")
    assert "--yes" in production.refused("fleet", "remove-host", "h4")
    production.good("fleet", "remove-host", "h4", "--yes")


def test_a_lab_does_not_ask(lab: Any) -> None:
    for arguments in (("delete", "web"), ("evict", "spot"), ("fail", "h1"), ("fleet", "remove", "quick")):
        lab.good(*arguments)
