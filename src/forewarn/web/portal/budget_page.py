"""The page of budgets: how many VMs may be out of service at once, and what uses each budget now."""

from __future__ import annotations

from forewarn.base.wording import first_names
from forewarn.web.budgets import BudgetGroupView, BudgetView, read_budgets
from forewarn.web.context import RequestContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import BaseView

_MAX_GROUPS = 15  # of one budget that the page shows
_MAX_NAMED_VMS = 5
_CSV_COLUMNS = ("budget", "group", "limit", "vms", "in_use", "reserved", "rollouts")


class BudgetRow(BaseView, frozen=True, kw_only=True):
    """One group of VMs of a budget, as a row on the page of budgets. Field names are JSON keys."""

    group: BudgetGroupView  # the VMs that are counted together, their limit, and how many are out of service
    is_used_up: bool  # the limit is reached: rollouts publish nothing more for the VMs of the group
    out_text: str  # names of the VMs that are out of service or reserved: `web-0, web-1 and 4 more`; "": none is


class BudgetPart(BaseView, frozen=True, kw_only=True):
    """One budget on the page of budgets, with its groups and the values of its form. Names are JSON keys."""

    name: str  # the name of the budget
    limit: str  # such as `2 VMs` or `10 %`
    over: str  # the VMs that it counts, such as `all VMs`, or `each location`
    values: dict[str, str]  # texts that the form that changes it is filled in with, by field name; no empty ones
    rows: tuple[BudgetRow, ...]  # the groups with most VMs out first; 15, in an export at most 1,000
    more_rows: int  # how many of the first 1,000 groups are not in `rows`


class BudgetsPage(BaseView, frozen=True, kw_only=True):
    """The page of all budgets, sorted by name. Field names are JSON keys."""

    budgets: tuple[BudgetPart, ...]
    done: str  # the done message of the form that led here; "": none

    def table(self) -> ExportTable:
        """Return the CSV export: one row per group in the `rows` of each budget, at most 1,000 of each."""
        rows = [
            (
                part.name,
                row.group.title,
                row.group.limit,
                row.group.vms,
                row.group.out_of_service,
                row.group.reserved,
                " ".join(row.group.rollouts),
            )
            for part in self.budgets
            for row in part.rows
        ]
        return ExportTable(columns=_CSV_COLUMNS, rows=rows)


async def show_budgets_page(context: RequestContext, call: HandlerCall, query: DoneMessageQuery) -> BudgetsPage:
    """Show all budgets, and of each the groups that are used most, with the rollouts that use them."""
    most = None if call.for_export else _MAX_GROUPS
    return BudgetsPage(
        budgets=tuple(_budget_part(view, most) for view in read_budgets(context).budgets), done=done_message(query)
    )


def _budget_part(view: BudgetView, most: int | None) -> BudgetPart:
    rows = tuple(map(_budget_row, view.groups[:most]))
    return BudgetPart(
        name=view.name,
        limit=f"{view.max_percent} %" if view.max_percent else f"{view.max_vms} VM{'' if view.max_vms == 1 else 's'}",
        over=_over_text(view),
        values=_form_values(view),
        rows=rows,
        more_rows=len(view.groups) - len(rows),
    )


def _budget_row(group: BudgetGroupView) -> BudgetRow:
    return BudgetRow(
        group=group,
        is_used_up=group.out_of_service >= group.limit,
        out_text=first_names(group.out_of_service_vms, _MAX_NAMED_VMS, total=group.out_of_service),
    )


def _over_text(view: BudgetView) -> str:
    grouping, _, tag = view.per.partition(":")
    groups = f"each value of the tag {tag}" if tag else f"each {grouping.replace('-', ' ')}"
    selected = [
        *([f"in {view.location}"] if view.location else []),
        *([f"with tag {view.tag}"] if view.tag else []),
    ]
    if grouping == "everything":
        return f"VMs {' '.join(selected)}" if selected else "all VMs"
    return f"{groups}, VMs {' '.join(selected)}" if selected else groups


def _form_values(view: BudgetView) -> dict[str, str]:
    grouping, _, per_tag = view.per.partition(":")
    values = {
        "name": view.name,
        "at_most": f"{view.max_percent}%" if view.max_percent else str(view.max_vms),
        "per": grouping,
        "per_tag": per_tag,
        "location": view.location,
        "tag": view.tag,
    }
    return {name: value for name, value in values.items() if value}
