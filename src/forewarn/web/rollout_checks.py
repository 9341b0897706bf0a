"""Health checks of rollouts in the API: request bodies, their measurements, and trying them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.health import CheckKind, CheckResult, HealthCheck, Measurement, OwnFigure
from forewarn.core.limits import LongText, Name, NonEmptyText, Number, WholeNumber
from forewarn.core.request import MaintenanceRequest
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody, convert_values
from forewarn.web.views import BaseView

MAX_SHOWN_MEASUREMENTS = 500  # the newest ones


class NewCheck(StrictBody, frozen=True, kw_only=True):
    """A health check: exactly one of `prometheus`, `http`, `command` and `figure`, and how it is judged.

    A `query` and a `condition` belong to `prometheus`, `status` and `body` to `http`, `exit` to `command`, and a
    `condition` to `figure`, where it is `== 0` if it is not given; a field of another kind is rejected. Limits are
    numbers of measurements, from 1 to 1,000. Only administrators may give a `command`, and only if the service runs
    commands.
    """

    name: NonEmptyText  # unique within the rollout, ignoring letter case; at most 60 characters
    prometheus: LongText = ""  # URL of a Prometheus server, http or https; it needs a query and a condition
    query: LongText = ""  # PromQL
    condition: Name = ""  # each value must meet it: one of < <= > >= == != and a number, such as `< 0.01`
    http: LongText = ""  # URL that is called with GET
    status: WholeNumber = 200  # the HTTP status of a good answer, 100 to 599; redirects are not followed
    body: LongText = ""  # text that a good answer contains; "": any answer is good
    command: Annotated[tuple[LongText, ...], Meta(max_length=100)] = ()  # program and arguments, run by the service
    exit: WholeNumber = 0  # the exit status of a good command
    figure: OwnFigure | None = None  # of the service itself; None: it asks another source
    interval_s: Number = 60  # seconds of lab time between two measurements: 1 (figure: 10) to 86,400
    timeout_s: Number = 10  # seconds of real time that one measurement may take, at most 300
    bad_limit: WholeNumber = 1  # bad ones in all during a wave, from which on the rollout pauses
    unclear_limit: WholeNumber = 1  # unclear results in a row, from which on the rollout publishes nothing
    error_limit: WholeNumber = 3  # errors in a row, from which on they count as unclear


class CheckView(BaseView, frozen=True, kw_only=True):
    """A health check of a rollout, and its latest measurement among the newest 500 of all its checks.

    Without a measurement, `outcome` and `text` are "" and `at` is None.
    """

    name: str  # unique in the rollout
    kind: str  # prometheus, http, command or figure
    demand: str  # what it demands, for people
    interval_s: float  # lab time
    bad_limit: int  # bad measurements in a wave from which on the rollout pauses
    unclear_limit: int  # unclear results in a row from which on the rollout publishes nothing
    error_limit: int  # errors in a row from which on they count as unclear
    outcome: str  # good, bad, unclear or error
    text: str  # what was seen, for people
    at: Timestamp | None  # of the measurement


class MeasurementView(BaseView, frozen=True, kw_only=True):
    """One measurement of a health check: when the check was performed, and what it found."""

    check: str  # the name of the check
    at: Timestamp
    outcome: str  # good, bad, unclear or error
    value: float | None  # compared with the condition; None: there is none
    text: str  # what was seen, for people
    wave: int  # the wave in which it was measured, from 1


class RolloutChecksView(BaseView, frozen=True, kw_only=True):
    """The health checks of a rollout, their newest measurements, and what they led to."""

    id: str  # the id of the rollout
    progress: str  # running, paused, stopped, aborted or completed
    reason: str  # why the rollout has paused itself, or ended; "": neither
    unclear: str  # why its checks keep the rollout from publishing; "": they do not
    hold_if_unclear: bool  # its events start without an approval only while all checks are clear
    checks: tuple[CheckView, ...]  # in the order of the rollout
    measurements: tuple[MeasurementView, ...]  # the measurements of all checks, oldest first, at most the newest 500


class TriedCheckView(BaseView, frozen=True, kw_only=True):
    """What a health check found when it was tried once, without a started rollout."""

    name: str  # unique in the rollout
    demand: str  # what it demands, for people
    outcome: str  # good, bad, unclear or error
    value: float | None  # that was compared; None: there is none
    text: str  # what was seen, for people


class TriedChecksView(BaseView, frozen=True, kw_only=True):
    """What the health checks of a rollout that was not started found, in the order of the checks."""

    checks: tuple[TriedCheckView, ...]


def check_of(body: NewCheck) -> HealthCheck:
    """Return the health check that a body describes."""
    kinds = [kind for kind in CheckKind if getattr(body, kind)]
    if len(kinds) != 1:
        raise Rejected(
            f"check {body.name!r} asks {'nothing' if not kinds else ' and '.join(kinds)}: "
            "give one of prometheus, http, command and figure"
        )
    return HealthCheck(
        name=body.name,
        kind=kinds[0],
        url=body.prometheus or body.http,
        query=body.query,
        condition=body.condition,
        status=body.status,
        body=body.body,
        command=body.command,
        exit_status=body.exit,
        figure=body.figure,
        interval_s=body.interval_s,
        timeout_s=body.timeout_s,
        bad_limit=body.bad_limit,
        unclear_limit=body.unclear_limit,
        error_limit=body.error_limit,
    )


def check_from_table(table: Mapping[str, Any]) -> HealthCheck:
    """Return the health check that a table `[[checks]]` of a rollout file describes."""
    fields = dict(table)
    for name in ("interval", "timeout"):
        if name in fields:
            fields[f"{name}_s"] = fields.pop(name)
    if not fields.get("name"):
        raise Rejected("a check has no name: give one")
    if (figure := fields.get("figure")) is not None and figure not in list(OwnFigure):
        raise Rejected(f"the figure {figure!r} is not known: give one of {', '.join(OwnFigure)}")
    return check_of(convert_values(fields, NewCheck))


def rollout_checks_view(context: RequestContext, request: MaintenanceRequest) -> RolloutChecksView:
    """Return the health checks of a rollout with its newest measurements, read from the store."""
    rollout = request.rollout
    assert rollout is not None
    measurements = context.store.measurements(request.id, limit=MAX_SHOWN_MEASUREMENTS)
    latest = {measurement.check: measurement for measurement in measurements}
    return RolloutChecksView(
        id=request.id,
        progress=rollout.progress,
        reason=rollout.reason,
        unclear=rollout.unclear,
        hold_if_unclear=rollout.hold_if_unclear,
        checks=tuple(_check_view(check, latest.get(check.name)) for check in rollout.checks),
        measurements=tuple(
            MeasurementView(
                check=m.check, at=timestamp(m.at), outcome=m.outcome, value=m.value, text=m.text, wave=m.wave + 1
            )
            for m in measurements
        ),
    )


def _check_view(check: HealthCheck, latest: Measurement | None) -> CheckView:
    return CheckView(
        name=check.name,
        kind=check.kind,
        demand=check.what,
        interval_s=check.interval_s,
        bad_limit=check.bad_limit,
        unclear_limit=check.unclear_limit,
        error_limit=check.error_limit,
        outcome=latest.outcome if latest else "",
        text=latest.text if latest else "",
        at=timestamp(latest.at if latest else None),
    )


async def show_rollout_checks(context: RequestContext, call: HandlerCall) -> RolloutChecksView:
    """Show the health checks of a rollout with their newest measurements."""
    return rollout_checks_view(context, context.find_rollout(call.path_params["id"]))


def tried_check_view(check: HealthCheck, found: CheckResult) -> TriedCheckView:
    """Return the view of a health check that was tried once; `found` is what it found."""
    return TriedCheckView(name=check.name, demand=check.what, outcome=found.outcome, value=found.value, text=found.text)
