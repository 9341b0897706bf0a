"""The agent's configuration: TOML in, rules and steps out, or everything that is wrong with it (docs/agent.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forewarn.agent.face import LISTEN, read_address
from forewarn.agent.rule_table import rules_of
from forewarn.agent.step_table import steps_of
from forewarn.agent.table import BadConfig, Problem, Table
from forewarn.agent.value import Rule, Step, When
from forewarn.client.endpoint import read_endpoint
from forewarn.errors import Rejected
from forewarn.tomlfile import faulty_line, lines_of

STATE = "/var/lib/forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    endpoint: str | None = None  # None: it is found (spec §2.5)
    vm: str = ""  # "": the endpoint is asked
    state: Path = Path(STATE)
    listen: str = LISTEN
    board: Path | None = None
    grace_s: float = 5.0  # for steps under way when the agent is told to stop
    steps: Mapping[str, Step] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    @property
    def journal(self) -> Path:
        return self.state / "journal.db"

    @property
    def cursor(self) -> Path:
        return self.state / "cursor.json"

    @property
    def folders(self) -> Path:
        """Where each step of each event has a folder of its own."""
        return self.state / "steps"


def load(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or "no reason given"
        raise Rejected(f"the agent's file {str(path)!r} cannot be read ({why}): name another with --config") from error
    except UnicodeDecodeError as error:
        raise Rejected(f"the agent's file {str(path)!r} is not UTF-8: save it as that") from error
    return read(text, str(path))


def read(text: str, source: str = "agent.toml") -> Config:
    """Raises BadConfig with all that is wrong."""
    problems: list[Problem] = []
    try:
        whole = Table(tomllib.loads(text), (), "the file", lines_of(text), problems)
    except ValueError as error:
        line = faulty_line(str(error), text)
        what = Problem(line=line, what=f"this is not TOML ({error})", remedy="correct that line")
        raise BadConfig([what], source=source) from error
    config = _config(whole)
    if problems:
        raise BadConfig(problems, source=source)
    return config


def _config(whole: Table) -> Config:
    steps = steps_of(whole)
    board = _path(whole, "board")
    rules = rules_of(whole, steps)
    if board is None and any(rule.approve.when is When.ALL_DONE for rule in rules):
        whole.refuse("rules", 'approve = "when-all-done" needs a board', 'write board = "/a/folder/that/all/VMs/share"')
    config = Config(
        endpoint=_endpoint(whole),
        vm=whole.text("vm"),
        state=_path(whole, "state") or Path(STATE),
        listen=LISTEN if not whole.has("listen") else _listen(whole),
        board=board,
        grace_s=whole.seconds("grace", 5.0),
        steps=steps,
        rules=rules,
    )
    whole.finish("listen")
    return config


def _endpoint(whole: Table) -> str | None:
    text = whole.text("endpoint")
    try:
        return str(read_endpoint(text)) if text else None
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        whole.refuse("endpoint", what, remedy)
        return None


def _path(whole: Table, key: str) -> Path | None:
    text = whole.text(key)
    if text and not text.startswith("/"):
        whole.refuse(key, f"{key} = {text!r} is not an absolute path", f'write {key} = "/…"')
    return Path(text) if text else None


def _listen(whole: Table) -> str:
    """ "" is an answer too: no pages."""
    text = "" if whole.raw["listen"] == "" else whole.text("listen")
    try:
        if text:
            read_address(text)
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        whole.refuse("listen", what, remedy)
    return text
