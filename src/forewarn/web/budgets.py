"""Budget handlers: list, set and remove the limits on VMs out of service at once (spec §13.2)."""

from __future__ import annotations

from forewarn.control.budgets import BudgetUse
from forewarn.core.budgets import Budget, budget_text, make_budget
from forewarn.core.limits import Name, NonEmptyText, WholeNumber
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView

_MAX_SHOWN_GROUPS = 1_000
_MAX_NAMED_VMS = 20
_MAX_NAMED_ROLLOUTS = 20


class NewBudget(StrictBody, frozen=True, kw_only=True):
    """A budget to set: how many VMs of a group may be out of service at once.

    It replaces a budget of the same name. The limit is `max_vms` VMs or `max_percent` % of them: exactly one of the two
    is above 0. `per` says which VMs are counted together as a group: everything, location, fault-domain, scope or
    `tag:NAME`. `location` and `tag` select the VMs that it counts at all. Each location, tag and value must occur in a
    present VM. At most 100 budgets can be set.
    """

    name: NonEmptyText  # up to 60 letters, digits, `-`, `_` and `.`; letter case does not matter
    max_vms: WholeNumber = 0  # 0: not given
    max_percent: WholeNumber = 0  # up to 100, of the group's VMs, rounded down, but at least one VM; 0: not given
    per: Name = "everything"  # everything, location, fault-domain, scope or `tag:NAME`
    location: Name = ""  # "": VMs of all locations
    tag: Name = ""  # such as `team=platform`; "": VMs with any tags or none

    def to_budget(self) -> Budget:
        """Return the budget that this body describes; sets nothing."""
        return make_budget(
            self.name,
            max_vms=self.max_vms,
            max_percent=self.max_percent,
            per=self.per,
            location=self.location,
            tag=self.tag,
        )


class BudgetGroupView(BaseView, frozen=True, kw_only=True):
    """One group of VMs that a budget counts together, with its use now."""

    title: str  # such as `location westeurope`; "" if it counts everything
    limit: int  # VMs that may be out at once
    vms: int  # present VMs of the group
    out_of_service: int  # VMs that are out of service, or reserved for an event
    out_of_service_vms: tuple[str, ...]  # names of the first 20 of them
    reserved: int  # how many of them still run: an event is only planned or scheduled for them
    rollouts: tuple[str, ...]  # ids of rollouts, and of faults that made Freezes, that they are due to; the first 20


class BudgetView(BaseView, frozen=True, kw_only=True):
    """A budget, and how much of it is used now in each of its groups, of which the first 1,000 are shown."""

    name: str  # unique, ignoring letter case
    text: str  # in words: `2 VMs of each location out of service at once`
    max_vms: int  # 0: it is a percentage
    max_percent: int  # 0: it is a number of VMs
    per: str  # everything, location, fault-domain, scope or tag:NAME
    location: str  # it counts only VMs there; "": of all locations
    tag: str  # such as `team=platform`; "": it does not select by tag
    groups: tuple[BudgetGroupView, ...]  # those with most VMs out first


class BudgetsView(BaseView, frozen=True, kw_only=True):
    """All budgets, sorted by name."""

    budgets: tuple[BudgetView, ...]


def read_budgets(context: RequestContext) -> BudgetsView:
    """Return all budgets with their use now, sorted by name; does not check what the caller may see."""
    return BudgetsView(budgets=tuple(budget_view(context, budget) for budget in context.control.budgets.budgets()))


def budget_view(context: RequestContext, budget: Budget) -> BudgetView:
    """Return the view of a budget, with its use now; without groups if the budget is not set."""
    uses = sorted(context.control.budgets.uses(budget), key=lambda use: (-len(use.out), use.title))
    return BudgetView(
        name=budget.name,
        text=budget_text(budget),
        max_vms=budget.max_vms,
        max_percent=budget.max_percent,
        per=f"{budget.per}:{budget.per_tag}" if budget.per_tag else budget.per,
        location=budget.location,
        tag=f"{budget.tag}={budget.tag_value}" if budget.tag else "",
        groups=tuple(map(_group_view, uses[:_MAX_SHOWN_GROUPS])),
    )


def _group_view(use: BudgetUse) -> BudgetGroupView:
    return BudgetGroupView(
        title=use.title,
        limit=use.limit,
        vms=use.vms,
        out_of_service=len(use.out),
        out_of_service_vms=use.out[:_MAX_NAMED_VMS],
        reserved=use.reserved,
        rollouts=use.rollouts[:_MAX_NAMED_ROLLOUTS],
    )


async def list_budgets(context: RequestContext, call: HandlerCall) -> BudgetsView:
    """List the budgets, and how much of each is used."""
    return read_budgets(context)


async def set_budget(context: RequestContext, call: HandlerCall, body: NewBudget) -> BudgetView:
    """Set a budget: how many VMs may be out of service at once while rollouts publish events."""
    budget = body.to_budget()
    await context.control.budgets.set_budget(budget, who=context.caller_name)
    await context.wait_for_reconciler()
    return budget_view(context, budget)


async def remove_budget(context: RequestContext, call: HandlerCall) -> BudgetView:
    """Remove a budget; rollouts that waited for it go on."""
    budget = await context.control.budgets.remove_budget(call.path_params["name"], who=context.caller_name)
    await context.wait_for_reconciler()
    return budget_view(context, budget)
