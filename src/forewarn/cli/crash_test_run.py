"""Runs `forewarn crash-test`: checks its options, runs the cases, prints and writes the result."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from forewarn import __version__
from forewarn.base.clock import read_real_time
from forewarn.base.times import time_text
from forewarn.base.wording import first_names
from forewarn.cli.invocation import Invocation
from forewarn.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.crash_test.case import Case
    from forewarn.crash_test.result import CrashTestResult
    from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, RunProgress

_CASES_PER_CORE = 6  # handlers mostly sleep
_EXIT_NEW_FAILURES = 1
_EXIT_NOT_RUN = 2
_EXIT_UNKNOWN = 3
_STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """The files to which the result of a crash test is written, besides the terminal; None for none."""

    json: Path | None = None  # the whole result, for `crash-test replay`; `-`: stdout gets it, and nothing else
    html: Path | None = None  # a report with a timeline of each case
    junit: Path | None = None  # XML for CI servers
    badge: Path | None = None  # an SVG picture with the grade
    write_baseline: Path | None = None  # a new baseline (TOML); may be the file of --baseline, read before

    @property
    def is_json_on_stdout(self) -> bool:
        """Whether `json` is `-`: then stdout gets only the JSON, and what people read goes to stderr."""
        return self.json == _STDOUT

    def require_writable(self) -> None:
        """Raise Rejected unless every given file can be written, and all are different; write none."""
        from forewarn.crash_test.preflight import require_writable

        seen: dict[Path, str] = {}
        for name in ("json", "html", "junit", "badge", "write_baseline"):
            path: Path | None = getattr(self, name)
            if path is None or (name == "json" and self.is_json_on_stdout):
                continue
            option = f"--{name.replace('_', '-')}"
            require_writable(path, option)
            if earlier := seen.get(path.resolve()):
                raise Rejected(f"{earlier} and {option} name the same file {str(path)!r}: give two different files")
            seen[path.resolve()] = option


def load_known_cases(files: Sequence[Path]) -> tuple[Case, ...]:
    """Return the built-in cases, then those of the user's case files, in the order of the files."""
    from forewarn.crash_test.case import load_case_file
    from forewarn.crash_test.preflight import combine_cases

    return combine_cases([case for path in files for case in load_case_file(path)])


def make_plan(handler: tuple[str, ...], known: Sequence[Case], options: Mapping[str, Any]) -> CrashTestPlan:
    """Check the options and return what to run; starts nothing."""
    from forewarn.crash_test.claims import DEFAULT_CLAIMS, HandlerProfile, load_claims
    from forewarn.crash_test.preflight import require_handler, require_variable_name, select_cases
    from forewarn.crash_test.runner import CrashTestPlan

    if options["attach"]:
        _check_attachment(handler, options)
    else:
        require_handler(handler)
    if options["endpoint_env"]:
        require_variable_name(options["endpoint_env"])
    profile = HandlerProfile(options["profile"])
    only = [name.strip() for name in options["only"].split(",") if name.strip()]
    claimed = options["claims"]
    cases = select_cases(known, profile, only)
    return CrashTestPlan(
        command=handler,
        profile=profile,
        claims=load_claims(claimed, profile) if claimed else DEFAULT_CLAIMS[profile],
        cases=cases,
        left_out=len(select_cases(known, profile)) - len(cases),
        seed=options["seed"],
        endpoint_env=options["endpoint_env"],
        prepared=options["prepared"],
        recovered=options["recovered"],
        speed=options["lab_time"],
        at_once=options["at_once"] or _CASES_PER_CORE * (os.cpu_count() or 1),
        case_files=options["case_files"],
        attached=options["attach"],
        vm=options["vm"] if options["attach"] else "",
    )


def _check_attachment(handler: tuple[str, ...], options: Mapping[str, Any]) -> None:
    from forewarn.crash_test.preflight import require_vm_name

    if handler:
        raise Rejected("--attach observes a handler that runs already: leave its command out")
    if options["endpoint_env"] or options["at_once"]:
        raise Rejected("--attach starts no handler: leave --endpoint-env and --at-once out")
    require_vm_name(options["vm"])


def run_plan(call: Invocation, plan: CrashTestPlan) -> CrashTestResult:
    """Run all cases of the plan, with a progress bar on a terminal, and return the result."""
    from forewarn.crash_test.preflight import require_namespaces
    from forewarn.crash_test.result import build_result
    from forewarn.crash_test.runner import run_attached_cases, run_cases

    if not plan.endpoint_env and not plan.attached:
        require_namespaces()
    at = time_text(read_real_time())
    done: list[JudgedCase] = []
    stopped: list[signal.Signals] = []

    async def run(show: Callable[[RunProgress], None]) -> list[JudgedCase]:
        def on_progress(progress: RunProgress) -> None:
            done[:] = progress.done
            show(progress)

        task = asyncio.create_task(
            run_cases(plan, on_progress) if listener is None else run_attached_cases(plan, listener, on_progress)
        )

        def stop(number: signal.Signals) -> None:
            if not stopped:  # a second one must not interrupt the end
                task.cancel()
            stopped.append(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await task

    with _listener(call, plan) as listener, show_progress(call, len(plan.cases)) as show:
        try:
            judged = asyncio.run(run(show))
        except asyncio.CancelledError:
            judged = []
    if stopped:
        call.output.print_error(_interrupted_message(plan, done), code="Interrupted")
        raise click.exceptions.Exit(128 + stopped[0])
    return build_result(plan, judged, version=__version__, at=at, machine=_describe_machine())


@contextmanager
def _listener(call: Invocation, plan: CrashTestPlan) -> Iterator[socket.socket | None]:
    """Listen for the handler of the plan that runs elsewhere, and say where; yields None if there is none."""
    from forewarn.crash_test.attached import endpoint_url, listen_for_handler
    from forewarn.crash_test.runner import FIRST_POLL_WITHIN_S

    if not plan.attached:
        yield None
        return
    with listen_for_handler(plan.attached) as listener:
        call.output.stderr.print(
            f"Point the handler at {endpoint_url(listener)} (its VM is {plan.vm}). Waiting up to "
            f"{FIRST_POLL_WITHIN_S / 60:.0f} minutes for its first poll.",
            highlight=False,
            soft_wrap=True,
        )
        yield listener


@contextmanager
def show_progress(call: Invocation, total: int) -> Iterator[Callable[[RunProgress], None]]:
    """Context manager that shows a progress bar on stderr, if that is a terminal, during its block."""
    with Progress(
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        expand=True,
        console=call.output.stderr,
        disable=not call.output.stderr.is_terminal,
    ) as progress:
        task = progress.add_task("crash test", total=total)

        def show(state: RunProgress) -> None:
            failed = sum(judged.verdict.outcome == "fail" for judged in state.done)
            count = f"{failed} failed; " if failed else ""
            running = f"running {', '.join(state.running)}" if state.running else "done"
            progress.update(task, completed=len(state.done), description=f"{count}{running}")

        yield show


def _interrupted_message(plan: CrashTestPlan, done: list[JudgedCase]) -> str:
    from forewarn.crash_test.verdict import CaseOutcome

    failed = [judged.case.id for judged in done if judged.verdict.outcome is CaseOutcome.FAIL]
    text = f"interrupted after {len(done)} of {len(plan.cases)} cases: everything has ended, and no report was written"
    return f"{text}; failed before that: {', '.join(failed)}" if failed else text


def report_result(
    call: Invocation,
    result: CrashTestResult,
    files: ReportFiles,
    expected: Mapping[str, str] | None = None,
    *,
    allow_unknown: bool = False,
) -> int:
    """Print the result, write its report files, and return the exit code of the command.

    Prints to stdout, or to stderr if stdout gets the JSON. `expected` has the failures of the baseline, case id →
    reason (None without a baseline); cases in it that passed are named too. Replaces existing files, in the order JSON,
    JUnit, HTML, badge, baseline; raises OSError if one cannot be written, and the files before it stay.
    """
    from forewarn.crash_test.baseline import compare_with_baseline
    from forewarn.crash_test.grading import Grade
    from forewarn.crash_test.text_report import render_result

    console = call.output.stderr if files.is_json_on_stdout else call.output.stdout
    result_file = str(files.json) if files.json and not files.is_json_on_stdout else ""
    console.print(render_result(result, result_file=result_file, expected=expected or {}))
    comparison = compare_with_baseline(result, expected or {})
    for case in comparison.fixed:
        console.print(f"{case} is in the baseline and passed: remove it from the baseline.", soft_wrap=True)
    _write_files(result, files, expected or {})
    if result.grade.grade is Grade.NOT_RUN:
        return _EXIT_NOT_RUN
    if comparison.new_failures:
        return _EXIT_NEW_FAILURES
    if not result.grade.unknown or allow_unknown:
        return 0
    # A CI job that may lose work must not look like one that does not.
    console.print(f"It is unknown whether work is lost: exit code {_EXIT_UNKNOWN} (0 with --allow-unknown).")
    return _EXIT_UNKNOWN


def _write_files(result: CrashTestResult, files: ReportFiles, expected: Mapping[str, str]) -> None:
    from forewarn.crash_test.baseline import baseline_text
    from forewarn.crash_test.ci_reports import badge_svg, junit_xml
    from forewarn.crash_test.html_report import html_report
    from forewarn.crash_test.result import encode_result

    if files.is_json_on_stdout:
        click.echo(encode_result(result), nl=False)
    elif files.json:
        files.json.write_bytes(encode_result(result))
    if files.junit:
        files.junit.write_bytes(junit_xml(result, expected))
    if files.html:
        files.html.write_text(html_report(result), encoding="utf-8")
    if files.badge:
        files.badge.write_text(badge_svg(result.grade.grade), encoding="utf-8")
    if files.write_baseline:
        files.write_baseline.write_text(baseline_text(result, expected), encoding="utf-8")


def plan_replay(result: CrashTestResult, case: Case) -> CrashTestPlan:
    """Return a plan that runs one case again, with the handler, claims and seed of an earlier result."""
    from forewarn.crash_test.runner import CrashTestPlan

    return CrashTestPlan(
        command=result.command,
        profile=result.profile,
        claims=result.claims,
        cases=(case,),
        seed=result.seed,
        endpoint_env=result.endpoint_env,
        prepared=result.prepared,
        recovered=result.recovered,
        speed=result.speed,
        case_files=tuple(map(Path, result.case_files)),
        attached=result.attached,
        vm=result.vm,
    )


def find_case_of_result(result: CrashTestResult, path: Path, case_id: str) -> Case:
    """Return the case with this id of the result in file `path`, as it is defined now."""
    from difflib import get_close_matches

    from forewarn.crash_test.case import load_case_file
    from forewarn.crash_test.cases import find_case

    ids = [case.id for case in result.cases]
    if case_id not in ids:
        close = get_close_matches(case_id, ids, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {first_names(ids)}"
        raise Rejected(f"{str(path)!r} has no case {case_id!r}: {hint}")
    return find_case(case_id, [case for file in result.case_files for case in load_case_file(Path(file))])


def _describe_machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
