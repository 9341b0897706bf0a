"""Forms that set and remove the standing order, which visits every host within an interval."""

from __future__ import annotations

from typing import Any

from forewarn.base.duration import duration_text
from forewarn.core.standing_order import DUE_SHARE
from forewarn.errors import Refused
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.form_definition import NOTICE_FIELD, FieldKind, Form, FormField, FormValues
from forewarn.web.portal.rollout_forms import BLACKOUTS_FIELD, IMPACT_FIELD, WINDOWS_FIELD, window_members
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.standing_order import NewStandingOrder, read_standing_order


def _order_body(context: RequestContext, values: FormValues) -> dict[str, Any]:
    return dict(window_members(values))


def _set_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    order = call.parse_body(NewStandingOrder).to_order(context.caller_name, context.now())
    hosts = context.control.standing_order.check_order(order)
    within, due = duration_text(order.within_s), duration_text(DUE_SHARE * order.within_s)
    sentences = [
        f"Every host ({hosts} now) is visited within {within}, {order.at_once} at a time, the one that has waited "
        f"longest first. A visit is a rollout of impact {order.impact} over one host.",
        f"A host is due {due} after its last visit, and at once if it was never visited.",
    ]
    if context.control.standing_order.order is not None:
        sentences.append(
            "This replaces the present order. Its visits still count, except for those with another impact. If you "
            "change the impact, the notice or the windows, visits in progress end: events that have not started are "
            "withdrawn, and their hosts are visited again."
        )
    return sentences


def _remove_preview(context: RequestContext, call: HandlerCall) -> list[str]:
    view = read_standing_order(context)
    if not view.is_set:
        raise Refused("there is no standing order: there is nothing to remove")
    return [
        f"No more hosts are visited; {view.visited} of {view.total} were visited in time.",
        f"Visits in progress: {view.in_progress}. They go on; abort their rollouts to end them.",
    ]


def _order_url(response: Any) -> str:
    return f"{PORTAL_PREFIX}/standing-order"


STANDING_ORDER_FORMS = (
    Form(
        name="standing-order",
        title="Set the standing order",
        button="Set",
        description="Visits every host within an interval, again and again, within windows and budgets. There is only "
        "one standing order: a new one replaces it.",
        route="POST /rollouts/standing-order",
        done_message="The standing order is set.",
        result_url=_order_url,
        fields=(
            FormField(
                name="within",
                kind=FieldKind.DURATION,
                label="Visit every host within",
                body_member="within_s",
                default="30d",
                is_required=True,
                hint="Such as 30d; from an hour to 366 days.",
            ),
            IMPACT_FIELD,
            FormField(
                name="at_once",
                kind=FieldKind.NUMBER,
                label="Hosts at once",
                body_member="at_once",
                default="1",
            ),
            NOTICE_FIELD,
            WINDOWS_FIELD,
            BLACKOUTS_FIELD,
        ),
        extra_body=_order_body,
        preview=_set_preview,
    ),
    Form(
        name="standing-order-remove",
        title="Remove the standing order",
        button="Remove",
        description="No more hosts are visited. Visits that are in progress go on.",
        route="DELETE /rollouts/standing-order",
        done_message="The standing order is removed.",
        result_url=_order_url,
        preview=_remove_preview,
    ),
)
