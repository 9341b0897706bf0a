"""Budgets as values (spec §13.2): what they count, how percentages round, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.budgets import (
    Budget,
    BudgetGroup,
    BudgetGrouping,
    BudgetLedger,
    budget_groups,
    budget_text,
    check_budget,
    group_limit,
    group_title,
    is_down,
    make_budget,
    shortage_text,
)
from forewarn.core.fleet import LastSeen, PowerState, VmCondition
from forewarn.errors import Rejected
from tests.support.world import a_vm

WEB = a_vm("web-0", availability_set="web", fault_domain=1, tags={"app": "web", "Env": "prod"})
DB = a_vm("db", location="northeurope", tags={"app": "db"})


@pytest.mark.parametrize(
    ("per", "titles"),
    [
        ("everything", ["", ""]),
        ("location", ["location westeurope", "location northeurope"]),
        ("fault-domain", ["fault domain 1 of web", "fault domain 0 of db"]),
        ("scope", ["web", "db"]),
        ("tag:APP", ["tag APP=web", "tag APP=db"]),
        ("tag:env", ["tag env=prod"]),
    ],
)
def test_a_budget_counts_vms_in_groups(per: str, titles: list[str]) -> None:
    budget = make_budget("b", max_vms=1, per=per)
    groups = [group for vm in (WEB, DB) for group in budget_groups([budget], vm)]
    assert [group_title(budget, group.value) for group in groups] == titles


def test_a_budget_counts_only_the_vms_of_its_location_and_tag() -> None:
    budgets = [make_budget("a", max_vms=1, location="NorthEurope"), make_budget("b", max_vms=1, tag="app=web")]
    assert [group.budget for group in budget_groups(budgets, WEB)] == ["b"]
    assert [group.budget for group in budget_groups(budgets, DB)] == ["a"]


def test_a_location_is_one_group_however_it_is_spelled() -> None:
    budget = make_budget("b", max_vms=1, per="location")
    groups = {
        group for name in ("WestEurope", "westeurope") for group in budget_groups([budget], a_vm("x", location=name))
    }
    assert groups == {BudgetGroup("b", "westeurope")}


@pytest.mark.parametrize(
    ("percent", "size", "limit"), [(10, 20, 2), (10, 29, 2), (10, 9, 1), (1, 1, 1), (99, 2, 1), (100, 3, 3), (50, 0, 1)]
)
def test_a_percentage_is_rounded_down_but_allows_at_least_one_vm(percent: int, size: int, limit: int) -> None:
    assert group_limit(Budget(name="b", max_percent=percent), size) == limit


def test_a_number_of_vms_is_the_limit_in_every_group() -> None:
    assert group_limit(Budget(name="b", max_vms=3), 2) == 3


@pytest.mark.parametrize(
    ("facts", "is_out"),
    [
        ({}, False),
        ({"power": PowerState.STOPPED}, True),
        ({"power": PowerState.DEALLOCATED, "host": ""}, True),
        ({"seen": LastSeen(condition=VmCondition.CRASHED)}, True),
        ({"seen": LastSeen(condition=VmCondition.MISSING)}, True),
        ({"seen": LastSeen(condition=VmCondition.DUPLICATE)}, False),
        ({"host": "failed"}, True),
    ],
)
def test_a_vm_that_does_not_run_is_out_of_service(facts: dict[str, Any], is_out: bool) -> None:
    assert is_down(a_vm("vm", **facts), {"failed"}) is is_out


def test_vms_that_go_together_are_reserved_together_or_not_at_all() -> None:
    vms = [a_vm(f"vm-{n}") for n in range(4)]
    ledger = BudgetLedger([Budget(name="b", max_vms=3)], {BudgetGroup("b", ""): 4}, {})
    assert ledger.reserve(vms[:2]) is None
    shortage = ledger.reserve(vms[2:], "h1")
    assert shortage is not None
    assert (shortage.needed, shortage.host, ledger.used(shortage.group)) == (2, "h1", 2)
    assert ledger.reserve(vms[2:3]) is None
    assert ledger.reserve(vms[3:]) is not None


def test_a_vm_that_is_already_out_of_service_counts_once() -> None:
    busy, up = a_vm("busy"), a_vm("up")
    group = BudgetGroup("b", "")
    ledger = BudgetLedger([Budget(name="b", max_vms=1)], {group: 2}, {group: {busy.key: "busy"}})
    assert ledger.reserve([up]) is not None
    assert ledger.reserve([busy]) is None
    assert ledger.used(group) == 1


def test_a_vm_on_which_an_event_acts_waits_while_the_budget_is_exceeded() -> None:
    """It comes back when that event ends, and would then be one VM too many."""
    vms = [a_vm("busy"), a_vm("other")]
    group = BudgetGroup("b", "")
    ledger = BudgetLedger([Budget(name="b", max_vms=1)], {group: 4}, {group: {vm.key: vm.name for vm in vms}})
    shortage = ledger.reserve(vms[:1])
    assert shortage is not None
    assert (shortage.needed, shortage.exceeds(1)) == (0, False)


@pytest.mark.parametrize("facts", [{"power": PowerState.STOPPED}, {"host": "failed"}])
def test_a_vm_that_does_not_run_needs_no_budget_even_if_it_is_exceeded(facts: dict[str, Any]) -> None:
    down, other = a_vm("down", **facts), a_vm("other")
    group = BudgetGroup("b", "")
    out = {group: {vm.key: vm.name for vm in (down, other)}}
    ledger = BudgetLedger([Budget(name="b", max_vms=1)], {group: 4}, out, {"failed"})
    assert ledger.reserve([down]) is None
    assert ledger.used(group) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a budget of 0 would keep every rollout waiting forever: allow at least 1 VM or 1 %"),
        ({"max_vms": -1}, "a budget of 0 would keep every rollout waiting forever"),
        ({"max_percent": 101}, "101 % of the VMs are more than all of them: give at most 100 %"),
        ({"max_vms": 1, "max_percent": 1}, "a budget is a number of VMs or a percentage: give one of the two"),
        ({"max_vms": 1, "per": "rack"}, "a budget counts VMs per everything, location, fault-domain, scope or tag:"),
        ({"max_vms": 1, "per": "tag"}, "a budget per tag needs the name of the tag"),
        ({"max_vms": 1, "per": "scope:web"}, "a budget per tag needs the name of the tag, and only such a budget"),
        ({"max_vms": 1, "per": "tag:ap"}, "no VM has the tag 'ap': did you mean 'app'?"),
        ({"max_vms": 1, "tag": "app=wbe"}, "no VM has the tag 'app' with value 'wbe': did you mean 'web'?"),
        ({"max_vms": 1, "tag": "app"}, "'app' selects no VMs: write a tag and its value like team=shop"),
        ({"max_vms": 1, "location": "mars"}, "no VM is in location 'mars': known locations are 'northeurope'"),
        ({"max_vms": 1, "name": "a b"}, "'a b' is not a name for a budget: use up to 60 letters"),
    ],
)
def test_a_wrong_budget_is_rejected_with_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_budget(make_budget(fields.pop("name", "b"), **fields), [WEB, DB], [])
    assert str(raised.value).startswith(message)


def test_budgets_are_described_in_words() -> None:
    assert budget_text(Budget(name="b", max_vms=1)) == "1 VM out of service at once"
    budget = make_budget("b", max_percent=10, per="location", tag="app=web")
    assert budget_text(budget) == "10 % of the VMs of each location with tag app=web out of service at once"
    assert budget.per is BudgetGrouping.LOCATION


def test_a_shortage_says_who_is_out_or_that_the_vms_never_fit() -> None:
    budget = Budget(name="web", max_vms=2)
    ledger = BudgetLedger([budget], {BudgetGroup("web", ""): 20}, {BudgetGroup("web", ""): {"a": "vm3", "b": "vm7"}})
    waiting = ledger.reserve([a_vm("vm1")])
    too_many = ledger.reserve([a_vm(f"vm-{n}") for n in range(5)], "h1")
    assert waiting is not None
    assert too_many is not None
    assert shortage_text(budget, waiting, 20, ["vm3", "vm7"]) == (
        'the budget "web" allows 2 of 20 VMs out of service at once, and vm3, vm7 are'
    )
    assert shortage_text(budget, too_many, 20, ["vm3"]) == (
        'the budget "web" allows 2 of 20 VMs out of service at once, but 5 of its VMs on host h1 go together: '
        "raise the budget, or move VMs away with a rollout of impact migrate"
    )
