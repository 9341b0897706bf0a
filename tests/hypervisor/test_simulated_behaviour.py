"""Rules of the simulated hypervisor: which acts they apply to, and errors for wrong ones."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected
from forewarn.machines.simulated import (
    DurationRule,
    FailRule,
    FalseSuccessRule,
    SimulatedBehaviour,
    SlowRule,
    UnreachableRule,
)


def act(name: str, verb: Verb = Verb.REBOOT) -> Act:
    return Act(id=f"E:{name}", vm=f"s/g/{name}", name=name, verb=verb, event_id="E")


def test_rules_are_read_from_a_settings_table() -> None:
    settings = tomllib.loads(
        """
        rules = [
          {vm = "web-*", verb = "reboot", then = "fail"},
          {then = "slow", factor = 3},
          {vm = "db-1", then = "unavailable", times = 2},
          {verb = "power-off", then = "lie"},
          {then = "take", seconds = 1.5},
        ]
        """
    )
    assert SimulatedBehaviour.from_rules(settings["rules"]).rules == (
        FailRule(vm="web-*", verb=Verb.REBOOT),
        SlowRule(factor=3),
        UnreachableRule(vm="db-1", times=2),
        FalseSuccessRule(verb=Verb.POWER_OFF),
        DurationRule(seconds=1.5),
    )


@pytest.mark.parametrize(
    ("rule", "name", "verb", "holds"),
    [
        (FailRule(), "web-1", Verb.START, True),
        (FailRule(vm="web-*"), "web-1", Verb.REBOOT, True),
        (FailRule(vm="web-*"), "db-1", Verb.REBOOT, False),
        (FailRule(vm="WEB-?"), "Web-1", Verb.REBOOT, True),
        (FailRule(verb=Verb.REBOOT), "web-1", Verb.REBOOT, True),
        (FailRule(verb=Verb.REBOOT), "web-1", Verb.START, False),
        (FailRule(vm="web-*", verb=Verb.REBOOT), "db-1", Verb.REBOOT, False),
    ],
)
def test_a_rule_applies_to_the_vms_and_the_verb_it_names(rule: FailRule, name: str, verb: Verb, holds: bool) -> None:
    assert (SimulatedBehaviour((rule,)).first_match(FailRule, act(name, verb)) is rule) is holds


def test_the_first_matching_rule_of_each_kind_applies() -> None:
    behaviour = SimulatedBehaviour((SlowRule(vm="db-*", factor=2), SlowRule(factor=5), DurationRule(seconds=10)))
    assert behaviour.duration_s(act("db-1"), 30) == 20
    assert behaviour.duration_s(act("web-1"), 30) == 50


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"vm": "web-*"}, "missing required field `then`"),
        ({"then": "explode"}, "Invalid value 'explode'"),
        ({"then": "fail", "verb": "rebot"}, "Invalid enum value 'rebot'"),
        ({"then": "fail", "vmm": "web-1"}, "unknown field `vmm`"),
        ({"then": "fail", "factor": 2}, "unknown field `factor`"),
        ({"then": "slow", "factor": -1}, "Expected `float` >= 0.0"),
        ({"then": "slow", "factor": float("nan")}, "Expected `float`"),
        ({"then": "slow", "factor": float("inf")}, "Expected `float` <="),
        ({"then": "slow", "factor": "2"}, "Expected `float`, got `str`"),
        ({"then": "unavailable", "times": 0}, "Expected `int` >= 1"),
        ({"then": "unavailable", "times": True}, "Expected `int`, got `bool`"),
        ({"then": "take"}, "missing required field `seconds`"),
        ({"then": "fail", "vm": 7}, "Expected `str`, got `int`"),
        ("fail", "Expected `object`, got `str`"),
    ],
    ids=str,
)
def test_a_wrong_rule_is_rejected_in_one_sentence(row: Any, why: str) -> None:
    with pytest.raises(Rejected) as caught:
        SimulatedBehaviour.from_rules([{"then": "lie"}, row])
    message = str(caught.value)
    assert message.startswith(f"hypervisor rule {row!r} is not understood (")
    assert why in message
    assert "give then = take (with seconds), slow (factor), fail (note), unavailable (times) or lie" in message
    assert "\n" not in message


@pytest.mark.parametrize("rows", [3, "fail", {"then": "fail"}, None], ids=str)
def test_rules_that_are_not_a_list_are_rejected(rows: Any) -> None:
    with pytest.raises(Rejected, match="are not a list: give a list of tables, one per rule"):
        SimulatedBehaviour.from_rules(rows)
