"""Budget handlers: list, set and remove the limits on VMs out of service at once (spec §13.2)."""

from __future__ import annotations

from forewarn.control.budgets import BudgetUse
from forewarn.core.budgets import Budget, budget_text, make_budget
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, NonEmptyText, StrictBody
from forewarn.web.views import BaseView

_MAX_SHOWN_GROUPS = 1_000
_MAX_NAMED_VMS = 20


class NewBudget(StrictBody, frozen=True, kw_only=True):
    """A budget to set, in place of one of its name: at most `max_vms` VMs, or `max_percent` % of them.

    Exactly one of the two is above 0. `per` says which VMs are counted together: everything, location, fault-domain,
    scope or `tag:NAME`. `location` and `tag` select the VMs that it counts at all.
    """

    name: NonEmptyText  # letters, digits, `-`, `_` and `.`; in any case
    max_vms: int = 0
    max_percent: int = 0  # rounded down to whole VMs, but at least one VM
    per: str = "everything"
    location: str = ""  # "": VMs of all locations
    tag: str = ""  # such as `app=web`; "": VMs with any tags or none


class BudgetGroupView(BaseView, frozen=True, kw_only=True):
    """One group of VMs that a budget counts together."""

    title: str  # such as `location westeurope`; "" if it counts everything
    limit: int  # VMs that may be out at once
    vms: int  # present VMs of the group
    out: int  # VMs that are out of service, or that a rollout has announced maintenance for
    out_vms: tuple[str, ...]  # names of the first 20 of them


class BudgetView(BaseView, frozen=True, kw_only=True):
    """A budget, and how much of it is used in each of its groups, of which the first 1,000 are shown."""

    name: str
    text: str  # in words: `2 VMs of each location out at once`
    max_vms: int  # 0: it is a percentage
    max_percent: int  # 0: it is a number of VMs
    per: str  # everything, location, fault-domain, scope or tag:NAME
    location: str
    tag: str  # such as `app=web`
    groups: tuple[BudgetGroupView, ...]  # those with most VMs out first


class BudgetsView(BaseView, frozen=True, kw_only=True):
    """All budgets, sorted by name."""

    budgets: tuple[BudgetView, ...]


async def list_budgets(context: RequestContext, call: HandlerCall) -> BudgetsView:
    """List the budgets, and how much of each is used.

    Sorted by name.
    """
    return BudgetsView(budgets=tuple(budget_view(context, budget) for budget in context.control.budgets.budgets()))


async def set_budget(context: RequestContext, call: HandlerCall, body: NewBudget) -> BudgetView:
    """Set a budget: how many VMs may be out of service at once while rollouts publish events.

    It replaces the budget of the same name. Events that are published stay. Raises Rejected, with one sentence, for
    anything that is wrong with it, such as a limit of 0, more than 100 %, or a location or tag that no VM has. The
    history gets an entry.
    """
    budget = make_budget(
        body.name,
        max_vms=body.max_vms,
        max_percent=body.max_percent,
        per=body.per,
        location=body.location,
        tag=body.tag,
    )
    await context.control.budgets.set_budget(budget, who=context.caller_name)
    await context.wait_for_reconciler()
    return budget_view(context, budget)


async def remove_budget(context: RequestContext, call: HandlerCall) -> BudgetView:
    """Remove a budget; rollouts that waited for it go on.

    The path parameter `name` is in any case. Returns the removed budget, without groups. Raises NotFound. The history
    gets an entry.
    """
    budget = await context.control.budgets.remove_budget(call.path_params["name"], who=context.caller_name)
    await context.wait_for_reconciler()
    return budget_view(context, budget)


def budget_view(context: RequestContext, budget: Budget) -> BudgetView:
    """Returns the view of a budget, with its use now; without groups if it is not set.

    Does not check what the caller may see.
    """
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
        title=use.title, limit=use.limit, vms=use.vms, out=len(use.out), out_vms=use.out[:_MAX_NAMED_VMS]
    )
