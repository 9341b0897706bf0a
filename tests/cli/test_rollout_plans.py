"""`rollout plan` and rollouts in waves on the command line (spec §13.1, §13.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forewarn.base.times import parse_time

FILE = """\
[rollout]
everything = true
impact = "migrate"
settle = "10m"

[[waves]]
name = "canary"
vms = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rollout.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_a_plan_shows_waves_vms_times_and_vms_without_a_handler(lab: Any, file: Path) -> None:
    text = " ".join(lab.good("rollout", "plan", str(file)).split())
    assert "Nothing was changed. This is the plan:" in text
    assert "canary" in text
    assert "rest" in text
    assert "not poll for events" in text
    assert "If nobody approves, it is over in" in text
    assert lab.json("rollout", "list")["rollouts"] == []


def test_a_plan_as_json_is_the_same_by_file_and_by_options(lab: Any, file: Path) -> None:
    options = ("--everything", "--impact", "migrate", "--settle", "10m", "--canary", "1")
    by_file, by_options = lab.json("rollout", "plan", str(file)), lab.json("rollout", "plan", *options)
    assert [wave["vms"] for wave in by_file["waves"]] == [wave["vms"] for wave in by_options["waves"]]
    assert [wave["name"] for wave in by_file["waves"]] == ["canary", "rest"]


def test_a_rollout_starts_from_a_file_and_shows_its_wave(lab: Any, file: Path) -> None:
    text = " ".join(lab.good("rollout", "start", "--file", str(file), "--no-wait").split())
    assert "migrate over all VMs" in text
    assert "wave 1 of 2: canary" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "nowhere.toml"], "rollout file 'nowhere.toml' cannot be read (No such file or directory)"),
        (["--file", "FILE", "--everything"], "give no other option (everything) beside it"),
        (["--everything", "--all-hosts"], "a rollout has one target: give one of --host"),
        (["--everything", "--shares", "x"], "'x' are not shares: give percentages such as 10,50"),
        (["--everything", "--notice", "0s"], "a notice of 0 s is no notice: omit --notice for the default"),
        (["--everything", "--canary", "some"], "'some' is not a canary"),
        (["--tag", "nope"], "no VM of the fleet has the tag 'nope'"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(lab: Any, file: Path, arguments: list[str], message: str) -> None:
    words = [str(file) if word == "FILE" else word for word in arguments]
    assert message in " ".join(lab.refused("rollout", "start", *words).split())
    assert lab.json("rollout", "list")["rollouts"] == []


def test_a_mistake_in_a_file_is_named_with_its_line(lab: Any, file: Path) -> None:
    file.write_text(FILE.replace("vms = 1", "vmz = 1"), encoding="utf-8")
    text = " ".join(lab.refused("rollout", "plan", str(file)).split())
    assert "line 8 of the rollout file: 'vmz' is not a key of [waves]" in text


def plan_sentences(lab: Any, *options: str) -> str:
    return " ".join(lab.json("rollout", "plan", *options)["summary"])


def test_a_plan_names_the_hold_that_is_in_force(lab: Any) -> None:
    lab.good("rollout", "hold", "--reason", "an incident")
    assert "All rollouts are on hold (an incident): the times count from the end" in plan_sentences(lab, "--everything")
    lab.good("rollout", "lift-hold")
    assert "on hold" not in plan_sentences(lab, "--everything")


def test_a_plan_names_the_budget_that_blocks_it(lab: Any) -> None:
    lab.good("budget", "set", "all", "--at-most", "1")
    lab.good("rollout", "start", "--everything", "--impact", "reboot")  # reserves what the budget allows
    text = plan_sentences(lab, "--everything")
    assert 'would not finish, so later times are missing: the budget "all" allows 1 of ' in text
    assert "too large" not in text


def test_a_plan_names_the_rollout_that_does_the_same_work(lab: Any) -> None:
    rollout = lab.json("rollout", "start", "--everything")["id"]
    plan = lab.json("rollout", "plan", "--everything")
    text = " ".join(plan["summary"])
    assert f"shared with rollout {rollout[:8]}, which does the same work." in text
    assert "never start" not in text
    assert list(plan["shared"]) == [rollout]
    assert plan["never_started"] == 0
    assert parse_time(plan["over_latest"]) > parse_time(plan["now"]) + 60
    shared = lab.json("rollout", "plan", "--host", "h1")
    assert shared["waves"][0]["latest"]["over_at"] == shared["over_latest"]


def test_a_plan_in_a_pipe_fits_into_100_columns(lab: Any) -> None:
    windows = ("--window", "sat 02:00 4h Europe/Berlin")
    text = lab.good("rollout", "plan", "--everything", "--canary", "1", "--shares", "50", "--settle", "10m", *windows)
    table = text[text.index("WAVE") :]
    assert max(map(len, table.splitlines())) <= 100
    assert "earliest  at once" in table


def test_a_rollout_starts_from_a_file_that_is_named_without_an_option(lab: Any, file: Path) -> None:
    assert "wave 1 of 2: canary" in " ".join(lab.good("rollout", "start", str(file), "--no-wait").split())


def test_a_dry_run_of_a_start_is_the_plan(lab: Any) -> None:
    lab.good("budget", "set", "all", "--at-most", "1")
    lab.good("rollout", "start", "--everything", "--impact", "reboot")  # reserves what the budget allows
    options = ("--everything", "--canary", "1")
    text = " ".join(lab.good("rollout", "start", "--dry-run", *options).split())
    assert "It would not finish, so later times are missing" in text
    assert 'the budget "all" allows 1 of' in text
    assert lab.json("rollout", "start", "--dry-run", *options).keys() == lab.json("rollout", "plan", *options).keys()


def test_a_wave_that_a_budget_never_lets_end_has_no_end_in_the_plan(lab: Any) -> None:
    lab.good("budget", "set", "all", "--at-most", "1")  # h1 has web and db-0, and h2 db-1 and spot
    plan = lab.json("rollout", "plan", "--all-hosts", "--impact", "reboot")
    assert plan["is_partial"]
    (wave,) = plan["waves"]
    for times in filter(None, (wave["earliest"], wave["latest"])):
        assert times["begins_at"] is not None
        assert (times["over_at"], times["settled_at"]) == (None, None)
