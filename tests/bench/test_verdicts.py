"""The verdicts on figures, and how the table and the drawing show them."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from bench.azure_mock import QUOTED, measure
from bench.figure import Figure, absent, failed, format_value
from bench.machine import Machine
from bench.plot import plot, x_position
from bench.result import Result, read_result, write_result
from bench.rows import ROWS
from bench.run_context import Row, RunContext
from bench.table import render_table
from bench.target import BY_NAME, TARGETS, Verdict

MACHINE = Machine(
    processor="a processor", cores=2, memory_gib=8, kernel="6.1", python="3.11", programs={}, filesystem="ext4"
)
FIGURES = (
    Figure(name="keep-alive-cpu", value=0.95, note="runs differ by 3%", samples={"ours_us": (11.0, 12.0)}),
    Figure(name="keep-alive-rate", value=1.1),
    Figure(name="half-rate-p99", value=1.3),
    absent("two-workers-cpu", "there are none"),
    *failed(["start-time", "start-memory"], AssertionError("it did not start:\nTraceback\nOSError: no room")),
    Figure(name="first-start-time", value=13.75),
)


def result(*figures: Figure) -> Result:
    return Result(
        at="2026-01-05T12:00:00+00:00", commit="abc", is_quick=False, machine=MACHINE, load_average=0.5, figures=figures
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("keep-alive-cpu", 0.9, Verdict.REACHED),
        ("keep-alive-cpu", 0.899, Verdict.MISSED),
        ("half-rate-p99", 1.2, Verdict.REACHED),
        ("half-rate-p99", 1.21, Verdict.MISSED),
        ("keep-alive-rate", 1.2, Verdict.AS_EXPECTED),
        ("keep-alive-rate", 1.19, Verdict.BELOW),
        ("long-poll-thousand", 15, Verdict.REPORTED),
    ],
)
def test_a_target_is_reached_at_its_bound(name: str, value: float, expected: Verdict) -> None:
    assert Figure(name=name, value=value).verdict is expected


@pytest.mark.parametrize("ours", [1.2, 0.001], ids=["faster than nginx", "slower than the mock server"])
def test_a_comparison_with_a_quoted_figure_is_only_reported(tmp_path: Path, ours: float) -> None:
    context = RunContext(directory=tmp_path, figures={"keep-alive-rate": Figure(name="keep-alive-rate", value=ours)})
    (figure,) = measure(context)
    assert (figure.value, figure.verdict) == (ours / QUOTED, Verdict.REPORTED)
    assert "quoted" in figure.target.title
    assert "quoted, not measured here" in figure.note


def test_a_figure_that_cannot_be_measured_has_not_failed() -> None:
    assert absent("two-workers-cpu", "there are none").verdict is Verdict.ABSENT
    first, second = failed(["start-time", "start-memory"], OSError("no\nroom"))
    assert (first.verdict, first.note, second.note) == (Verdict.FAILED, "OSError: no … room", "")


@pytest.mark.parametrize(
    ("figure", "is_good"),
    [(FIGURES[0], True), (FIGURES[1], True), (FIGURES[2], False), (FIGURES[3], True), (FIGURES[4], False)],
    ids=["reached", "below an expectation", "not reached", "not there yet", "not measured"],
)
def test_a_strict_run_fails_for_missed_targets_and_failed_rows(figure: Figure, is_good: bool) -> None:
    assert result(figure).is_good is is_good


def test_every_figure_has_one_row_and_one_target() -> None:
    measured = [name for row in ROWS for name in row.figures]
    assert sorted(measured) == sorted(BY_NAME) == sorted(target.name for target in TARGETS)


def test_a_row_without_all_its_figures_fails(tmp_path: Path) -> None:
    context = RunContext(directory=tmp_path)
    row = Row(name="half", measure=lambda _: (FIGURES[0],), figures=("keep-alive-cpu", "keep-alive-rate"))
    with pytest.raises(AssertionError, match="row half found"):
        row.run(context)
    assert Row(name="whole", measure=row.measure, figures=("keep-alive-cpu",)).run(context) == (FIGURES[0],)


def test_the_share_of_the_target_is_1_at_an_upper_or_lower_bound() -> None:
    assert BY_NAME["keep-alive-cpu"].share(0.9) == BY_NAME["start-time"].share(10) == 1
    assert BY_NAME["start-time"].share(20) == 0.5
    assert BY_NAME["first-start-time"].share(20) is None


def test_the_table_shows_value_target_and_verdict() -> None:
    out = io.StringIO()
    Console(file=out, width=160).print(render_table(result(*FIGURES)))
    lines = [" ".join(line.replace("│", " ").split()) for line in out.getvalue().splitlines()]
    assert "CPU per poll, nginx : ours, keep-alive 0.95 ≥ 0.9 reached" in lines
    assert "runs differ by 3%" in lines
    assert "throughput, ours : nginx, keep-alive 1.1 expect ≥ 1.2 below expectation" in lines
    assert "CPU per poll, two workers : one – ≤ 1.1 not there yet" in lines
    assert "start with 100,000 VMs – ≤ 10 s not measured" in lines
    assert "first start, which applies the fleet file 13.8 s report reported" in lines


def test_the_table_of_a_quick_run_says_that_it_proves_nothing() -> None:
    quick = Result(at="2026", commit="", is_quick=True, machine=MACHINE, load_average=0.0)
    assert "prove nothing" in str(render_table(quick).title)
    assert "prove nothing" not in str(render_table(result()).title)


def test_a_written_result_is_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    write_result(result(*FIGURES), path)
    assert read_result(path) == result(*FIGURES)
    assert '"verdict": "not reached"' in path.read_text()


def test_the_drawing_has_a_bar_for_every_figure_with_a_target() -> None:
    drawing = ET.fromstring(plot(result(*FIGURES)))
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "CPU per poll, nginx : ours, keep-alive" in texts
    assert "start with 100,000 VMs" not in texts
    assert "first start, which applies the fleet file" not in texts
    bars = [bar for bar in drawing.iter("{http://www.w3.org/2000/svg}rect") if bar.get("x")]
    assert len(bars) == 3


def test_a_better_figure_has_a_longer_bar_within_the_drawing() -> None:
    assert (
        x_position(0.0001)
        == x_position(0.05)
        < x_position(0.5)
        < x_position(1)
        < x_position(2)
        < x_position(20)
        == x_position(1000)
    )


@pytest.mark.parametrize(("value", "text"), [(0.12345, "0.123"), (13.75, "13.8"), (12345.6, "12,346")])
def test_a_value_is_shown_with_three_digits_or_as_an_integer(value: float, text: str) -> None:
    assert format_value(value) == text
