"""How a simulated hypervisor departs from the ideal: rules per VM name and verb, nothing left to chance.

In settings a rule is a small table: `{vm = "web-*", verb = "reboot", then = "fail"}`. Without `vm` or `verb`
it holds for all; of several rules with the same `then`, the first that matches counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, TypeVar

import msgspec

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected


class _Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="then"):
    vm: str = "*"  # a pattern for the VM's name, compared without case
    verb: Verb | None = None

    def matches(self, act: Act) -> bool:
        return self.verb in (None, act.verb) and fnmatchcase(act.name.casefold(), self.vm.casefold())


class Take(_Rule, frozen=True, kw_only=True, tag="take"):
    """It takes this long, whatever the act says."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Slow(_Rule, frozen=True, kw_only=True, tag="slow"):
    """It takes so many times as long as it should."""

    factor: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0


class Fail(_Rule, frozen=True, kw_only=True, tag="fail"):
    """It fails at once, with no effect."""

    note: str = "the simulated hypervisor was told to fail"


class Unreachable(_Rule, frozen=True, kw_only=True, tag="unavailable"):
    """The first so many performs of an act find nobody there."""

    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class Lie(_Rule, frozen=True, kw_only=True, tag="lie"):
    """It says done, and did nothing."""


Rule = Take | Slow | Fail | Unreachable | Lie
_R = TypeVar("_R", Take, Slow, Fail, Unreachable, Lie)


class Behaviour(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...] = ()

    @classmethod
    def from_rules(cls, rows: Sequence[Mapping[str, object]]) -> Behaviour:
        """The behaviour that settings describe; Rejected names the rule that cannot be."""
        if not isinstance(rows, list | tuple):
            raise Rejected(f"hypervisor rules {rows!r} are no list: give a list of tables, one per rule")
        return cls(rules=tuple(rule_from(row) for row in rows))

    def first(self, kind: type[_R], act: Act) -> _R | None:
        return next((rule for rule in self.rules if isinstance(rule, kind) and rule.matches(act)), None)

    def duration_s(self, act: Act, usual_s: float) -> float:
        take, slow = self.first(Take, act), self.first(Slow, act)
        return (take.seconds if take else usual_s) * (slow.factor if slow else 1.0)

    def misses(self, act: Act) -> int:
        """How many performs of this act find nobody there."""
        unreachable = self.first(Unreachable, act)
        return unreachable.times if unreachable else 0


def rule_from(row: Mapping[str, object]) -> Rule:
    try:
        rule: Rule = msgspec.convert(row, Rule)
    except msgspec.ValidationError as error:
        raise Rejected(
            f"hypervisor rule {row!r} is not understood ({error}): give then = take (with seconds),"
            " slow (factor), fail (note), unavailable (times) or lie; for some acts only, vm = a name pattern"
            f" and verb = one of {', '.join(Verb)}"
        ) from None
    return rule
