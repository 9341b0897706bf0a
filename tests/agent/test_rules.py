"""Which rule applies to an event: the first that matches."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.agent.approval import find_rule, notice_left_s, rule_matches
from forewarn.agent.model import Event, RuleConfig
from tests.agent.conftest import NOW, event


@pytest.mark.parametrize(
    ("conditions", "facts", "expected"),
    [
        pytest.param({}, {}, True, id="no condition at all"),
        pytest.param({"kinds": frozenset({"Reboot"})}, {}, True, id="its kind"),
        pytest.param({"kinds": frozenset({"reboot"})}, {}, True, id="its kind in another case"),
        pytest.param({"kinds": frozenset({"Freeze"})}, {}, False, id="another kind"),
        pytest.param({"sources": frozenset({"User"})}, {}, False, id="another source"),
        pytest.param({"max_duration_s": 10}, {"duration_s": 5}, True, id="a short freeze"),
        pytest.param({"max_duration_s": 10}, {"duration_s": -1}, False, id="an unknown duration is endless"),
        pytest.param({"max_duration_s": 10}, {"duration_s": None}, False, id="an unknown duration is endless"),
        pytest.param({"min_duration_s": 10}, {"duration_s": -1}, True, id="endless is long"),
        pytest.param({"min_left_s": 600}, {"left_s": 900}, True, id="enough time left"),
        pytest.param({"min_left_s": 600}, {"left_s": 30}, False, id="too little time left"),
        pytest.param({"max_left_s": 60}, {"left_s": 30}, True, id="little time left"),
        pytest.param({"max_left_s": 60}, {"left_s": None}, True, id="started: no time is left"),
        pytest.param({"min_left_s": 1}, {"left_s": None}, False, id="started: nothing that needs time"),
        pytest.param({"min_left_s": 1}, {"not_before": None}, False, id="no readable date: no time is promised"),
        pytest.param({}, {"resources": ("neighbour",)}, False, id="an event for a neighbour only"),
        pytest.param({}, {"resources": ("neighbour", "VM")}, True, id="its own name in another case"),
        pytest.param({}, {"resources": ("_vm",)}, True, id="its own name with the underscore of 2017"),
        pytest.param({}, {"resources": ()}, False, id="an event that lists no VM"),
        pytest.param({"vms": "web-*"}, {"resources": ("_WEB-7",)}, True, id="a neighbour, where the rule says so"),
        pytest.param({"vms": "web-*"}, {}, False, id="not its own VM, where the rule names others"),
        pytest.param({"vms": "*"}, {"resources": ("neighbour",)}, True, id="anybody"),
    ],
)
def test_a_rule_matches_events_that_meet_all_its_conditions(
    conditions: dict[str, Any], facts: dict[str, Any], expected: bool
) -> None:
    assert rule_matches(RuleConfig(name="r", **conditions), event(**facts), "vm", NOW) is expected


def test_the_first_rule_that_matches_applies() -> None:
    rules = [
        RuleConfig(name="freezes", kinds=frozenset({"Freeze"})),
        RuleConfig(name="rest"),
        RuleConfig(name="never reached"),
    ]
    assert find_rule(rules, event(), "vm", NOW) == rules[1]
    assert find_rule(rules[:1], event(), "vm", NOW) is None


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(event(left_s=30), 30), (event(left_s=-5), 0), (event(left_s=None), 0), (event(not_before=None), None)],
)
def test_time_left_is_never_negative_and_none_if_unknown(seen: Event, expected: float | None) -> None:
    assert notice_left_s(seen, NOW) == expected
