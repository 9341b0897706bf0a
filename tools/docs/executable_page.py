"""Pages whose commands run as they are written: tutorials, and tours of other pages.

`python -m tools.docs.executable_page docs/tutorials/PAGE.md` runs a page and writes the outputs that have changed into
it. In a page:

- a `console` block has commands after `$ `, each with the output that it prints below it. Ids, times, durations and
  line breaks may differ; a line `…` stands for any lines. A command succeeds, unless the next one is `echo $?`;
- an `sh` block has commands whose output does not matter;
- a block with a title, such as ```` ```python title="handler.py" ````, is a file that the reader writes.

Blocks that install forewarn are not run: the page runs with the forewarn of this environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from tools.docs.shell_session import ShellSession

ROOT = Path(__file__).parents[2]
DEFAULT_PORTS = (8254, 8443)  # for VMs and for operators, of a lab without options, as pages show them
_BLOCK = re.compile(r"^```(\w[\w-]*)?(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_SHELL_LINE = re.compile(r"^(?![#\s])((?:.*\\\n)*.+)$", re.MULTILINE)
_INSTALL = re.compile(r"^(?:\S*/)?pip install ", re.MULTILINE)
_CHANGING = [  # what differs from run to run, in the order in which it is replaced
    (r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b", "ID"),
    (r"\b(?:[0-9A-F]{8}|[0-9a-f]{8})\b", "ID"),
    (r"\b\w{3}, \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT", "DATE"),
    (r"\b\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}Z?)?", "TIME"),
    (r"\b\w{3} \d{1,2} \d{2}:\d{2}(:\d{2})?", "TIME"),
    (r"\b\d{2}:\d{2}:\d{2}\b", "TIME"),
    (r"(?<=TIME) (?:UTC[+-]\d{2,4}|[A-Z]{3,5})\b", " ZONE"),
    (r"less than a second|\b[\d.]+ ?(seconds?|min|ms|s|m|h|d|days?|hours?)\b( \d+ ?(min|s|m|h)\b)*", "SPAN"),
    (r"\(in SPAN\)|\(SPAN ago\)|SPAN ago", "WHEN"),
    (r"local user \w+", "local user"),
    (r"process +\d+", "process N"),
    (r"\bforewarn \d[\w.+]*", "forewarn VERSION"),
    (r"sign-in/once/[\w-]+", "sign-in/once/TOKEN"),
    (r"(?:/[\w.@-]+)+/\.local/state/forewarn", "DATA"),
]


@dataclass(frozen=True, slots=True)
class FileStep:
    """A file that the reader writes; `name` is relative to the directory where the reader is."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class CommandStep:
    """A command and the output that the page shows; None: the page shows none.

    `may_fail` says that the next command of the page shows the exit status.
    """

    command: str
    expected: str | None
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command of a page after its run."""

    step: CommandStep
    output: str
    status: int

    @property
    def problem(self) -> str:
        """What differs from the page; "" if nothing does."""
        if self.status and not self.step.may_fail:
            return f"$ {self.step.command}\n{self.output}\nexit status {self.status}"
        if self.step.expected is not None and not is_same_output(self.step.expected, self.output):
            return f"$ {self.step.command}\nprints\n{self.output}\nand the page says\n{self.step.expected}"
        return ""


def page_steps(text: str, languages: Sequence[str] = ("console", "sh")) -> list[FileStep | CommandStep]:
    """Return what a reader does on this page, in order. `languages` are those of blocks with commands."""
    steps: list[FileStep | CommandStep] = []
    for language, title, body in _BLOCK.findall(text):
        if title:
            steps.append(FileStep(title, body))
        elif language not in languages or _INSTALL.search(body):
            continue
        elif language == "sh":
            steps += [CommandStep(line, None) for line in _SHELL_LINE.findall(body)]
        else:
            steps += _console_steps(body)
    return steps


def _console_steps(body: str) -> list[CommandStep]:
    _, *parts = _COMMAND.split(body)
    steps = [CommandStep(command, output) for command, output in zip(parts[::2], parts[1::2], strict=True)]
    following = [step.command for step in steps[1:]] + [""]
    return [replace(step, may_fail=after == "echo $?") for step, after in zip(steps, following, strict=True)]


class PageShell:
    """A shell for the commands of a page, with an empty home, and with ports of its own for the page's lab."""

    def __init__(self, shell: ShellSession, ports: tuple[int, int]) -> None:
        self._shell = shell
        self._ports = ports

    def run_steps(self, steps: Sequence[FileStep | CommandStep]) -> Iterator[RunStep]:
        """Do what the reader does, and yield each command once it has run, with the page's ports in its output."""
        for step in steps:
            if isinstance(step, FileStep):
                path = Path(self._shell.run("pwd").output.rstrip("\n")) / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text, encoding="utf-8")
            else:
                done = self._shell.run(_replace_ports(step.command, DEFAULT_PORTS, self._ports))
                yield RunStep(step, _replace_ports(done.output, self._ports, DEFAULT_PORTS), done.status)


@contextmanager
def open_page_shell(*, ports: tuple[int, int], terminal: str = "dumb", **variables: str) -> Iterator[PageShell]:
    """Open a shell in an empty temporary directory, where the folder `forewarn` is this one.

    `ports` are those of the lab that the page starts; a lab that still runs at the end is stopped. `terminal` is the
    kind of terminal, which decides whether programs print colours. `variables` are added to the environment.
    """
    with tempfile.TemporaryDirectory(prefix="page-") as base:  # its path is short, as those of unix sockets must be
        directory, home = Path(base, "work"), Path(base, "home")
        directory.mkdir()
        home.mkdir()
        (directory / "forewarn").symlink_to(ROOT)
        environment = _page_environment(home, ports) | {"TERM": terminal, **variables}
        try:
            with ShellSession(directory, environment, scratch=Path(base)) as shell:
                yield PageShell(shell, ports)
        finally:
            if any(home.iterdir()):  # a lab keeps its data there
                subprocess.run(["forewarn", "down", "--json"], env=environment, stdout=subprocess.DEVNULL, check=True)


def _page_environment(home: Path, ports: tuple[int, int]) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "PYTEST_ADDOPTS": "-p no:schemathesis",  # of the development tools, which readers do not have
        "FOREWARN_PORT": str(ports[0]),
        "FOREWARN_API": f"127.0.0.1:{ports[1]}",
    }


def chosen_ports() -> tuple[int, int]:
    """Return the ports for a lab, for VMs and for operators: FOREWARN_PORT and FOREWARN_API, or the defaults."""
    console = os.environ.get("FOREWARN_API", f"127.0.0.1:{DEFAULT_PORTS[1]}")
    return int(os.environ.get("FOREWARN_PORT", DEFAULT_PORTS[0])), int(console.rpartition(":")[2])


def run_problems(text: str, ports: tuple[int, int]) -> list[str]:
    """Run a page, with its lab on these ports, and return what differs from its text, up to the first difference."""
    with open_page_shell(ports=ports) as shell:
        return list(islice((run.problem for run in shell.run_steps(page_steps(text)) if run.problem), 1))


def _replace_ports(text: str, old: tuple[int, int], new: tuple[int, int]) -> str:
    for before, after in zip(old, new, strict=True):
        text = re.sub(rf"(?<=:){before}\b|(?<=port ){before}\b", str(after), text)
    return text


def is_same_output(expected: str, actual: str) -> bool:
    """Return whether two outputs are the same but for ids, times, durations, paths and line breaks.

    A line `…` of `expected` stands for any lines.
    """
    parts = re.split(r"^\s*…\s*$", expected, flags=re.MULTILINE)
    pattern = ".*".join(re.escape(_mask(part)) for part in parts)
    return re.fullmatch(pattern, _mask(actual)) is not None


def _mask(text: str) -> str:
    """Return the text on one line, with names in place of what differs from run to run."""
    text = " ".join(text.split())
    for pattern, name in _CHANGING:
        text = re.sub(pattern, name, text)
    return text


def record_page(text: str, shell: PageShell) -> str:
    """Run a page, and return its text with the outputs that have changed."""
    at = 0
    for run in shell.run_steps(page_steps(text)):
        shown = f"$ {run.step.command}\n{run.step.expected or ''}"
        at = text.index(shown if run.step.expected is not None else run.step.command, at)
        if run.problem and run.step.expected is not None:
            text = text[:at] + text[at:].replace(shown, f"$ {run.step.command}\n{_trim_lines(run.output)}", 1)
    return text


def _trim_lines(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        with open_page_shell(ports=chosen_ports()) as shell:
            page.write_text(record_page(page.read_text(encoding="utf-8"), shell), encoding="utf-8")
