"""Budget handlers: list, set and remove the limits on VMs out of service at once (spec §13.2)."""

from __future__ import annotations

from forewarn.web.budget_views import BudgetsView, BudgetView, NewBudget, budget_view, read_budgets
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall


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
