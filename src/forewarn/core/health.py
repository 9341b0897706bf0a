"""Health checks of rollouts, their measurements, and what these decide (spec §13.4, §13.5).

Bad measurements are counted in all, from the time before a wave to the end of its settling time, so a check that
changes between good and bad pauses the rollout as surely as one that stays bad. Unclear ones and errors are counted in
a row: the next good measurement ends the wait.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

import msgspec

from forewarn.base.duration import duration_text
from forewarn.base.times import LabSeconds, LabTime

MAX_MEASUREMENTS = 5000  # of one rollout; the store deletes older ones
MAX_CHECKS = 20  # of one rollout
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 1.0, 24 * 3600.0
_MIN_FIGURE_INTERVAL_S = 10.0  # the service looks at all events of the rollout for each measurement
_MAX_TIMEOUT_S = 300.0
_MAX_TEXT = 300  # characters of a measurement's text
_MAX_LIMIT = 1000
_CONDITION = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class CheckKind(StrEnum):
    """Whom a health check asks: Prometheus, an HTTP server, a command, or the service itself. Stored."""

    PROMETHEUS = "prometheus"
    HTTP = "http"
    COMMAND = "command"
    FIGURE = "figure"  # one of the service's own figures


class OwnFigure(StrEnum):
    """A number that the service itself knows about the VMs of a rollout. Users type the values; stored."""

    WITHOUT_HANDLER = "vms-without-handler"  # running VMs that do not poll
    UNDELIVERED = "undelivered-notices"  # VMs whose event started, and no VM of their scope was given it before
    FAILED_ACTS = "failed-acts"  # acts of its events that failed
    NOT_BACK = "vms-not-back"  # VMs that polled before their maintenance, and not since, for over 300 s of lab time


class CheckOutcome(StrEnum):
    """The result of one measurement of a health check. The values are stored, and users see them."""

    GOOD = "good"
    BAD = "bad"
    UNCLEAR = "unclear"  # there is no data, or it cannot be compared
    ERROR = "error"  # the measurement itself failed


class HealthCheck(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One health check of a rollout. Stored as part of it; `make_check` makes a valid one."""

    name: str  # unique within the rollout, ignoring letter case; at most 60 characters
    kind: CheckKind
    url: str = ""  # of the Prometheus server, or of the HTTP call
    query: str = ""  # PromQL
    condition: str = ""  # that each value must meet, such as `< 0.01`; for Prometheus and figures
    status: int = 200  # the HTTP response must have it; redirects are not followed
    body: str = ""  # text that it must contain; "": any
    command: tuple[str, ...] = ()  # program and arguments, run without a shell, with only PATH and FOREWARN_CHECK set
    exit_status: int = 0  # the command must end with it; 75 is unclear, others are bad, a signal is an error
    figure: OwnFigure | None = None  # the figure of this service to read; None: the check is of another kind
    interval_s: LabSeconds = 60  # from one measurement to the next: 1 s (a figure 10 s) to 24 h
    timeout_s: float = 10  # up to 300 real seconds for a command, or until a response begins, and as many for its body
    bad_limit: int = 1  # bad ones in all during a wave, from which on the rollout pauses
    unclear_limit: int = 1  # unclear ones in a row (leaving out errors), from which on it publishes nothing
    error_limit: int = 3  # errors in a row, from which on they count as unclear

    @property
    def stale_after_s(self) -> float:
        """The age in seconds above which the check's latest measurement is too old to count."""
        return 2 * self.interval_s + self.timeout_s

    @property
    def what(self) -> str:
        """What the check demands, in a few words for people, such as `failed-acts == 0`."""
        match self.kind:
            case CheckKind.PROMETHEUS:
                return f"{self.query} {self.condition}"
            case CheckKind.HTTP:
                return f"{self.url} answers {self.status}" + (f" with {self.body!r}" if self.body else "")
            case CheckKind.COMMAND:
                return f"{' '.join(self.command)} ends with {self.exit_status}"
            case CheckKind.FIGURE:
                return f"{self.figure} {self.condition}"


class Measurement(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One result of a health check. Stored; the newest MAX_MEASUREMENTS of a rollout are kept."""

    request_id: str  # of the rollout
    check: str  # the check's name
    at: LabTime  # at its end; of a figure, when the service began to read it
    outcome: CheckOutcome
    value: float | None = None  # that was compared; None: there is none
    text: str = ""  # for people: what was seen
    wave: int = 0  # index of the rollout's wave when it began, from 0
    check_round: int = 0  # how often the rollout had been resumed then


class CheckResult(NamedTuple):
    """What one try of a health check found; `measurement_of` makes a stored Measurement of it."""

    outcome: CheckOutcome
    text: str = ""  # for people: what was seen
    value: float | None = None  # that was compared; None: there is none


class InvalidCheck(ValueError):
    """A health check that cannot be used; `field` is the name of the field of HealthCheck that is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


def make_check(fields: HealthCheck) -> HealthCheck:
    """Return the check if it can be used, else raise InvalidCheck. A figure without a condition gets `== 0`."""
    title = f"check {fields.name!r}"
    if not fields.name.strip() or len(fields.name) > 60 or not fields.name.isprintable():
        raise InvalidCheck(f"{title} needs a name of at most 60 printable characters: give one", "name")
    _require_fields_of_kind(title, fields)
    if fields.kind is CheckKind.FIGURE and not fields.condition:
        fields = msgspec.structs.replace(fields, condition="== 0")
    if fields.condition:
        try:
            parse_condition(fields.condition)
        except ValueError as error:
            raise InvalidCheck(f"{title}: {error}", "condition") from None
    shortest = _MIN_FIGURE_INTERVAL_S if fields.kind is CheckKind.FIGURE else _MIN_INTERVAL_S
    if not shortest <= fields.interval_s <= _MAX_INTERVAL_S:
        raise InvalidCheck(
            f"{title} has the interval {duration_text(fields.interval_s)}: give one from "
            f"{duration_text(shortest)} to {duration_text(_MAX_INTERVAL_S)}",
            "interval_s",
        )
    if not 0 < fields.timeout_s <= _MAX_TIMEOUT_S:
        raise InvalidCheck(
            f"{title} has the timeout {duration_text(fields.timeout_s)}: give one of at most "
            f"{duration_text(_MAX_TIMEOUT_S)}",
            "timeout_s",
        )
    for name in ("bad_limit", "unclear_limit", "error_limit"):
        if not 1 <= getattr(fields, name) <= _MAX_LIMIT:
            text = f"{title} has {name} {getattr(fields, name)}: give a number from 1 to {_MAX_LIMIT}"
            raise InvalidCheck(text, name)
    return fields


def _require_fields_of_kind(title: str, check: HealthCheck) -> None:
    needed, optional = _FIELDS_OF_KIND[check.kind]
    of_kinds = {name for pair in _FIELDS_OF_KIND.values() for names in pair for name in names}
    set_fields = {name for name in of_kinds if getattr(check, name) != _DEFAULTS[name]}
    for name in sorted(set_fields - {*needed, *optional}):
        raise InvalidCheck(f"{title} asks {_KIND_TITLES[check.kind]}, which has no {name!r}: leave it out", name)
    for name in needed:
        if name not in set_fields:
            raise InvalidCheck(f"{title} asks {_KIND_TITLES[check.kind]} and has no {name!r}: give one", name)
    if check.url and not check.url.startswith(("http://", "https://")):
        text = f"{title} has the address {check.url!r}: give one that starts with http:// or https://"
        raise InvalidCheck(text, "url")
    if not 100 <= check.status <= 599:
        raise InvalidCheck(f"{title} expects status {check.status}: give one from 100 to 599", "status")
    if check.exit_status not in range(256):
        raise InvalidCheck(f"{title} expects exit status {check.exit_status}: give one from 0 to 255", "exit_status")
    if check.command and (not check.command[0] or any("\0" in part for part in check.command)):
        raise InvalidCheck(f"{title} has a command that cannot be run: give a program and its arguments", "command")


# The fields that a kind needs, and those that it may have besides name, interval, timeout and limits.
_FIELDS_OF_KIND: dict[CheckKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    CheckKind.PROMETHEUS: (("url", "query", "condition"), ()),
    CheckKind.HTTP: (("url",), ("status", "body")),
    CheckKind.COMMAND: (("command",), ("exit_status",)),
    CheckKind.FIGURE: (("figure",), ("condition",)),
}
_KIND_TITLES = {
    CheckKind.PROMETHEUS: "Prometheus",
    CheckKind.HTTP: "an HTTP server",
    CheckKind.COMMAND: "a command",
    CheckKind.FIGURE: "the service for a figure",
}
_DEFAULTS: dict[str, object] = {
    "url": "",
    "query": "",
    "condition": "",
    "status": 200,
    "body": "",
    "command": (),
    "exit_status": 0,
    "figure": None,
}


def require_distinct_checks(checks: Sequence[HealthCheck]) -> None:
    """Raise ValueError if there are more than MAX_CHECKS (20) checks, InvalidCheck if two share a name."""
    if len(checks) > MAX_CHECKS:
        raise ValueError(f"a rollout has at most {MAX_CHECKS} checks, and {len(checks)} are given: leave some out")
    names = [check.name.casefold() for check in checks]
    for check in checks:
        if names.count(check.name.casefold()) > 1:
            raise InvalidCheck(f"two checks have the name {check.name!r}: give each its own", "name")


@dataclass(frozen=True, slots=True)
class CheckCondition:
    """A comparison with a number, such as `< 0.01`, that the values of a health check must meet."""

    comparison: str  # one of < <= > >= == !=
    bound: float  # the number on the right side

    def is_met(self, value: float) -> bool:
        """Return whether `value` meets the condition, such as being less than the bound; a NaN never does."""
        return not math.isnan(value) and _OPERATORS[self.comparison](value, self.bound)


def parse_condition(text: str) -> CheckCondition:
    """Return the condition that a text such as `< 0.01` means: one of < <= > >= == != and a number."""
    found = _CONDITION.fullmatch(text)
    try:
        bound = float(found[2]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or not math.isfinite(bound):
        raise ValueError(f"{text!r} is not a condition: give one of < <= > >= == != and a number, such as '< 0.01'")
    return CheckCondition(found[1], bound)


def judge_values(condition: str, values: Sequence[tuple[str, float]]) -> CheckResult:
    """Return the result of a health check with this condition for these pairs of (title, value)."""
    wanted = parse_condition(condition)
    numbers = [(title, value) for title, value in values if not math.isnan(value)]
    bad = [(title, value) for title, value in numbers if not wanted.is_met(value)]
    if bad:
        title, value = bad[0]
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        return CheckResult(CheckOutcome.BAD, _shortened(f"{_value_text(title, value)} is not {condition}{more}"), value)
    if not values:
        return CheckResult(CheckOutcome.UNCLEAR, "there is no data")
    # A bad value has decided above, even if another one is not a number.
    if len(numbers) < len(values):
        return CheckResult(CheckOutcome.UNCLEAR, "a value is not a number")
    title, value = numbers[0]
    more = f", and {len(numbers) - 1} more" if len(numbers) > 1 else ""
    return CheckResult(CheckOutcome.GOOD, _shortened(f"{_value_text(title, value)}{more}"), value)


def _value_text(title: str, value: float) -> str:
    return f"{title} {value:g}" if title else f"{value:g}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def measurement_of(
    check: HealthCheck, result: CheckResult, *, request_id: str, wave: int = 0, check_round: int = 0, at: float
) -> Measurement:
    """Return the measurement to store for this result, with a text of at most 300 characters."""
    value = result.value if result.value is not None and math.isfinite(result.value) else None
    return Measurement(
        request_id=request_id,
        check=check.name,
        at=at,
        outcome=result.outcome,
        value=value,
        text=_shortened(result.text),
        wave=wave,
        check_round=check_round,
    )


class HealthDecision(StrEnum):
    """What a rollout does because of its health checks."""

    GO_ON = "go on"
    MEASURE = "measure"  # publish nothing until each check was measured
    WAIT = "wait"  # publish nothing until the checks are clear
    PAUSE = "pause"  # and withdraw what has not started


class HealthVerdict(NamedTuple):
    """What a rollout does because of its health checks, and why. `health_verdict` returns it."""

    decision: HealthDecision
    why: str = ""  # for people; "" if it goes on


def health_verdict(
    checks: Sequence[HealthCheck],
    measurements: Iterable[Measurement],
    now: float,
    *,
    good_since: float | None = None,
) -> HealthVerdict:
    """Return what a rollout with these checks does at lab time `now`.

    `measurements` are those that count, oldest first: of the current wave, since the rollout was last resumed.
    `good_since` is set before a wave and at the end of its settling time: then the latest measurement of each check
    must be good, and from that time or later; None: within a wave, where single errors do not stop it.

    The worst of all checks decides, in the order PAUSE, WAIT, MEASURE, GO_ON. A check pauses the rollout once its bad
    measurements reach its limit, even if good ones follow. It makes the rollout wait if its latest measurement is too
    old, or if it is unclear: the limit of unclear measurements or of errors in a row is reached, or with `good_since`,
    the latest one is not good.
    """
    by_name: dict[str, list[Measurement]] = {check.name: [] for check in checks}
    for measurement in measurements:
        by_name.setdefault(measurement.check, []).append(measurement)
    verdicts = [_check_verdict(check, by_name[check.name], now, good_since) for check in checks]
    for decision in (HealthDecision.PAUSE, HealthDecision.WAIT, HealthDecision.MEASURE):
        found = [verdict.why for verdict in verdicts if verdict.decision is decision]
        if found:
            return HealthVerdict(decision, "; ".join(found))
    return HealthVerdict(HealthDecision.GO_ON)


def _check_verdict(
    check: HealthCheck, measurements: Sequence[Measurement], now: float, good_since: float | None
) -> HealthVerdict:
    title = f"check {check.name!r}"
    bad = [m for m in measurements if m.outcome is CheckOutcome.BAD]
    # First, and at any age: good measurements that follow do not undo it.
    if len(bad) >= check.bad_limit:
        times = "" if check.bad_limit == 1 else f" for the {_ordinal(len(bad))} time in this wave"
        return HealthVerdict(HealthDecision.PAUSE, f"{title} is bad{times}: {bad[-1].text}")
    if not measurements:
        return HealthVerdict(HealthDecision.MEASURE, f"{title} has not been measured yet")
    last = measurements[-1]
    # A check that has stopped says nothing about now, whatever it said last.
    if now - last.at > check.stale_after_s:
        age = duration_text(round(now - last.at))
        return HealthVerdict(HealthDecision.WAIT, f"{title} is unclear: its last measurement is {age} old")
    if last.outcome is CheckOutcome.GOOD:
        if good_since is not None and last.at < good_since:
            return HealthVerdict(HealthDecision.MEASURE, f"{title} has not been measured since the wave ended")
        return HealthVerdict(HealthDecision.GO_ON)
    # Before a wave every check must be good; within one, a single error does not stop it.
    if good_since is not None or _is_unclear(check, measurements):
        return HealthVerdict(HealthDecision.WAIT, f"{title} is {_unclear_word(check, measurements)}: {last.text}")
    return HealthVerdict(HealthDecision.GO_ON)


def _is_unclear(check: HealthCheck, measurements: Sequence[Measurement]) -> bool:
    """Return whether the limit of errors in a row is reached, or of unclear ones with only errors between."""
    if _in_a_row(measurements, CheckOutcome.ERROR) >= check.error_limit:
        return True
    # Errors are left out, so that they neither make nor break a row of unclear ones.
    answered = [m for m in measurements if m.outcome is not CheckOutcome.ERROR]
    return _in_a_row(answered, CheckOutcome.UNCLEAR) >= check.unclear_limit


def _unclear_word(check: HealthCheck, measurements: Sequence[Measurement]) -> str:
    outcome = measurements[-1].outcome
    if outcome is CheckOutcome.ERROR and _in_a_row(measurements, CheckOutcome.ERROR) >= check.error_limit:
        return f"unclear after {check.error_limit} errors"
    return {CheckOutcome.BAD: "bad", CheckOutcome.ERROR: "in error"}.get(outcome, "unclear")


def _in_a_row(measurements: Sequence[Measurement], outcome: CheckOutcome) -> int:
    return sum(1 for _ in takewhile(lambda m: m.outcome is outcome, reversed(measurements)))


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def next_measurement_at(check: HealthCheck, measurements: Iterable[Measurement]) -> float:
    """Return the lab time at which the check is to be measured next, perhaps past."""
    times = [m.at for m in measurements if m.check == check.name]
    return max(times) + check.interval_s if times else 0.0
