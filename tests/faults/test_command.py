"""`forewarn fault`: every example of the pages about faults runs, and bad input gets one sentence (spec §11)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forewarn.cli.root_command import forewarn
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind
from tests.support.service_process import ServiceProcess

DOCS = Path(__file__).parents[2] / "docs"
DOC = (DOCS / "reference" / "faults.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "how-to" / "faults.md").read_text(encoding="utf-8")
SETTING = [f"fault set {line}" for line in re.findall(r"^\| `([a-z][^`]+)` \|", DOC, re.MULTILINE)]
OTHERS = re.findall(r"^forewarn (fault .+)$", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with the sample fleet, for which the page is written."""
    with ServiceProcess(data=tmp_path_factory.mktemp("d")) as running:
        yield running


def run(lab: ServiceProcess, line: str) -> Any:
    runner = CliRunner(env={"FOREWARN_DATA": str(lab.data), "COLUMNS": "160", "NO_COLOR": "1"})
    return runner.invoke(forewarn, shlex.split(line), prog_name="forewarn", catch_exceptions=False)


def run_ok(lab: ServiceProcess, line: str) -> str:
    result = run(lab, line)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return str(result.stdout)


def test_the_docs_page_has_an_example_of_every_fault() -> None:
    assert [FaultKind(line.split()[2]) for line in SETTING] == list(FAULT_DEFINITIONS)


@pytest.mark.parametrize("line", SETTING)
def test_each_example_of_the_docs_page_sets_its_fault(lab: ServiceProcess, line: str) -> None:
    kind = line.split()[2]
    made = json.loads(run_ok(lab, f"{line} --json"))
    assert made["kind"] == kind
    if made["category"] != "at once":
        assert kind in run_ok(lab, "fault list")
    run_ok(lab, "fault clear --all")
    assert run_ok(lab, "fault list").startswith("No fault is active.")


def test_the_other_examples_of_the_docs_page_run(lab: ServiceProcess) -> None:
    assert {line.split()[1] for line in OTHERS} == {"set", "list", "clear", "storm"}
    for line in OTHERS:
        run_ok(lab, re.sub(r"\bf3\b", json.loads(run_ok(lab, "fault set reset --all --json"))["id"], line))
    run_ok(lab, "fault clear --all")


def test_fault_set_says_what_is_active_and_how_to_clear_it(lab: ServiceProcess) -> None:
    printed = run_ok(lab, "fault set throttled retry-after=2s --vm web-0 --count 10 --for 90s")
    fault_id = printed.split()[1].rstrip(",")
    assert printed.splitlines()[0] == (
        f"Fault {fault_id}, throttled (retry-after=2s), is active for web-0; left: 10 of 10, 1m 30s. "
        "A client sees: 429 as text, with Retry-After if `retry-after` is given."
    )
    assert f"forewarn fault clear {fault_id}" in printed
    header, row = run_ok(lab, "fault list").splitlines()
    assert header.split() == ["FAULT", "KIND", "TARGET", "LEFT", "AFFECTED", "SET"]
    assert row.startswith(f"{fault_id} ")
    assert run_ok(lab, f"fault clear {fault_id}") == f"Fault {fault_id} (throttled) of web-0 is cleared: 0 requests.\n"
    assert run_ok(lab, "fault clear --vm web-0") == "No such fault is active.\n"


def test_fault_list_shows_all_kinds(lab: ServiceProcess) -> None:
    lines = run_ok(lab, "fault list --kinds").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [str(kind) for kind in FAULT_DEFINITIONS]


def test_the_help_of_fault_set_names_the_faults_that_do_not_stay_until_they_are_cleared(lab: ServiceProcess) -> None:
    text = re.sub(r"(?<=\w)- (?=\w)", "-", " ".join(run_ok(lab, "fault set --help").split()))  # undoes the wrapping
    (sentence,) = [part for part in text.split(". ") if "stays until it is cleared" in part]
    for kind, definition in FAULT_DEFINITIONS.items():
        is_exception = definition.category is FaultCategory.AT_ONCE or definition.max_duration_s is not None
        assert (str(kind) in re.findall(r"[a-z-]+", sentence)) == is_exception
        if definition.max_duration_s is not None:
            assert f"`{kind}` ends after {definition.max_duration_s:g}s at the latest" in sentence


def test_fault_list_shows_the_schedule_of_a_storm_which_repeats_with_its_seed(lab: ServiceProcess) -> None:
    first = json.loads(run_ok(lab, "fault storm --seed 11 --vm db-0 --vm db-1 --for 3m --json"))
    second = json.loads(run_ok(lab, "fault storm --seed 11 --vm db-1 --vm db-0 --for 3m --json"))
    assert first["faults"] == second["faults"]
    shown = run_ok(lab, "fault list")
    assert shown.count("seed 11, 3m") == 2
    assert all(fault["kind"] in shown for fault in first["faults"])
    assert f"Storm {first['id']} is cleared" in run_ok(lab, f"fault clear {first['id']}")
    run_ok(lab, "fault clear --all")


BAD = [
    ("fault set gon --all", "there is no fault 'gon': did you mean 'gone'?"),
    ("fault set xyz --all", "there is no fault 'xyz': `forewarn fault list --kinds` lists them"),
    ("fault set gone", "a fault applies to a VM, a scope or every VM: give one of --vm, --scope and --all"),
    ("fault set gone --vm nobody", "VM 'nobody' does not exist: `forewarn fleet show` lists the VMs"),
    ("fault set stale age --all", "parameter 'age' has no NAME=VALUE form: write it like notice=5s"),
    (
        "fault set stale age=old --all",
        "parameter 'age': 'old' is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds)",
    ),
    ("fault set stale age=2m --all", "parameter 'age' of fault stale is 120 s: give 0 to 60 s"),
    ("fault set throttled retry=2s --all", "fault throttled has no parameter 'retry': it has 'retry-after'"),
    ("fault set gone --all --for 2m", "fault gone lasts 1 min 10 s at most, not 2 min: give a shorter one"),
    ("fault clear", "no fault is selected: give ids, or --kind, --vm, --scope or --all"),
    ("fault clear f999", "fault 'f999' is not active: `forewarn fault list` lists those that are"),
    ("fault storm --seed 1 --for 0", "a storm cannot last 0 s: give more than 0 s, up to 1 d"),
    (
        "fault set neighbour-only --vm web-0",
        "web-0 has no neighbour that runs, so name a VM that shares its scope with others: "
        "`forewarn fleet show` lists the scopes",
    ),
]


@pytest.mark.parametrize(("line", "sentence"), BAD)
def test_bad_input_is_rejected_with_one_sentence(lab: ServiceProcess, line: str, sentence: str) -> None:
    result = run(lab, line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip() == sentence
