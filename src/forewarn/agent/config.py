"""Reads the agent's configuration file into rules and steps, or reports all its problems.

docs/how-to/agent.md documents the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from forewarn.agent.approval import PROFILE_NOTICE_S, PROFILES, excess_budget_s
from forewarn.agent.http_server import DEFAULT_LISTEN_ADDRESS, parse_listen_address
from forewarn.agent.model import (
    MAX_UNDO_TRIES,
    OWN_VM,
    ApprovalCheckConfig,
    ApprovalPolicy,
    ApproveWhen,
    RuleConfig,
    StepConfig,
)
from forewarn.agent.reactions import REACTIONS, BadOption, options
from forewarn.base.duration import exact_duration_text, parse_duration
from forewarn.base.tomlfile import TomlLineIndex, TomlPath, error_line, index_lines
from forewarn.client.endpoint import parse_endpoint
from forewarn.errors import Rejected
from forewarn.protocol.document import EventSource, Kind

T = TypeVar("T")


# Reads TOML tables key by key, and collects every problem with its line and a remedy.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One problem of the agent's configuration file: its line, what is wrong, and a remedy."""

    line: int  # counted from 1; for a missing key that of its table
    message: str  # what is wrong, for people
    remedy: str  # what to do about it, for people, such as "did you mean 'rules'?"

    def format(self, source: str) -> str:
        """Return the problem as one text, `source:line: what: remedy`; `source` is the name of the file."""
        return f"{source}:{self.line}: {self.message}: {self.remedy}"


class BadConfig(Rejected):
    """The agent's file has problems; `problems` lists all of them in the order of their lines."""

    def __init__(self, problems: Sequence[ConfigProblem], *, source: str) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(problem.format(source) for problem in self.problems))


class ConfigTable:
    """Reads the keys of one table of the agent's TOML file, and collects problems instead of raising them."""

    # For a wrong value a read_ method appends a problem to the list of the whole file and returns the default. Each
    # marks its key as known for `reject_unknown_keys`, which is called last.

    def __init__(
        self, raw: Mapping[str, Any], path: TomlPath, title: str, lines: TomlLineIndex, problems: list[ConfigProblem]
    ) -> None:
        self.raw, self.title = raw, title
        self._path, self._lines, self._problems = path, lines, problems
        self._known_keys: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether the table contains the key, with any value; does not mark the key as known."""
        return key in self.raw

    def add_problem(self, key: str, what: str, remedy: str) -> None:
        """Append a problem to the list of the whole file, at the line of `key`; "" means the table itself."""
        path = (*self._path, key) if key else self._path
        self._problems.append(ConfigProblem(line=self._lines.line_of(path), message=what, remedy=remedy))

    def read_text(self, key: str, default: str = "") -> str:
        """Return the non-empty string under `key`; `default` if the key is absent or its value is wrong."""
        return self._read_option(key, default, lambda: options.read_text(self.raw, key, default))

    def read_required_text(self, key: str, example: str) -> str:
        """Return the non-empty string under `key`; if it is missing or wrong, append a problem and return ""."""
        if not self.has(key):
            self._known_keys.append(key)
            self.add_problem("", f"{self.title} has no {key}", f"write {key} = {example} below it")
            return ""
        return self.read_text(key)

    def read_texts(self, key: str) -> tuple[str, ...]:
        """Return the non-empty strings under `key`, given as a list or as one string; () if absent or wrong."""
        return self._read_option(key, (), lambda: options.read_texts(self.raw, key))

    def read_words(self, key: str, known: Iterable[str], default: Iterable[str] = ()) -> frozenset[str]:
        """Return the words under `key`, given as a list or as one word, spelled as in `known`."""
        by_folded_name = {word.casefold(): word for word in known}
        if not self.has(key):
            self._known_keys.append(key)
            return frozenset(default)
        given = self.read_texts(key)
        for word in given:
            if word.casefold() not in by_folded_name:
                self.add_problem(
                    key, f"{key} has {word!r}, which is unknown", _suggestion(word, by_folded_name.values())
                )
        return frozenset(by_folded_name[word.casefold()] for word in given if word.casefold() in by_folded_name)

    def read_choice(self, key: str, choices: tuple[str, ...], default: str) -> Any:
        """Return the value under `key`, one of `choices`; `default` if it is absent or wrong."""
        order = (default, *(choice for choice in choices if choice != default))
        return self._read_option(key, default, lambda: options.read_choice(self.raw, key, order))

    def read_flag(self, key: str, *, default: bool) -> bool:
        """Return the boolean under `key`; `default` if the key is absent or its value is not a boolean."""
        return self._read_option(key, default, lambda: options.read_flag(self.raw, key, default=default))

    def read_command_line(self, key: str) -> tuple[str, ...]:
        """Return the command under `key` as its words; () if it is absent or wrong."""
        return self._read_option(key, (), lambda: options.read_command_line(self.raw, key))

    def read_url(self, key: str) -> str:
        """Return the http or https URL under `key`; "" if it is absent or wrong."""
        return self._read_option(key, "", lambda: options.read_url(self.raw, key))

    def read_number(self, key: str, default: int | None, least: int, most: int) -> int | None:
        """Return the whole number under `key`, from `least` to `most` (both included); `default` if absent."""

        def read() -> int | None:
            numbers = options.read_whole_numbers(self.raw, key, least, most)
            return numbers[0] if numbers else default

        return self._read_option(key, default, read)

    def read_seconds(self, key: str, default: T, *, least: float = 0.0) -> float | T:
        """Return the duration under `key` in seconds, given as "20s" or "15m" or as a whole number of seconds."""
        self._known_keys.append(key)
        if not self.has(key):
            return default
        value = self.raw[key]
        try:
            seconds = parse_duration(str(value)) if isinstance(value, str | int) and value is not True else -1.0
        except ValueError:
            seconds = -1.0
        if seconds < least or value is False:
            wanted = "a duration" if least == 0 else f"a duration of {least:g} s or more"
            self.add_problem(key, f"{key} = {value!r} is not {wanted}", f'write {key} = "20s", "15m" or "7d"')
            return default
        return seconds

    def read_table(self, key: str) -> ConfigTable | None:
        """Return a reader of the sub-table `key`, which appends to the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key)
        if raw is not None and not isinstance(raw, dict):
            self.add_problem(key, f"{key} is not a table", f"write {key} = {{ … }}")
        if not isinstance(raw, dict):
            return None
        return ConfigTable(raw, (*self._path, key), key, self._lines, self._problems)

    def read_tables(self, key: str) -> list[ConfigTable]:
        """Return a reader for each of the [[key]] tables, in order, all with the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key, [])
        if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
            self.add_problem(key, f"{key} is not a list of tables", f"write [[{key}]] above each of them")
            return []
        path = (*self._path, key)
        return [ConfigTable(each, (*path, n), f"[[{key}]]", self._lines, self._problems) for n, each in enumerate(raw)]

    def reject_unknown_keys(self, *more: str) -> None:
        """Append a problem for each key of the table that no read_ method has read and that is not in `more`."""
        known = [*self._known_keys, *more]
        for key in self.raw:
            if key not in known:
                self.add_problem(key, f"{self.title} has no key {key!r}", _suggestion(key, known))

    def _read_option(self, key: str, default: T, read: Callable[[], T]) -> T:
        self._known_keys.append(key)
        try:
            return read()
        except BadOption as bad:
            self.add_problem(key, bad.what, bad.remedy)
            return default


def _suggestion(word: str, known: Iterable[str]) -> str:
    words = list(dict.fromkeys(known))
    close = get_close_matches(word.casefold(), [each.casefold() for each in words], n=1)
    closest = next((each for each in words if close and each.casefold() == close[0]), None)
    return f"did you mean {closest!r}?" if closest else f"write one of {', '.join(words)}"


def suggest_name(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: "did you mean …?" with the one of `known` closest to `word`."""
    words = list(known)
    return _suggestion(word, words) if words else otherwise


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
    """Read and validate the agent's TOML file; BadConfig has all its problems."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or "no reason given"
        raise Rejected(f"the agent's file {str(path)!r} cannot be read ({why}): give another with --config") from error
    except UnicodeDecodeError as error:
        raise Rejected(f"the agent's file {str(path)!r} is not UTF-8: save it as UTF-8") from error
    return replace(parse_config(text, str(path)), file=path)


def parse_config(text: str, source: str = "agent.toml") -> AgentConfig:
    """Parse and validate the TOML text of an agent's file; `source` names the file in messages."""
    problems: list[ConfigProblem] = []
    try:
        root = ConfigTable(tomllib.loads(text), (), "the file", index_lines(text), problems)
    except ValueError as error:
        line = error_line(str(error), text)
        what = ConfigProblem(line=line, message=f"this is not TOML ({error})", remedy="correct that line")
        raise BadConfig([what], source=source) from error
    config = _read_config(root)
    if problems:
        raise BadConfig(problems, source=source)
    return config


def _read_config(root: ConfigTable) -> AgentConfig:
    steps = _read_steps(root)
    board = _read_absolute_path(root, "board")
    rules = _read_rules(root, steps)
    if board is None and any(rule.approve.when is ApproveWhen.ALL_DONE for rule in rules):
        root.add_problem(
            "rules", 'approve = "when-all-done" needs a board', 'write board = "/a/folder/that/all/VMs/share"'
        )
    config = AgentConfig(
        endpoint=_read_endpoint(root),
        vm=root.read_text("vm"),
        state=_read_absolute_path(root, "state") or Path(DEFAULT_STATE_DIRECTORY),
        listen=DEFAULT_LISTEN_ADDRESS if not root.has("listen") else _read_listen(root),
        board=board,
        grace_s=root.read_seconds("grace", 5.0),
        steps=steps,
        rules=rules,
    )
    root.reject_unknown_keys("listen")
    return config


def _read_endpoint(root: ConfigTable) -> str | None:
    text = root.read_text("endpoint")
    try:
        return str(parse_endpoint(text)) if text else None
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        root.add_problem("endpoint", what, remedy)
        return None


def _read_absolute_path(root: ConfigTable, key: str) -> Path | None:
    text = root.read_text(key)
    if text and not text.startswith("/"):
        root.add_problem(key, f"{key} = {text!r} is not an absolute path", f'write {key} = "/…"')
    return Path(text) if text else None


def _read_listen(root: ConfigTable) -> str:
    """Reads the listen address; "" means that the agent serves no pages."""
    text = "" if root.raw["listen"] == "" else root.read_text("listen")
    try:
        if text:
            parse_listen_address(text)
    except Rejected as error:
        what, _, remedy = str(error).partition(": ")
        root.add_problem("listen", what, remedy)
    return text


_UNDO_OUTCOMES = ("finished", "withdrawn", "unknown")


def _read_rules(root: ConfigTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    rules = tuple(_read_rule(table, number, steps) for number, table in enumerate(root.read_tables("rules"), start=1))
    _check_unique_names(root, rules)
    profile_rules = _read_profile(root, steps)
    _check_profile_names(root, rules, profile_rules)
    all_rules = (*rules, *profile_rules)
    if not all_rules and not root.raw.get("profile"):
        root.add_problem("", "the file has no rules", 'write profile = "fifteen-minutes", or [[rules]]')
    return all_rules


def _read_profile(root: ConfigTable, steps: Mapping[str, StepConfig]) -> tuple[RuleConfig, ...]:
    """Reads the profile's rules; a profile runs all steps, in the order of the file."""
    name = root.read_text("profile")
    if not name:
        return ()
    if name not in PROFILES:
        root.add_problem("profile", f"there is no profile {name!r}", suggest_name(name, PROFILES, ""))
        return ()
    if not steps:
        root.add_problem("profile", f"the profile {name!r} has no steps to run", "add a [steps.NAME] table")
    excess_s = excess_budget_s(name, list(steps.values()))
    if excess_s:
        notice = exact_duration_text(PROFILE_NOTICE_S[name])
        what = f"the steps need {exact_duration_text(excess_s)} more than the {notice} of the profile {name!r}"
        root.add_problem("profile", what, "reduce budgets, or mark steps that may be cut with cut = 1")
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
            remedy = suggest_name(name, steps, f"add a [steps.{name}] table")
            table.add_problem("steps", f"there is no step {name!r}", remedy)
    if len(set(names)) < len(names):
        table.add_problem("steps", "a step is named twice", "name each step once: it runs once for an event")
    return tuple(steps[name] for name in names if name in steps)


def _read_approval_policy(table: ConfigTable) -> ApprovalPolicy:
    when = ApproveWhen(table.read_choice("approve", tuple(ApproveWhen), ApproveWhen.NEVER.value))
    waits = table.raw.get("absent", "wait") == "wait"
    absent_after_s = None if waits else table.read_seconds("absent", None)
    if not waits and when is not ApproveWhen.ALL_DONE:
        table.add_problem(
            "absent", "absent has no effect without other VMs", 'write approve = "when-all-done", or remove absent'
        )
    return ApprovalPolicy(when=when, absent_after_s=absent_after_s)


def _read_approval_check(table: ConfigTable) -> ApprovalCheckConfig | None:
    gate = table.read_table("gate")
    if gate is None:
        return None
    check = ApprovalCheckConfig(
        command=gate.read_command_line("command"),
        url=gate.read_url("url"),
        timeout_s=gate.read_seconds("timeout", 10.0, least=0.1),
        every_s=gate.read_seconds("every", 10.0, least=0.1),
        deadline_s=gate.read_seconds("deadline", 300.0),
        on_silence=gate.read_choice("on_silence", ("wait", "approve"), "wait"),
    )
    gate.reject_unknown_keys()
    if bool(check.command) == bool(check.url):
        table.add_problem(
            "gate", "a gate needs a command or a url", 'write gate = { command = ["/usr/local/bin/may-i"] }'
        )
    return check


def _check_rule(table: ConfigTable, rule: RuleConfig) -> None:
    for name in ("duration", "left"):
        least, most = getattr(rule, f"min_{name}_s"), getattr(rule, f"max_{name}_s")
        if least is not None and most is not None and least > most:
            table.add_problem(f"min_{name}", f"min_{name} is more than max_{name}", "swap them")
    if rule.approval_check is not None and rule.approve.when is ApproveWhen.NEVER:
        table.add_problem("gate", "a gate has no effect without an approval", 'write approve = "when-done"')


def _check_unique_names(root: ConfigTable, rules: tuple[RuleConfig, ...]) -> None:
    names = [rule.name for rule in rules]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            root.add_problem("rules", f"two rules have the name {name!r}", "give each rule its own name")


def _check_profile_names(root: ConfigTable, own: tuple[RuleConfig, ...], of_profile: tuple[RuleConfig, ...]) -> None:
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


def _read_steps(root: ConfigTable) -> dict[str, StepConfig]:
    tables = root.read_table("steps")
    if tables is None:
        return {}
    named = {name: tables.read_table(name) for name in tables.raw}
    for name in named:
        if not _STEP_NAME.fullmatch(name):
            tables.add_problem(name, f"{name!r} is not a valid name of a step", "use letters, digits, - and _")
    return {name: _read_step(name, table) for name, table in named.items() if table is not None}


def _read_step(name: str, table: ConfigTable) -> StepConfig:
    table.title = f"[steps.{name}]"
    use = table.read_required_text("use", '"command"')
    kind = REACTIONS.get(use)
    if kind is None and use:
        table.add_problem("use", f"there is no reaction {use!r}", suggest_name(use, REACTIONS, ""))
    notifies = kind is not None and not kind.shared_by_events
    if not table.has("budget"):
        table.add_problem("", f"{table.title} has no budget", 'write budget = "30s" below it')
    step = StepConfig(
        name=name,
        use=use,
        budget_s=table.read_seconds("budget", 30.0, least=0.1),
        cut=table.read_number("cut", None, 0, 1_000),
        begin=table.read_choice("begin", ("at-once", "late"), "at-once") if table.has("begin") or notifies else None,
        repeatable=table.read_flag("repeatable", default=notifies),
        unclear=table.read_choice("unclear", ("repeat", "skip", "report"), "report"),
        undo=_read_undo(table, has_undo=kind is None or kind.has_undo),
        undo_budget_s=table.read_seconds("undo_budget", 60.0, least=0.1),
        undo_tries=table.read_number("undo_tries", 3, 1, MAX_UNDO_TRIES) or 3,
        survives_reboot=table.read_flag("survives_reboot", default=True),
        shared_by_events=not notifies,
        options=_read_reaction_options(table, use),
    )
    if kind is not None:
        table.reject_unknown_keys("begin", *kind.options)
    return step


def _read_undo(table: ConfigTable, *, has_undo: bool) -> Literal["when-gone", "never"]:
    when = table.read_choice("undo_when", ("gone", "never"), "gone" if has_undo else "never")
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
