"""Runs the crash test of the handlers in examples/handlers, with the commands of their README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from forewarn.crash_test.result import CrashTestResult, load_result

EXAMPLES = Path(__file__).parents[2] / "examples" / "handlers"
NEEDED_PROGRAMS = {"shell/": ("curl", "jq"), "node/": ("node",), "go/": ("go",)}  # beside Python
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def readme_command(handler: str) -> str:
    """Return the commands of the README that run the crash test of this handler.

    `handler` is the beginning of the path of its claims file, such as `shell/` or `agent/spot-`.
    """
    found = [block for block in _SHELL_BLOCK.findall(readme_text()) if f"--claims {handler}claims.toml" in block]
    assert len(found) == 1, f"the README has {len(found)} blocks of commands for {handler}"
    return str(found[0])


def readme_text() -> str:
    """Return the README of the examples."""
    return (EXAMPLES / "README.md").read_text(encoding="utf-8")


def missing_programs(handler: str) -> list[str]:
    """Return the programs that this handler needs and the machine does not have."""
    return [program for program in NEEDED_PROGRAMS.get(handler, ()) if shutil.which(program) is None]


def run_crash_test(handler: str, options: str, directory: Path) -> tuple[int, CrashTestResult]:
    """Run the crash test of this handler as the README says, in a copy of the examples below `directory`.

    `handler` is as in `readme_command`. `options` are added, such as `--only notice-reboot`. Returns the exit status
    and the result.
    """
    copy = directory / "handlers"
    shutil.copytree(EXAMPLES, copy)
    result_file = directory / "result.json"
    command = readme_command(handler).replace(
        "forewarn crash-test", f"forewarn crash-test {options} --json {result_file}"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=copy,
        env={**os.environ, "PATH": path, "GOCACHE": str(directory / "go-cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result_file.exists(), done.stdout + done.stderr
    return done.returncode, load_result(result_file)


def describe_failures(result: CrashTestResult) -> str:
    """Return all findings that are not passes, for the message of a failed test."""
    return "\n".join(
        f"{case.id}: {finding.outcome}: {finding.demand}: {finding.seen}"
        for case in result.cases
        for finding in case.verdict.findings
        if finding.outcome not in ("pass", "not applicable")
    )
