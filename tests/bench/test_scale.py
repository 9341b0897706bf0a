"""docs/contributing/scale.md and limits.md are computed from the reference run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.result import read_result
from bench.scale import CLUSTER, REFERENCE, cores_for, limits_markdown, nodes_for, scale_markdown
from bench.target import BY_NAME

PAGES = Path(__file__).parents[2] / "docs" / "contributing"


def test_the_scale_page_follows_from_the_reference_run_and_that_of_a_cluster() -> None:
    expected = scale_markdown(read_result(REFERENCE), read_result(CLUSTER))
    assert (PAGES / "scale.md").read_text(encoding="utf-8") == expected, "run `make docs`"


def test_the_page_about_limits_follows_from_both_runs() -> None:
    expected = limits_markdown(read_result(REFERENCE), read_result(CLUSTER))
    assert (PAGES / "limits.md").read_text(encoding="utf-8") == expected, "run `make docs`"


@pytest.mark.parametrize("path", [REFERENCE, CLUSTER])
def test_a_stored_run_describes_its_machine_and_has_only_known_figures(path: Path) -> None:
    reference = read_result(path)
    assert {figure.name for figure in reference.figures} <= set(BY_NAME)
    assert not reference.is_quick
    assert reference.machine.processor
    assert reference.machine.cores >= 2


def test_ten_million_polls_of_ten_microseconds_need_two_hundred_half_loaded_cores() -> None:
    assert cores_for(10) == pytest.approx(200)
    assert nodes_for(10) == 14  # of 16 cores, with a tenth to spare
