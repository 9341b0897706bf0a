"""Budgets: how many VMs may be out of service at once while rollouts publish (spec §13.2).

A budget counts VMs in groups: all of them, those of a location, a fault domain, a scope, or with one value of a tag. A
VM is out while it does not run, while an event works on it, and from the moment in which a rollout plans an event for
it. A budget holds back rollouts alone; failures and users may exceed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from forewarn.base.wording import did_you_mean, first_names, scope_name_from_id
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import PowerState, Vm, VmCondition, vm_key_in_scope
from forewarn.core.request import ROLLOUT_CAUSES, PlannedEvent
from forewarn.errors import Rejected

MAX_BUDGETS = 100
_MAX_NAME_LENGTH = 60
_MAX_LIMIT_DIGITS = 9
_OUT_CONDITIONS = frozenset({VmCondition.PAUSED, VmCondition.CRASHED, VmCondition.MISSING})


class BudgetGrouping(StrEnum):
    """Which VMs a budget counts together, as a group with a limit of its own. Stored."""

    EVERYTHING = "everything"  # all its VMs
    LOCATION = "location"  # those of each location, ignoring case
    FAULT_DOMAIN = "fault-domain"  # those of each fault domain of each scope
    SCOPE = "scope"  # those of each scope
    TAG = "tag"  # those with the same value of a tag; VMs without the tag do not count


class Budget(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A limit on how many VMs of a group may be out of service at once while rollouts publish. Stored."""

    name: str  # unique, ignoring case; at most 60 letters, digits, `-`, `_` and `.`
    max_vms: int = 0  # either this many VMs
    max_percent: int = 0  # or this share of the present VMs of a group, 1 to 100
    per: BudgetGrouping = BudgetGrouping.EVERYTHING  # which VMs are counted together
    per_tag: str = ""  # the name of the tag whose values make the groups; only with TAG
    location: str = ""  # counts only VMs in this location, ignoring case; "": all VMs
    tag: str = ""  # counts only VMs with the tag of this name, ignoring case; "": all VMs
    tag_value: str = ""  # and with exactly this value of it, even if that is empty

    @property
    def key(self) -> str:
        """The budget's name in lower case: the key by which it is found."""
        return self.name.casefold()


class BudgetGroup(NamedTuple):
    """One group of VMs that a budget counts together: the budget's key and the value that its VMs share."""

    budget: str  # the budget's key, its name in lower case
    value: str  # a location in lower case, `NUMBER SCOPE_ID` of a fault domain, a scope id, a tag's value, or ""


class BudgetShortage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why VMs that a rollout would publish together have to wait: they do not fit in a group of a budget."""

    group: BudgetGroup  # the first one that is used up
    vms: tuple[str, ...]  # names of the VMs that go together
    needed: int  # how many of them are in the group and neither out of service nor reserved yet
    host: str = ""  # the name of the host because of which the VMs go together; "": another reason

    def exceeds(self, limit: int) -> bool:
        """Return whether more VMs go together than `limit`, the number that may be out of the group at once."""
        return self.needed > limit


def make_budget(
    name: str, *, max_vms: int = 0, max_percent: int = 0, per: str = "everything", location: str = "", tag: str = ""
) -> Budget:
    """Return the budget that a user described; it is neither stored nor fully checked yet."""
    grouping, _, per_tag = per.strip().partition(":")
    try:
        groups = BudgetGrouping(grouping)
    except ValueError:
        known = "everything, location, fault-domain, scope or tag:NAME"
        raise Rejected(f"a budget counts VMs per {known}, not per {per!r}: choose one of these") from None
    tag_name, separator, tag_value = tag.strip().partition("=")
    if tag.strip() and not (tag_name and separator):
        raise Rejected(f"{tag!r} selects no VMs: write a tag and its value like team=shop")
    return Budget(
        name=name.strip(),
        max_vms=max_vms,
        max_percent=max_percent,
        per=groups,
        per_tag=per_tag.strip(),
        location=location.strip(),
        tag=tag_name,
        tag_value=tag_value,
    )


def parse_limit(text: str) -> tuple[int, int]:
    """Return a limit such as `2` or `10%` as (number of VMs, percentage); the one that is not given is 0."""
    number = text.strip().removesuffix("%").strip()
    if not number.isdecimal() or len(number) > _MAX_LIMIT_DIGITS:
        raise Rejected(f"{text!r} is not a limit: write a number of VMs like 2, or a whole percentage like 10%")
    return (0, int(number)) if text.strip().endswith("%") else (int(number), 0)


def check_budget(budget: Budget, vms: Iterable[Vm], others: Collection[Budget]) -> None:
    """Raise Rejected, with one sentence, if a budget cannot be set; `vms` are the present VMs of the fleet."""
    _check_name(budget.name)
    _check_limit(budget)
    if (budget.per is BudgetGrouping.TAG) != bool(budget.per_tag):
        raise Rejected("a budget per tag needs the name of the tag, and only such a budget: write it like tag:app")
    if budget.tag_value and not budget.tag:
        raise Rejected(f"the tag value {budget.tag_value!r} belongs to no tag: write it like team=shop")
    if len(others) >= MAX_BUDGETS:
        raise Rejected(f"there are {MAX_BUDGETS} budgets already, which is the limit: remove one first")
    locations: set[str] = set()
    tags: dict[str, set[str]] = defaultdict(set)
    for vm in vms:
        locations.add(vm.location)
        for name, value in vm.tags.items():
            tags[name].add(value)
    if budget.location and budget.location.casefold() not in {name.casefold() for name in locations}:
        raise Rejected(f"no VM is in location {budget.location!r}{_known(budget.location, locations, 'location')}")
    for name in filter(None, (budget.tag, budget.per_tag)):
        if name.casefold() not in {known.casefold() for known in tags}:
            raise Rejected(f"no VM has the tag {name!r}{_known(name, tags, 'tag')}")
    if budget.tag:
        values = {value for name, known in tags.items() if name.casefold() == budget.tag.casefold() for value in known}
        if budget.tag_value not in values:
            raise Rejected(
                f"no VM has the tag {budget.tag!r} with value {budget.tag_value!r}"
                f"{_known(budget.tag_value, values, 'value')}"
            )


def _check_name(name: str) -> None:
    is_plain = all(char.isalnum() or char in "-_." for char in name)
    if not name or not is_plain or len(name) > _MAX_NAME_LENGTH:
        raise Rejected(
            f"{name[:80]!r} is not a name for a budget: use up to {_MAX_NAME_LENGTH} letters, digits, '-', '_' and '.'"
        )


def _check_limit(budget: Budget) -> None:
    if budget.max_vms < 0 or budget.max_percent < 0 or not (budget.max_vms or budget.max_percent):
        raise Rejected(
            "a budget of 0 would keep every rollout waiting forever: "
            "allow at least 1 VM or 1 %, or hold all rollouts instead"
        )
    if budget.max_vms and budget.max_percent:
        raise Rejected("a budget is a number of VMs or a percentage: give one of the two")
    if budget.max_percent > 100:
        raise Rejected(f"{budget.max_percent} % of the VMs are more than all of them: give at most 100 %")


def _known(name: str, known: Iterable[str], noun: str) -> str:
    names = sorted(known)
    if not names:
        return f": VMs have no {noun}s"
    if len(names) == 1:
        return did_you_mean(name, names) or f": the only {noun} is {names[0]!r}"
    return did_you_mean(name, names) or f": known {noun}s are {first_names([repr(each) for each in names], 5)}"


def budget_groups(budgets: Iterable[Budget], vm: Vm) -> tuple[BudgetGroup, ...]:
    """Return the groups in which the budgets count this VM, at most one of each budget, in their order."""
    groups = []
    for budget in budgets:
        if budget.location and vm.location.casefold() != budget.location.casefold():
            continue
        if budget.tag and _tag_value(vm, budget.tag) != budget.tag_value:
            continue
        if (value := _group_value(budget, vm)) is not None:
            groups.append(BudgetGroup(budget.key, value))
    return tuple(groups)


def _group_value(budget: Budget, vm: Vm) -> str | None:
    match budget.per:
        case BudgetGrouping.EVERYTHING:
            return ""
        case BudgetGrouping.LOCATION:
            return vm.location.casefold()
        case BudgetGrouping.FAULT_DOMAIN:
            return f"{vm.fault_domain} {vm.scope_id}"
        case BudgetGrouping.SCOPE:
            return vm.scope_id
        case BudgetGrouping.TAG:
            return _tag_value(vm, budget.per_tag)


def _tag_value(vm: Vm, name: str) -> str | None:
    """Return the value of a VM's tag, ignoring the letter case of its name, or None."""
    if (value := vm.tags.get(name)) is not None or not vm.tags:
        return value
    wanted = name.casefold()
    return next((value for known, value in vm.tags.items() if known.casefold() == wanted), None)


def group_limit(budget: Budget, size: int) -> int:
    """Return how many VMs of a group of `size` VMs may be out of service at once by this budget."""
    # Rounded down, but at least one: a small group could otherwise never be maintained.
    return budget.max_vms or max(1, size * budget.max_percent // 100)


def is_down(vm: Vm, down_hosts: Collection[str]) -> bool:
    """Return whether a VM is out of service because of its own state or its host's, for any cause."""
    return vm.power is not PowerState.RUNNING or vm.condition in _OUT_CONDITIONS or vm.host in down_hosts


def vms_out_by_event(event: Event) -> tuple[str, ...]:
    """Return the keys of the VMs that count as out of service because of this event; () once it is over."""
    # Only rollouts reserve budgets: other events count once they have started, with acts that have ended.
    if event.status is EventState.STARTED:
        return tuple(act.vm for act in event.acts if act.verb.rules.interrupts)
    if event.status is EventState.SCHEDULED and event.cause in ROLLOUT_CAUSES:
        return tuple(vm_key_in_scope(event.scope_id, name) for name in event.vms)
    return ()


def vms_out_by_plan(planned: PlannedEvent) -> tuple[str, ...]:
    """Return the keys of the VMs that a planned event counts as out of service in budgets, in its order."""
    if planned.cause not in ROLLOUT_CAUSES:
        return ()
    return tuple(vm_key_in_scope(planned.scope_id, name) for name in planned.vms)


class BudgetLedger:
    """Which VMs are out of service in each group of the budgets, and which ones a decision reserves.

    Made for one decision about what a rollout publishes. Reservations are only in memory here, and count for other
    decisions once the events are committed as planned.
    """

    def __init__(
        self,
        budgets: Iterable[Budget],
        sizes: Mapping[BudgetGroup, int],
        out: Mapping[BudgetGroup, Mapping[str, str]],
        down_hosts: Collection[str] = frozenset(),
    ) -> None:
        self._budgets = {budget.key: budget for budget in budgets}
        self._sizes = sizes
        self._out = out
        self._down_hosts = down_hosts
        self._reserved: dict[BudgetGroup, set[str]] = defaultdict(set)

    def reserve(self, vms: Sequence[Vm], host: str = "") -> BudgetShortage | None:
        """Reserve all these VMs in all their groups and return None, or reserve none and return why not.

        A VM that does not run needs nothing, so maintenance of a failed or stopped VM is never held back. A VM that is
        out because an event acts on it, or reserved already, takes no further place, but still waits while its group is
        over the limit.
        """
        needed: dict[BudgetGroup, set[str]] = defaultdict(set)
        for vm in vms:
            if is_down(vm, self._down_hosts):
                continue
            key = vm.key
            for group in budget_groups(self._budgets.values(), vm):
                # It has its place already; but its group is looked at all the same, and may be over the limit.
                is_counted = key in self._out.get(group, ()) or key in self._reserved[group]
                needed[group] |= set() if is_counted else {key}
        for group, keys in needed.items():
            if self.used(group) + len(keys) > self.limit(group):
                return BudgetShortage(group=group, vms=tuple(vm.name for vm in vms), needed=len(keys), host=host)
        for group, keys in needed.items():
            self._reserved[group] |= keys
        return None

    def groups_of(self, vms: Iterable[Vm]) -> Counter[BudgetGroup]:
        """Return how many places these VMs need in each group; those that do not run need none."""
        running = (vm for vm in vms if not is_down(vm, self._down_hosts))
        return Counter(group for vm in running for group in budget_groups(self._budgets.values(), vm))

    def used(self, group: BudgetGroup) -> int:
        """Return how many VMs of the group are out of service or reserved in this ledger; 0 if unknown."""
        return len(self._out.get(group, ())) + len(self._reserved.get(group, ()))

    def limit(self, group: BudgetGroup) -> int:
        """Return how many VMs of the group may be out of service at once."""
        return group_limit(self._budgets[group.budget], self._sizes.get(group, 0))


def budget_text(budget: Budget) -> str:
    """Return a budget in words, without its name: `2 VMs of each location out of service at once`."""
    limit = f"{budget.max_percent} % of the VMs" if budget.max_percent else _count(budget.max_vms)
    per = {
        BudgetGrouping.EVERYTHING: "",
        BudgetGrouping.LOCATION: " of each location",
        BudgetGrouping.FAULT_DOMAIN: " of each fault domain",
        BudgetGrouping.SCOPE: " of each scope",
        BudgetGrouping.TAG: f" with the same tag {budget.per_tag}",
    }[budget.per]
    where = f" in {budget.location}" if budget.location else ""
    tagged = f" with tag {budget.tag}={budget.tag_value}" if budget.tag else ""
    return f"{limit}{per}{where}{tagged} out of service at once"


def group_title(budget: Budget, value: str) -> str:
    """Return what people call a group of a budget, such as `location westeurope`; "" if it is all VMs."""
    match budget.per:
        case BudgetGrouping.EVERYTHING:
            return ""
        case BudgetGrouping.LOCATION:
            return f"location {value}"
        case BudgetGrouping.SCOPE:
            return scope_name_from_id(value)
        case BudgetGrouping.TAG:
            return f"tag {budget.per_tag}={value}"
        case BudgetGrouping.FAULT_DOMAIN:
            number, _, scope_id = value.partition(" ")
            return f"fault domain {number} of {scope_name_from_id(scope_id)}"


def shortage_text(budget: Budget, shortage: BudgetShortage, size: int, out: Sequence[str]) -> str:
    """Return why VMs wait for a budget; if they can never fit, what to do instead."""
    limit = group_limit(budget, size)
    title = group_title(budget, shortage.group.value)
    allows = (
        f'the budget "{budget.name}" allows {limit} of {_count(size)}{f" of {title}" if title else ""} '
        "out of service at once"
    )
    if shortage.exceeds(limit):
        where = f" on host {shortage.host}" if shortage.host else ""
        return (
            f"{allows}, but {shortage.needed} of its VMs{where} go together: "
            "raise the budget, or move VMs away with a rollout of impact migrate"
        )
    if not out:
        return allows
    return f"{allows}, and {first_names(out)} {'is' if len(out) == 1 else 'are'}"


def _count(vms: int) -> str:
    return f"{vms} {'VM' if vms == 1 else 'VMs'}"
