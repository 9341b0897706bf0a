"""Reads the agent's configuration file into rules and steps, or reports all its problems.

docs/how-to/agent.md documents the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from forewarn.agent.approval import PROFILE_NOTICE_S, PROFILES, excess_budget_s
from forewarn.agent.model import (
    MAX_UNDO_TRIES,
    OWN_VM,
    ApprovalCheckConfig,
    ApprovalPolicy,
    ApproveWhen,
    RuleConfig,
    StepConfig,
)
from forewarn.agent.reactions import REACTIONS
from forewarn.base.duration import exact_duration_text
from forewarn.base.tomlfile import (
    BadValue,
    TomlTable,
    parse_toml,
    read_choice,
    read_command_line,
    read_flag,
    read_number,
    read_seconds,
    read_text,
    read_text_file,
    read_texts,
    read_url,
    suggest_name,
)
from forewarn.client.endpoint import parse_endpoint
from forewarn.errors import Rejected
from forewarn.protocol.document import EventSource, Kind

DEFAULT_LISTEN_ADDRESS = "127.0.0.1:9258"
DEFAULT_STATE_DIRECTORY = "/var/lib/forewarn-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The agent's configuration; `load_config` and `parse_config` check the values, the constructor does not."""

    endpoint: str | None = None  # URL of the metadata endpoint; None: the environment's, else discover it (spec §2.5)
    vm: str = ""  # this VM's name; "": ask the endpoint
    state: Path = Path(DEFAULT_STATE_DIRECTORY)  # absolute: folder of journal, cursor and step folders
    listen: str = DEFAULT_LISTEN_ADDRESS  # host:port of the agent's pages; "": the agent serves no pages
    board: Path | None = None  # folder of the readiness board, which all VMs share; None: no board
    grace_s: float = 5.0  # real seconds that running steps get when the agent stops
    steps: Mapping[str, StepConfig] = field(default_factory=dict)  # by name, in the order of the file
    rules: tuple[RuleConfig, ...] = ()  # the file's own, then its profile's; the first that matches an event applies
    file: Path | None = None  # from which it was read, for messages; None: from a text

    @property
    def journal_path(self) -> Path:
        """The journal's SQLite file: `journal.db` in `state`."""
        return self.state / "journal.db"

    @property
    def cursor_path(self) -> Path:
        """The file `cursor.json` in `state`: the events that the watch knows, kept between runs of the agent."""
        return self.state / "cursor.json"

    @property
    def step_folders(self) -> Path:
        """The folder `steps` in `state`, with a folder EVENT/STEP per step that was run; may not exist."""
        return self.state / "steps"


def load_config(path: Path) -> AgentConfig:
    """Read and validate the agent's TOML file; InvalidFile has all its problems."""
    text = read_text_file(path, "the agent's file", "give another with --config")
    return replace(parse_config(text, str(path)), file=path)


def parse_config(text: str, source: str = "agent.toml") -> AgentConfig:
    """Parse and validate the TOML text of an agent's file; `source` names the file in messages."""
    root = parse_toml(text, source)
    config = _read_config(root)
    root.raise_problems(source)
    return config


def _read_config(root: TomlTable) -> AgentConfig:
    steps = _read_steps(root)
    board = _read_absolute_path(root, "board")
    rules = _read_rules(root, steps)
    if board is None and any(rule.approve.when is ApproveWhen.ALL_DONE for rule in rules):
        root.add_problem(
            "rules", 'approve = "when-all-done" needs a board', 'write board = "/a/folder/that/all/VMs/share"'
        )
    config = AgentConfig(
        endpoint=_read_endpoint(root),
        vm=root.read(read_text, "vm"),
        state=_read_absolute_path(root, "state") or Path(DEFAULT_STATE_DIRECTORY),
        listen=DEFAULT_LISTEN_ADDRESS if not root.has("listen") else _read_listen(root),
        board=board,
        grace_s=root.read(read_seconds, "grace", 5.0),
        steps=steps,
        rules=rules,
    )
    root.reject_unknown_keys("listen")
    return config


def _read_endpoint(root: TomlTable) -> str | None:
    text = root.read(read_text, "endpoint")
    try:
        return str(parse_endpoint(text)) if text else None
    except Rejected as error:
        root.add_error("endpoint", error)
        return None


def _read_absolute_path(root: TomlTable, key: str) -> Path | None:
    text = root.read(read_text, key)
    if text and not text.startswith("/"):
        root.add_problem(key, f"{key} = {text!r} is not an absolute path", f'write {key} = "/…"')
    return Path(text) if text else None


def parse_listen_address(text: str) -> tuple[str, int]:
    """Split `127.0.0.1:9258` or `[::1]:9258` into host (without brackets) and port."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_valid = bool(colon and bare) and (":" not in bare or host != bare)
    if not is_valid or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise Rejected(f'listen = {text!r} is not an address: write "{DEFAULT_LISTEN_ADDRESS}", or "" for none')
    return bare, int(port)


def _read_listen(root: TomlTable) -> str:
    """Reads the listen address; "" means that the agent serves no pages."""
    text = "" if root.raw["listen"] == "" else root.read(read_text, "listen")
    try:
        if text:
            parse_listen_address(text)
    except Rejected as error:
        root.add_error("listen", error)
    return text


_BEGINNINGS = ("at-once", "late")
_UNDO_OUTCOMES = ("finished", "withdrawn", "unknown")


def _read_rules(root: TomlTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    rules = tuple(_read_rule(table, number, steps) for number, table in enumerate(root.read_tables("rules"), start=1))
    _check_unique_names(root, rules)
    profile_rules = _read_profile(root, steps)
    _check_profile_names(root, rules, profile_rules)
    all_rules = (*rules, *profile_rules)
    if not all_rules and not root.raw.get("profile"):
        root.add_problem("", "the file has no rules", 'write profile = "fifteen-minutes", or [[rules]]')
    return all_rules


def _read_profile(root: TomlTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    """Reads the profile's rules; a profile runs all steps, in the order of the file."""
    name = root.read(read_text, "profile")
    if not name:
        return ()
    if name not in PROFILES:
        root.add_problem("profile", f"there is no profile {name!r}", suggest_name(name, PROFILES))
        return ()
    if not steps:
        root.add_problem("profile", f"the profile {name!r} has no steps to run", "add a [steps.NAME] table")
    excess_s = excess_budget_s(name, list(steps.values()))
    if excess_s:
        notice = exact_duration_text(PROFILE_NOTICE_S[name])
        what = f"the steps need {exact_duration_text(excess_s)} more than the {notice} of the profile {name!r}"
        root.add_problem("profile", what, "reduce budgets, or mark steps that may be cut with cut = 1")
    return PROFILES[name](tuple(steps.values()))


def _read_rule(table: TomlTable, number: int, steps: Mapping[str, StepConfig]) -> RuleConfig:
    rule = RuleConfig(
        name=table.read(read_text, "name", f"rule {number}"),
        steps=_read_step_names(table, steps),
        kinds=table.read_words("kinds", [kind.value for kind in Kind]),
        sources=table.read_words("sources", [source.value for source in EventSource]),
        vms=table.read(read_text, "vms", OWN_VM),
        min_duration_s=table.read(read_seconds, "min_duration", None),
        max_duration_s=table.read(read_seconds, "max_duration", None),
        min_left_s=table.read(read_seconds, "min_left", None),
        max_left_s=table.read(read_seconds, "max_left", None),
        begin=table.read(read_choice, "begin", _BEGINNINGS),
        margin_s=table.read(read_seconds, "margin", 5.0),
        no_time=table.read(read_choice, "no_time", ("essential", "all", "nothing"), "essential"),
        undo_on=table.read_words("undo_on", _UNDO_OUTCOMES, _UNDO_OUTCOMES),
        approve=_read_approval_policy(table),
        approval_check=_read_approval_check(table),
    )
    _check_rule(table, rule)
    table.reject_unknown_keys("absent")
    return rule


def _read_step_names(table: TomlTable, steps: Mapping[str, StepConfig]) -> tuple[StepConfig, ...]:
    names = table.read(read_texts, "steps")
    for name in names:
        if name not in steps:
            remedy = suggest_name(name, steps, f"add a [steps.{name}] table")
            table.add_problem("steps", f"there is no step {name!r}", remedy)
    if len(set(names)) < len(names):
        table.add_problem("steps", "a step is named twice", "name each step once: it runs once for an event")
    return tuple(steps[name] for name in names if name in steps)


def _read_approval_policy(table: TomlTable) -> ApprovalPolicy:
    when = ApproveWhen(table.read(read_choice, "approve", tuple(ApproveWhen), ApproveWhen.NEVER.value))
    waits = table.raw.get("absent", "wait") == "wait"
    absent_after_s = None if waits else table.read(read_seconds, "absent", None)
    if not waits and when is not ApproveWhen.ALL_DONE:
        table.add_problem(
            "absent", "absent has no effect without other VMs", 'write approve = "when-all-done", or remove absent'
        )
    return ApprovalPolicy(when=when, absent_after_s=absent_after_s)


def _read_approval_check(table: TomlTable) -> ApprovalCheckConfig | None:
    gate = table.read_table("gate")
    if gate is None:
        return None
    check = ApprovalCheckConfig(
        command=gate.read(read_command_line, "command"),
        url=gate.read(read_url, "url"),
        timeout_s=gate.read(read_seconds, "timeout", 10.0, least=0.1),
        every_s=gate.read(read_seconds, "every", 10.0, least=0.1),
        deadline_s=gate.read(read_seconds, "deadline", 300.0),
        on_silence=gate.read(read_choice, "on_silence", ("wait", "approve"), "wait"),
    )
    gate.reject_unknown_keys()
    if bool(check.command) == bool(check.url):
        table.add_problem(
            "gate", "a gate needs a command or a url", 'write gate = { command = ["/usr/local/bin/may-i"] }'
        )
    return check


def _check_rule(table: TomlTable, rule: RuleConfig) -> None:
    for name in ("duration", "left"):
        least, most = getattr(rule, f"min_{name}_s"), getattr(rule, f"max_{name}_s")
        if least is not None and most is not None and least > most:
            table.add_problem(f"min_{name}", f"min_{name} is more than max_{name}", "swap them")
    if rule.approval_check is not None and rule.approve.when is ApproveWhen.NEVER:
        table.add_problem("gate", "a gate has no effect without an approval", 'write approve = "when-done"')


def _check_unique_names(root: TomlTable, rules: tuple[RuleConfig, ...]) -> None:
    names = [rule.name for rule in rules]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            root.add_problem("rules", f"two rules have the name {name!r}", "give each rule its own name")


def _check_profile_names(root: TomlTable, own: tuple[RuleConfig, ...], of_profile: tuple[RuleConfig, ...]) -> None:
    # The journal stores only the name of an event's rule, so it must stand for one rule.
    for name in dict.fromkeys(rule.name for rule in own):
        if name in {rule.name for rule in of_profile}:
            what = f"the profile {root.raw['profile']!r} also has a rule with the name {name!r}"
            root.add_problem("rules", what, "give your rule another name")


_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# Keys of every step; all others belong to its reaction.
_COMMON_STEP_KEYS = (
    *("use", "budget", "cut", "begin", "repeatable", "unclear"),
    *("undo_when", "undo_budget", "undo_tries", "survives_reboot"),
)


def _read_steps(root: TomlTable) -> dict[str, StepConfig]:
    tables = root.read_table("steps")
    if tables is None:
        return {}
    named = {name: tables.read_table(name) for name in tables.raw}
    for name in named:
        if not _STEP_NAME.fullmatch(name):
            tables.add_problem(name, f"{name!r} is not a valid name of a step", "use letters, digits, - and _")
    return {name: _read_step(name, table) for name, table in named.items() if table is not None}


def _read_step(name: str, table: TomlTable) -> StepConfig:
    table.title = f"[steps.{name}]"
    use = table.read_required_text("use", '"command"')
    kind = REACTIONS.get(use)
    if kind is None and use:
        table.add_problem("use", f"there is no reaction {use!r}", suggest_name(use, REACTIONS))
    notifies = kind is not None and not kind.shared_by_events
    if not table.has("budget"):
        table.add_problem("", f"{table.title} has no budget", 'write budget = "30s" below it')
    step = StepConfig(
        name=name,
        use=use,
        budget_s=table.read(read_seconds, "budget", 30.0, least=0.1),
        cut=table.read(read_number, "cut", None, 0, 1_000),
        begin=table.read(read_choice, "begin", _BEGINNINGS) if table.has("begin") or notifies else None,
        repeatable=table.read(read_flag, "repeatable", default=notifies),
        unclear=table.read(read_choice, "unclear", ("repeat", "skip", "report"), "report"),
        undo=_read_undo(table, has_undo=kind is None or kind.has_undo),
        undo_budget_s=table.read(read_seconds, "undo_budget", 60.0, least=0.1),
        undo_tries=table.read(read_number, "undo_tries", 3, 1, MAX_UNDO_TRIES) or 3,
        survives_reboot=table.read(read_flag, "survives_reboot", default=True),
        shared_by_events=not notifies,
        options=_read_reaction_options(table, use),
    )
    if kind is not None:
        table.reject_unknown_keys("begin", *kind.options)
    return step


def _read_undo(table: TomlTable, *, has_undo: bool) -> Literal["when-gone", "never"]:
    when = table.read(read_choice, "undo_when", ("gone", "never"), "gone" if has_undo else "never")
    return "never" if when == "never" else "when-gone"


def _read_reaction_options(table: TomlTable, use: str) -> object:
    kind = REACTIONS.get(use)
    if kind is None:
        return None
    try:
        return kind.read({key: value for key, value in table.raw.items() if key not in _COMMON_STEP_KEYS})
    except BadValue as bad:
        table.add_problem(bad.key, bad.what, bad.remedy)
        return None
