"""The health checks of a rollout on its page: what they demand, and what was measured last."""

from __future__ import annotations

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.request import MaintenanceRequest
from forewarn.web.context import RequestContext
from forewarn.web.views import BaseView

_MAX_MEASUREMENTS = 500  # of all checks of a rollout that are read
_MAX_RECENT = 10  # of one check that are shown


class RecentMeasurement(BaseView, frozen=True, kw_only=True):
    """One of the latest measurements of a health check of a rollout. Field names are JSON keys."""

    at: Timestamp
    outcome: str  # good, bad, unclear or error
    text: str  # what was seen, for people


class RolloutCheckRow(BaseView, frozen=True, kw_only=True):
    """A health check of a rollout with its latest measurements. Field names are JSON keys."""

    name: str  # unique in the rollout
    demand: str  # what it demands, for people
    recent: tuple[RecentMeasurement, ...]  # at most ten, the newest first; (): not measured recently


def rollout_check_rows(context: RequestContext, request: MaintenanceRequest) -> tuple[RolloutCheckRow, ...]:
    if request.rollout is None or not request.rollout.checks:
        return ()
    newest_first = context.store.measurements(request.id, limit=_MAX_MEASUREMENTS)[::-1]
    return tuple(
        RolloutCheckRow(
            name=check.name,
            demand=check.what,
            recent=tuple(
                RecentMeasurement(at=timestamp(found.at), outcome=found.outcome, text=found.text)
                for found in [found for found in newest_first if found.check == check.name][:_MAX_RECENT]
            ),
        )
        for check in request.rollout.checks
    )
