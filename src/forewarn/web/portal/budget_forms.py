"""Forms that set and remove a budget, the limit on VMs out of service at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from forewarn.core.budgets import budget_groups, budget_text, check_budget, group_limit, parse_limit
from forewarn.errors import Rejected
from forewarn.web.budgets import NewBudget
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.form_definition import FieldKind, Form, FormField, FormValues
from forewarn.web.request_parsing import HandlerCall

_LIMIT_FIELD = FormField(
    name="at_most",
    kind=FieldKind.TEXT,
    label="At most",
    is_required=True,
    hint="A number of VMs such as 2, or a share such as 10%. A share is rounded down, but is at least one VM.",
)
_PER_FIELD = FormField(
    name="per",
    kind=FieldKind.CHOICE,
    label="Counted over",
    default="everything",
    choices=(
        ("everything", "all VMs together"),
        ("location", "each location"),
        ("fault-domain", "each fault domain"),
        ("scope", "each scope"),
        ("tag", "each value of a tag"),
    ),
)
_PER_TAG_FIELD = FormField(
    name="per_tag",
    kind=FieldKind.TEXT,
    label="Name of that tag",
    hint="Only if VMs are counted over each value of a tag.",
)


def _budget_body(context: RequestContext, values: FormValues) -> dict[str, Any]:
    max_vms, max_percent = parse_limit(_LIMIT_FIELD.parse(values) or "")
    per, tag = _PER_FIELD.parse(values) or _PER_FIELD.default, _PER_TAG_FIELD.parse(values) or ""
    if per == "tag" and not tag:
        raise Rejected("a budget over each value of a tag needs the name of that tag: enter it")
    if tag and per != "tag":
        raise Rejected("only a budget over each value of a tag has the name of a tag: leave the name empty")
    return {"max_vms": max_vms, "max_percent": max_percent, "per": f"tag:{tag}" if tag else per}


def _set_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    budget = call.parse_body(NewBudget).to_budget()
    known = context.control.budgets.budgets()
    vms = list(context.store.vms())
    check_budget(budget, vms, [other for other in known if other.key != budget.key])
    sizes = Counter(group for vm in vms for group in budget_groups([budget], vm))
    limits = sorted({group_limit(budget, size) for size in sizes.values()})
    sentences = [f'Budget "{budget.name}": at most {budget_text(budget)}. All rollouts share it.']
    if sizes:
        at_most = f"{limits[0]} to {limits[-1]}" if len(limits) > 1 else f"{limits[0]}"
        groups = f" in {len(sizes)} groups; in each group" if len(sizes) > 1 else ";"
        sentences.append(f"It counts {sizes.total()} VMs{groups} {at_most} may be out of service at once.")
    before = next((other for other in known if other.key == budget.key), None)
    if before is not None:
        sentences.append(f"It replaces the budget of this name, which allows at most {budget_text(before)}.")
    return [*sentences, "Events that are already published stay. User operations never wait for a budget."]


def _remove_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    budget = context.control.budgets.find(call.path_params["name"])
    waiting = sum(
        any(shortage.group.budget == budget.key for shortage in shortages)
        for shortages in context.control.budgets.waiting.values()
    )
    return [
        f'The budget "{budget.name}" (at most {budget_text(budget)}) is removed.',
        f"Rollouts that wait for it: {waiting}. They go on, unless another budget holds them back.",
    ]


def _budgets_url(response: Any) -> str:
    return f"{PORTAL_PREFIX}/budgets"


BUDGET_FORMS = (
    Form(
        name="budget-set",
        title="Set a budget",
        button="Set",
        description="Limits how many VMs may be out of service at once while rollouts run. It replaces a budget of the "
        "same name.",
        route="POST /budgets",
        done_message="The budget is set.",
        result_url=_budgets_url,
        fields=(
            FormField(
                name="name", kind=FieldKind.TEXT, label="Name", body_member="name", is_required=True,
                hint="Letters, digits, '-', '_' and '.'.",
            ),
            _LIMIT_FIELD,
            _PER_FIELD,
            _PER_TAG_FIELD,
            FormField(
                name="location", kind=FieldKind.TEXT, label="Only VMs in this location", body_member="location",
                hint="Empty: in all locations.",
            ),
            FormField(
                name="tag", kind=FieldKind.TEXT, label="Only VMs with this tag", body_member="tag",
                hint="name=value. Empty: with any tags or none.",
            ),
        ),
        extra_body=_budget_body,
        preview=_set_preview,
    ),
    Form(
        name="budget-remove",
        title="Remove a budget",
        button="Remove",
        description="Rollouts no longer keep to this budget.",
        confirms_directly=True,
        route="DELETE /budgets/{name}",
        done_message="The budget is removed.",
        result_url=_budgets_url,
        fields=(FormField(name="name", kind=FieldKind.TEXT, label="Name", path_parameter="name", is_required=True),),
        preview=_remove_preview,
    ),
)  # fmt: skip
