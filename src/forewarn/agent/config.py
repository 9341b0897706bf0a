"""Reads the agent's configuration file into rules and steps, or reports all its problems.

docs/agent.md documents the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forewarn.agent.config_table import BadConfig, ConfigProblem, ConfigTable, suggest_name
from forewarn.agent.http_server import DEFAULT_LISTEN_ADDRESS, parse_listen_address
from forewarn.agent.model import OWN_VM, ApprovalCheckConfig, ApprovalPolicy, ApproveWhen, RuleConfig, StepConfig
from forewarn.agent.reactions import REACTIONS, BadOption
from forewarn.agent.rules import PROFILE_NOTICE_S, PROFILES, excess_budget_s
from forewarn.client.endpoint import parse_endpoint
from forewarn.errors import Rejected
from forewarn.protocol.document import EventSource, Kind
from forewarn.tomlfile import error_line, index_lines

DEFAULT_STATE_DIRECTORY = "/var/lib/forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    endpoint: str | None = None  # None: it is found (spec §2.5)
    vm: str = ""  # "": the endpoint is asked
    state: Path = Path(DEFAULT_STATE_DIRECTORY)
    listen: str = DEFAULT_LISTEN_ADDRESS
    board: Path | None = None
    grace_s: float = 5.0  # for steps under way when the agent is told to stop
    steps: Mapping[str, StepConfig] = field(default_factory=dict)
    rules: tuple[RuleConfig, ...] = ()

    @property
    def journal_path(self) -> Path:
        return self.state / "journal.db"

    @property
    def cursor_path(self) -> Path:
        return self.state / "cursor.json"

    @property
    def step_folders(self) -> Path:
        """Where each step of each event has a folder of its own."""
        return self.state / "steps"


def load_config(path: Path) -> AgentConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or "no reason given"
        raise Rejected(f"the agent's file {str(path)!r} cannot be read ({why}): name another with --config") from error
    except UnicodeDecodeError as error:
        raise Rejected(f"the agent's file {str(path)!r} is not UTF-8: save it as that") from error
    return parse_config(text, str(path))


def parse_config(text: str, source: str = "agent.toml") -> AgentConfig:
    """Raises BadConfig with all that is wrong."""
    problems: list[ConfigProblem] = []
    try:
        whole = ConfigTable(tomllib.loads(text), (), "the file", index_lines(text), problems)
    except ValueError as error:
        line = error_line(str(error), text)
        what = ConfigProblem(line=line, what=f"this is not TOML ({error})", remedy="correct that line")
        raise BadConfig([what], source=source) from error
    config = _read_config(whole)
    if problems:
        raise BadConfig(problems, source=source)
    return config


def _read_config(whole: ConfigTable) -> AgentConfig:
    steps = read_steps(whole)
    board = _read_absolute_path(whole, "board")
    rules = read_rules(whole, steps)
    if board is None and any(rule.approve.when is ApproveWhen.ALL_DONE for rule in rules):
        whole.add_problem(
            "rules", 'approve = "when-all-done" needs a board', 'write board = "/a/folder/that/all/VMs/share"'
        )
    config = AgentConfig(
        endpoint=_read_endpoint(whole),
        vm=whole.read_text("vm"),
        state=_read_absolute_path(whole, "state") or Path(DEFAULT_STATE_DIRECTORY),
        listen=DEFAULT_LISTEN_ADDRESS if not whole.has("listen") else _read_listen(whole),
        board=board,
        grace_s=whole.read_seconds("grace", 5.0),
        steps=steps,
        rules=rules,
    )
    whole.reject_unknown_keys("listen")
    return config


def _read_endpoint(whole: ConfigTable) -> str | None:
    text = whole.read_text("endpoint")
    try:
        return str(parse_endpoint(text)) if text else None
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        whole.add_problem("endpoint", what, remedy)
        return None


def _read_absolute_path(whole: ConfigTable, key: str) -> Path | None:
    text = whole.read_text(key)
    if text and not text.startswith("/"):
        whole.add_problem(key, f"{key} = {text!r} is not an absolute path", f'write {key} = "/…"')
    return Path(text) if text else None


def _read_listen(whole: ConfigTable) -> str:
    """ "" is an answer too: no pages."""
    text = "" if whole.raw["listen"] == "" else whole.read_text("listen")
    try:
        if text:
            parse_listen_address(text)
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        whole.add_problem("listen", what, remedy)
    return text


_UNDO_OUTCOMES = ("finished", "withdrawn", "unknown")


def read_rules(whole: ConfigTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    """The file's own rules in their order, then those of its profile."""
    rules = tuple(_read_rule(table, number, steps) for number, table in enumerate(whole.read_tables("rules"), start=1))
    _check_unique_names(whole, rules)
    every = (*rules, *_read_profile(whole, steps))
    if not every and not whole.raw.get("profile"):
        whole.add_problem("", "the file has no rules", 'write profile = "fifteen-minutes", or [[rules]]')
    return every


def _read_profile(whole: ConfigTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    """A profile takes all steps, in the order of the file."""
    name = whole.read_text("profile")
    if not name:
        return ()
    if name not in PROFILES:
        whole.add_problem("profile", f"there is no profile {name!r}", suggest_name(name, PROFILES, ""))
        return ()
    if not steps:
        whole.add_problem("profile", f"the profile {name!r} has no steps to take", "write [steps.NAME] with what to do")
    over_s = excess_budget_s(name, list(steps.values()))
    if over_s:
        what = f"the steps need {over_s:g} s more than the {PROFILE_NOTICE_S[name]:g} s of the profile {name!r}"
        whole.add_problem("profile", what, "give less budget, or say with cut = 1 which goes first")
    return PROFILES[name](tuple(steps.values()))


def _read_rule(table: ConfigTable, number: int, steps: Mapping[str, StepConfig]) -> RuleConfig:
    rule = RuleConfig(
        name=table.read_text("name", f"rule {number}"),
        steps=_read_step_names(table, steps),
        kinds=table.read_words("kinds", [kind.value for kind in Kind]),
        sources=table.read_words("sources", [source.value for source in EventSource]),
        vms=table.read_text("vms", OWN_VM),
        min_duration_s=table.read_seconds("min_duration", None),
        max_duration_s=table.read_seconds("max_duration", None),
        min_left_s=table.read_seconds("min_left", None),
        max_left_s=table.read_seconds("max_left", None),
        begin=table.read_choice("begin", ("at-once", "late"), "at-once"),
        margin_s=table.read_seconds("margin", 5.0),
        no_time=table.read_choice("no_time", ("essential", "all", "nothing"), "essential"),
        undo_on=table.read_words("undo_on", _UNDO_OUTCOMES, _UNDO_OUTCOMES),
        approve=_read_approval_policy(table),
        approval_check=_read_approval_check(table),
    )
    _check_rule(table, rule)
    table.reject_unknown_keys("absent")
    return rule


def _read_step_names(table: ConfigTable, steps: Mapping[str, StepConfig]) -> tuple[StepConfig, ...]:
    names = table.read_texts("steps")
    for name in names:
        if name not in steps:
            remedy = suggest_name(name, steps, f"write [steps.{name}] with what to do")
            table.add_problem("steps", f"there is no step {name!r}", remedy)
    if len(set(names)) < len(names):
        table.add_problem("steps", "a step is named twice", "name each once: it is taken once for an event")
    return tuple(steps[name] for name in names if name in steps)


def _read_approval_policy(table: ConfigTable) -> ApprovalPolicy:
    when = ApproveWhen(table.read_choice("approve", tuple(ApproveWhen), ApproveWhen.NEVER.value))
    waits = table.raw.get("absent", "wait") == "wait"
    absent_after_s = None if waits else table.read_seconds("absent", None)
    if not waits and when is not ApproveWhen.ALL_DONE:
        table.add_problem(
            "absent", "absent says nothing without other VMs", 'write approve = "when-all-done", or leave it'
        )
    return ApprovalPolicy(when=when, absent_after_s=absent_after_s)


def _read_approval_check(table: ConfigTable) -> ApprovalCheckConfig | None:
    gate = table.read_table("gate")
    if gate is None:
        return None
    made = ApprovalCheckConfig(
        command=gate.read_command_line("command"),
        url=gate.read_url("url"),
        timeout_s=gate.read_seconds("timeout", 10.0, least=0.1),
        every_s=gate.read_seconds("every", 10.0, least=0.1),
        deadline_s=gate.read_seconds("deadline", 300.0),
        on_silence=gate.read_choice("on_silence", ("wait", "approve"), "wait"),
    )
    gate.reject_unknown_keys()
    if bool(made.command) == bool(made.url):
        table.add_problem("gate", "a gate is a command or a url", 'write gate = { command = ["/usr/local/bin/may-i"] }')
    return made


def _check_rule(table: ConfigTable, rule: RuleConfig) -> None:
    for name in ("duration", "left"):
        least, most = getattr(rule, f"min_{name}_s"), getattr(rule, f"max_{name}_s")
        if least is not None and most is not None and least > most:
            table.add_problem(f"min_{name}", f"min_{name} is more than max_{name}", "swap them")
    if rule.approval_check is not None and rule.approve.when is ApproveWhen.NEVER:
        table.add_problem("gate", "a gate stands before no approval", 'write approve = "when-done"')


def _check_unique_names(whole: ConfigTable, rules: tuple[RuleConfig, ...]) -> None:
    names = [rule.name for rule in rules]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            whole.add_problem("rules", f"two rules are called {name!r}", "give each a name of its own")


_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# What every step may say; all else is its reaction's.
_COMMON_STEP_KEYS = (
    *("use", "budget", "cut", "begin", "repeatable", "unclear"),
    *("undo_when", "undo_budget", "undo_tries", "survives_reboot"),
)


def read_steps(whole: ConfigTable) -> dict[str, StepConfig]:
    tables = whole.read_table("steps")
    if tables is None:
        return {}
    named = {name: tables.read_table(name) for name in tables.raw}
    for name in named:
        if not _STEP_NAME.fullmatch(name):
            tables.add_problem(name, f"a step cannot be called {name!r}", "use letters, digits, - and _")
    return {name: _read_step(name, table) for name, table in named.items() if table is not None}


def _read_step(name: str, table: ConfigTable) -> StepConfig:
    table.title = f"[steps.{name}]"
    use = table.read_required_text("use", '"command"')
    kind = REACTIONS.get(use)
    if kind is None and use:
        table.add_problem("use", f"there is no reaction {use!r}", suggest_name(use, REACTIONS, ""))
    tells = kind is not None and not kind.shared_by_events
    if not table.has("budget"):
        table.add_problem("", f"{table.title} has no budget", 'write budget = "30s" below it')
    step = StepConfig(
        name=name,
        use=use,
        budget_s=table.read_seconds("budget", 30.0, least=0.1),
        cut=table.read_number("cut", None, 0, 1_000),
        begin=table.read_choice("begin", ("at-once", "late"), "at-once") if table.has("begin") or tells else None,
        repeatable=table.read_flag("repeatable", default=tells),
        unclear=table.read_choice("unclear", ("repeat", "skip", "report"), "report"),
        undo=_read_undo(table, undoes=kind is None or kind.has_undo),
        undo_budget_s=table.read_seconds("undo_budget", 60.0, least=0.1),
        undo_tries=table.read_number("undo_tries", 3, 1, 1_000) or 3,
        survives_reboot=table.read_flag("survives_reboot", default=True),
        shared_by_events=not tells,
        options=_read_reaction_options(table, use),
    )
    if kind is not None:
        table.reject_unknown_keys("begin", *kind.options)
    return step


def _read_undo(table: ConfigTable, *, undoes: bool) -> Literal["when-gone", "never"]:
    when = table.read_choice("undo_when", ("gone", "never"), "gone" if undoes else "never")
    return "never" if when == "never" else "when-gone"


def _read_reaction_options(table: ConfigTable, use: str) -> object:
    kind = REACTIONS.get(use)
    if kind is None:
        return None
    try:
        return kind.read({key: value for key, value in table.raw.items() if key not in _COMMON_STEP_KEYS})
    except BadOption as bad:
        table.add_problem(bad.key, bad.what, bad.remedy)
        return None
