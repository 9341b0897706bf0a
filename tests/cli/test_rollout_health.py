"""`forewarn rollout check` and `checks`, and the commands of docs/how-to/rollout-health.md (spec §13.4, §13.5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.markdown_pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/rollout-health.md"
FIGURES = """\
[rollout]
hosts = ["h1"]
[[checks]]
name = "acts"
figure = "failed-acts"
[[checks]]
name = "handlers"
figure = "vms-without-handler"
condition = ">= 0"
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "rollout.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_checks_are_tried_from_a_file_and_the_exit_code_says_whether_all_are_good(lab: Any, tmp_path: Path) -> None:
    shown = lab.good("rollout", "check", write(tmp_path, FIGURES))
    assert "failed-acts == 0" in shown
    assert shown.count("good") == 2
    bad = lab("rollout", "check", write(tmp_path, FIGURES.replace(">= 0", "< 0")))
    assert bad.exit_code == 1
    assert "bad" in bad.stdout
    assert lab.json("rollout", "list")["rollouts"] == []


def test_a_rollout_that_has_paused_itself_says_why(lab: Any, tmp_path: Path) -> None:
    file = write(tmp_path, FIGURES.replace(">= 0", "< 0"))
    started = lab.json("rollout", "start", "--file", file, "--no-wait")
    lab.good("clock", "advance", "1m")
    shown = lab.good("rollout", "checks", started["id"])
    assert "It has paused itself: check 'handlers' is bad:" in shown
    assert "check 'handlers' is bad" in lab.good("explain", started["id"])
    measured = lab.json("rollout", "checks", started["id"])["measurements"]
    assert {(m["check"], m["outcome"]) for m in measured} == {("acts", "good"), ("handlers", "bad")}


def test_a_rollout_that_starts_says_that_it_waits_for_its_first_measurements(lab: Any, tmp_path: Path) -> None:
    checks = '[[checks]]\nname = "front"\nhttp = "http://127.0.0.1:9/"\n'
    shown = " ".join(lab.good("rollout", "start", write(tmp_path, f'[rollout]\nhosts = ["h1"]\n{checks}')).split())
    assert "waits for clear health checks (check 'front' " in shown


def test_a_rollout_without_checks_says_so(lab: Any) -> None:
    started = lab.json("rollout", "start", "--host", "h1", "--no-wait")
    assert lab.good("rollout", "checks", started["id"]).strip() == "This rollout has no health checks."


def test_the_commands_of_the_page_work_with_its_file(lab: Any, tmp_path: Path) -> None:
    (text,) = (block.text for block in blocks(PAGE) if block.language == "toml")
    file = write(tmp_path, text)
    commands = [
        line.split()[1:] for block in blocks(PAGE) if block.language == "sh" for line in block.text.splitlines()
    ]
    started = ""
    for words in commands:
        words = [file if word == "rollout.toml" else started if word == "ROLLOUT" else word for word in words]
        if words[:2] == ["rollout", "start"]:
            started = lab.json(*words, "--no-wait")["id"]
        elif words[:2] == ["rollout", "check"]:
            assert lab(*words).exit_code == 1  # no Prometheus answers at that address
        elif words[:2] == ["rollout", "resume"]:
            lab.good("rollout", "pause", started)
            lab.good(*words)
        else:
            lab.good(*words)
    assert lab.json("rollout", "show", started)["progress"] == "aborted"
