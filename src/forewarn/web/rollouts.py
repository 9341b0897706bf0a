"""Rollout handlers: start, plan, preview, show, pause, resume, abort, and show and try health checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from forewarn.base.times import Timestamp, timestamp
from forewarn.control.dry_run import dry_run_rollout, plan_rollout
from forewarn.core.access import Right
from forewarn.core.explain.polling import PollingState, polling_state
from forewarn.core.explain.preview import Preview, preview_to_confirm
from forewarn.core.explain.rollout_plan import RolloutPlan
from forewarn.core.fleet import Vm
from forewarn.core.health import (
    MAX_CHECKS,
    CheckKind,
    CheckResult,
    HealthCheck,
    InvalidCheck,
    Measurement,
    OwnFigure,
    parse_condition,
)
from forewarn.core.limits import (
    CalendarTexts,
    Count,
    DurationSeconds,
    LongText,
    Name,
    NonEmptyText,
    Number,
    Reason,
    WholeNumber,
)
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState, WaveSpec
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.rollout_file import RolloutFile, parse_deadline, read_rollout_file
from forewarn.core.waves import REST_WAVE, make_wave, make_waves
from forewarn.core.windows import MaintenanceCalendar, check_count, make_calendar, parse_blackout, parse_window
from forewarn.errors import Forbidden, Refused, Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, InvalidValue, StrictBody, convert_values, reject_duplicates
from forewarn.web.requests import (
    RolloutsView,
    RolloutView,
    RolloutWithEvents,
    read_rollouts,
    rollout_fields,
    rollout_view,
)
from forewarn.web.views import BaseView, ViewBuilder

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


_MAX_FILE_CHARACTERS = 200_000


class NewWave(StrictBody, frozen=True, kw_only=True):
    """A wave of a rollout: a number of VMs, a share of them, or those with a tag.

    Give at most one of `vms`, `share` and `tag`; without any, the wave takes all VMs that are left.
    """

    name: NonEmptyText  # shown to people
    vms: WholeNumber | None = None  # how many, from 1
    share: Number | None = None  # percent of all VMs, above 0, at most 100
    tag: Name | None = None  # `name`, with any value, or `name=value`


class NewRollout(StrictBody, frozen=True, kw_only=True):
    """A rollout over exactly one of `hosts`, `all_hosts`, `scope`, `tag`, `location` and `everything`.

    With `windows`, events start without an approval only in them, and not on the days of `blackouts`; from the
    `deadline` on they start at any time, as without `windows`. `waves`, or `canary` and `shares`, divide the VMs into
    waves; without either, there is one wave. There are at most 100 waves, with different names; the VMs that are left
    make the last one. `blackouts` and a `deadline` need a window. Instead of all other fields, `file` may have the text
    of a rollout file. The letter case of names and ids is ignored.
    """

    impact: RolloutImpact = RolloutImpact.UPDATE  # update (freezes VMs), migrate or reboot
    hosts: Annotated[tuple[NonEmptyText, ...], Meta(max_length=100_000)] = ()  # names
    all_hosts: bool = False  # every host that the fleet has now
    scope: Name = ""  # an id or name, or the name of a VM in it; "": none
    tag: Name = ""  # VMs with this tag: `name`, or `name=value`
    location: Name = ""  # VMs in this location, at least one, as with the tag
    everything: bool = False  # all VMs, also those that are added later
    max_failures: Count = 1  # failed VMs after which it stops; 0: never
    notice_s: DurationSeconds = 0  # lab time; 0: the minimum, 15 minutes
    short_notice: bool = False  # allow a notice below the minimum, which must then be in `notice_s`
    windows: CalendarTexts = ()  # such as `sat,sun 02:00 4h Europe/Berlin`
    blackouts: CalendarTexts = ()  # such as `2026-12-24` or `2026-12-24..2026-12-26`
    deadline: Timestamp | None = None  # from when on windows no longer matter; None: they always do
    canary: Name = ""  # the first wave: a number of VMs such as `2`, or `tag=NAME` or `tag=NAME=VALUE`
    shares: Annotated[tuple[Number, ...], Meta(max_length=100)] = ()  # in percent of all VMs; the rest follows
    waves: Annotated[tuple[NewWave, ...], Meta(max_length=101)] = ()  # instead of `canary` and `shares`
    settle_s: DurationSeconds = 0  # lab time between the end of a wave and the beginning of the next; at most 30 days
    checks: Annotated[tuple[NewCheck, ...], Meta(max_length=MAX_CHECKS)] = ()  # health checks, at most 20
    hold_if_unclear: bool = False  # events start without an approval only while all checks are clear
    file: Annotated[str, Meta(max_length=_MAX_FILE_CHARACTERS)] = ""  # a rollout file, as TOML; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRollout:
    """A rollout that a caller asks for, read from a request body and not started yet.

    `read_new_rollout` makes it. It has the notice of the rollout's events, and the file that describes the rollout, if
    there is one.
    """

    rollout: Rollout  # without VMs or events yet
    notice_s: float  # seconds of lab time; 0: the minimum
    short_notice: bool  # the notice may be shorter than the minimum
    file: RolloutFile | None  # None: it was given by fields

    @contextmanager
    def located(self) -> Iterator[None]:
        """Return a context manager that adds the line of the rollout file to errors of its block."""
        if self.file is None:
            yield
            return
        refused: Refused | None = None
        with self.file.located("rollout", "notice"):
            try:
                yield
            except Refused as error:
                refused = error
        if refused is not None:  # by the hypervisor or the fleet, so what it is to do is at fault, not its notice
            with self.file.located("rollout", "impact"):
                raise refused


def read_new_rollout(context: RequestContext, body: NewRollout) -> WantedRollout:
    """Return the rollout that a body describes, by its fields or by its file; starts and stores nothing."""
    wanted = _read_rollout(context, body)
    _require_command_right(wanted.rollout.checks, context)
    return wanted


def _require_command_right(checks: Sequence[HealthCheck], context: RequestContext) -> None:
    # A command runs on this machine as the service's user, and could read every secret of the service.
    commands = [check for check in checks if check.kind is CheckKind.COMMAND]
    if commands and not context.principal.may(Right.ADMINISTER, ROOT_RESOURCE):
        raise Forbidden(
            f"{context.caller_name} does not have the right to run programs on the service's machine, such as the "
            f"command of check {commands[0].name!r}: leave it out, or let an administrator start this"
        )


def _read_rollout(context: RequestContext, body: NewRollout) -> WantedRollout:
    if not body.file:
        if body.short_notice and not body.notice_s:
            raise Rejected("a short notice needs a length", Remedy.GIVE_NOTICE)
        waves = _waves_of_body(body)
        checks = context.control.rollouts.health.prober.require_usable([check_of(check) for check in body.checks])
        _require_checks_to_hold(body.hold_if_unclear, checks)
        try:
            deadline = None if body.deadline is None else float(body.deadline)  # a store encodes no Timestamp
            calendar = make_calendar(body.windows, body.blackouts, deadline)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return WantedRollout(
            rollout=replace(_with_targets(context, body, waves, calendar), checks=checks),
            notice_s=body.notice_s,
            short_notice=body.short_notice,
            file=None,
        )
    if body != NewRollout(file=body.file):
        raise Rejected("a rollout file describes all of the rollout: give no other field beside it")
    return _wanted_from_file(context, read_rollout_file(body.file))


def _require_checks_to_hold(hold_if_unclear: bool, checks: Sequence[HealthCheck]) -> None:
    if hold_if_unclear and not checks:
        raise Rejected("hold_if_unclear is for a rollout with health checks: give a check, or leave it out")


def _waves_of_body(body: NewRollout) -> tuple[WaveSpec, ...]:
    if body.waves and (body.canary or body.shares):
        raise Rejected("waves are given in full, or as a canary and shares: give one of the two")
    if body.waves:
        return _with_rest(
            make_wave(index, wave.name, wave.vms, wave.share, wave.tag) for index, wave in enumerate(body.waves)
        )
    return make_waves(body.canary, body.shares)


def _with_rest(waves: Iterator[WaveSpec]) -> tuple[WaveSpec, ...]:
    found = tuple(waves)
    return found if not found or found[-1].is_rest else (*found, REST_WAVE)


def _with_targets(
    context: RequestContext, body: NewRollout, waves: tuple[WaveSpec, ...], calendar: MaintenanceCalendar | None
) -> Rollout:
    if body.all_hosts and body.hosts:
        raise Rejected("a rollout covers all hosts or the given ones: give one of the two")
    hosts = tuple(context.control.requests.host(name).name for name in body.hosts)
    reject_duplicates(body.hosts, list(hosts))
    if body.all_hosts:
        hosts = tuple(host.name for host in context.store.hosts())
        if not hosts:
            raise Refused("a rollout needs a host, and the fleet has none", Remedy.ADD_HOSTS)
    return Rollout(
        impact=body.impact,
        hosts=hosts,
        scope_id=context.find_scope(body.scope).id if body.scope else "",
        tag=body.tag,
        location=body.location,
        everything=body.everything,
        max_failures=body.max_failures,
        calendar=calendar,
        waves=waves,
        settle_s=body.settle_s,
        hold_if_unclear=body.hold_if_unclear,
    )


def _wanted_from_file(context: RequestContext, file: RolloutFile) -> WantedRollout:
    table = file.rollout
    with file.located("waves"):
        waves = _with_rest(_wave_from_table(file, index, wave) for index, wave in enumerate(file.waves))
    calendar = _calendar_from_file(file, context.now())
    checks = _checks_from_file(context, file)
    with file.located("rollout", "impact"):
        impact = _impact(table.get("impact", RolloutImpact.UPDATE))
    with file.located("rollout", "hold_if_unclear"):
        _require_checks_to_hold(table.get("hold_if_unclear", False), checks)
    with file.located("rollout", "short_notice"):
        if table.get("short_notice") and not table.get("notice"):
            raise Rejected("a short notice needs a length: give notice, too")
    fields = {"settle_s" if key == "settle" else key: table[key] for key in _BODY_KEYS if key in table}
    with _locating_values(file, "rollout"):
        body = replace(convert_values(fields, NewRollout), impact=impact)
    key = next((key for key in ("hosts", "scope", "all_hosts") if key in table), "hosts")
    with file.located("rollout", key):
        rollout = replace(_with_targets(context, body, waves, calendar), checks=checks)
    return WantedRollout(
        rollout=rollout, notice_s=table.get("notice", 0), short_notice=table.get("short_notice", False), file=file
    )


_TARGET_KEYS = ("hosts", "all_hosts", "scope", "tag", "location", "everything")
_BODY_KEYS = (*_TARGET_KEYS, "max_failures", "settle", "hold_if_unclear")


@contextmanager
def _locating_values(file: RolloutFile, *path: str | int) -> Iterator[None]:
    """Add the line of the key to the error of a value that is beyond the limits of its field."""
    try:
        yield
    except InvalidValue as error:
        with file.located(*path, _KEYS_BY_FIELD.get(error.field, error.field)):
            raise Rejected(str(error)) from error


def _wave_from_table(file: RolloutFile, index: int, table: Mapping[str, Any]) -> WaveSpec:
    name = table.get("name") or ("canary" if index == 0 else f"wave {index + 1}")
    with _locating_values(file, "waves", index):
        wave = convert_values({**table, "name": name}, NewWave)
    return make_wave(index, wave.name, wave.vms, wave.share, wave.tag)


def _checks_from_file(context: RequestContext, file: RolloutFile) -> tuple[HealthCheck, ...]:
    prober = context.control.rollouts.health.prober
    checks: list[HealthCheck] = []
    for index, table in enumerate(file.checks):
        if "condition" in table:
            with file.located("checks", index, "condition"):
                _rejecting(parse_condition, table["condition"])
        try:
            checks.append(check_from_table(table))
            checks[:] = prober.require_usable(checks)
        except Rejected as error:
            with file.located("checks", index, _wrong_key(error, table)):
                raise
    return tuple(checks)


def _wrong_key(error: Rejected, table: Mapping[str, Any]) -> str:
    """Return the key of a table [[checks]] that an error is about, also one that is missing."""
    source = next((key for key in reversed(list(table)) if key in list(CheckKind)), "name")
    if isinstance(error, InvalidValue):
        return _KEYS_BY_FIELD.get(error.field, error.field)
    if not isinstance(error.__cause__, InvalidCheck):
        return source if table.get("name") else "name"  # an unknown figure, several sources, or an address or command
    field = error.__cause__.field
    return source if field == "url" else _KEYS_BY_FIELD.get(field, field)


_KEYS_BY_FIELD = {"exit_status": "exit", "interval_s": "interval", "timeout_s": "timeout", "settle_s": "settle"}


def _impact(text: str) -> RolloutImpact:
    try:
        return RolloutImpact(text)
    except ValueError:
        known = ", ".join(RolloutImpact)
        raise Rejected(f"the impact {text!r} is not known: give one of {known}") from None


def _calendar_from_file(file: RolloutFile, now: float) -> MaintenanceCalendar | None:
    windows, blackouts = file.windows.get("open", []), file.windows.get("blackouts", [])
    for key, texts, noun, parse in (
        ("open", windows, "maintenance windows", parse_window),
        ("blackouts", blackouts, "blackout dates", parse_blackout),
    ):
        with file.located("windows", key):
            _rejecting(check_count, texts, noun)
        for index, text in enumerate(texts):
            with file.located("windows", key, index):
                _rejecting(parse, text)
    with file.located("windows", "deadline"):
        deadline = parse_deadline(file.windows["deadline"], now) if "deadline" in file.windows else None
        calendar: MaintenanceCalendar | None = _rejecting(make_calendar, windows, blackouts, deadline)
        return calendar


def _rejecting(function: Any, *arguments: Any) -> Any:
    """Call a function, and turn its ValueError into Rejected."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise Rejected(str(error)) from error


class NewHold(StrictBody, frozen=True, kw_only=True):
    """A hold to set on all rollouts, with its reason, which everybody sees."""

    reason: Reason  # for people


class HoldView(BaseView, frozen=True, kw_only=True):
    """Whether all rollouts are on hold; if so, why, since when, and who set the hold."""

    is_held: bool  # whether they are on hold now
    reason: str = ""  # as it was given; "": not on hold
    set_by: str = ""  # the name of who set it; "": not on hold
    set_at: Timestamp | None = None  # None: not on hold


async def show_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Show whether all rollouts are on hold, and why."""
    hold = context.control.rollouts.hold
    if hold is None:
        return HoldView(is_held=False)
    return HoldView(is_held=True, reason=hold.reason, set_by=hold.set_by, set_at=timestamp(hold.set_at))


async def hold_rollouts(context: RequestContext, call: HandlerCall, body: NewHold) -> HoldView:
    """Hold all rollouts: they publish nothing, and no event of theirs starts without an approval."""
    await context.control.rollouts.holds.set_hold(body.reason, who=context.caller_name)
    return await show_hold(context, call)


async def lift_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Lift the hold on all rollouts; events whose notice has ended start."""
    await context.control.rollouts.holds.lift_hold(who=context.caller_name)
    await context.wait_for_reconciler()
    return await show_hold(context, call)


async def start_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutView:
    """Start a rollout over hosts, a scope, a tag, a location or everything, given by fields or as a file."""
    wanted = read_new_rollout(context, body)
    with wanted.located():
        request = await context.control.rollout_requests.start(
            wanted.rollout,
            who=context.caller_name,
            notice_s=wanted.notice_s,
            short_notice=wanted.short_notice,
            key=call.request_key,
        )
    return await current_rollout_view(context, request)


async def current_rollout_view(context: RequestContext, request: MaintenanceRequest) -> RolloutView:
    """Wait for the reconciler, then return the view of the rollout of this request, as it is now."""
    await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def list_rollouts(context: RequestContext, call: HandlerCall) -> RolloutsView:
    """List the open rollouts and recent ones."""
    return RolloutsView(rollouts=read_rollouts(context))


async def show_rollout(context: RequestContext, call: HandlerCall) -> RolloutWithEvents:
    """Show one rollout with its events."""
    request = context.find_rollout(call.path_params["id"])
    events = ViewBuilder(context).events(context.store.events(request_id=request.id))
    return RolloutWithEvents(events=events, **rollout_fields(context, request.id))


async def pause_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Pause a rollout: it announces no events until it is resumed."""
    return await _set_progress(context, call, RolloutState.PAUSED)


async def resume_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Resume a paused rollout."""
    return await _set_progress(context, call, RolloutState.RUNNING)


async def abort_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Abort a rollout and withdraw its events that have not started."""
    return await _set_progress(context, call, RolloutState.ABORTED)


async def preview_abort_rollout(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the abort of a rollout."""
    found = context.find_rollout(call.path_params["id"])
    request = context.control.rollout_requests.check_state_change(found.id, RolloutState.ABORTED)
    assert request.rollout is not None
    tally = context.control.rollouts.tally_of(request, request.rollout)
    counts = f"{tally.done} of {tally.total} VMs are done, {tally.started} started"
    return preview_to_confirm(
        context.now(),
        f"Rollout {request.id} ends: {counts}; its events that have not started ({tally.scheduled} VMs) are withdrawn.",
        "An aborted rollout cannot be resumed: VMs that are not done stay without the maintenance.",
    )


async def _set_progress(context: RequestContext, call: HandlerCall, progress: RolloutState) -> RolloutView:
    request = context.find_rollout(call.path_params["id"])
    await context.control.rollout_requests.change_state(request.id, progress, who=context.caller_name)
    if progress is not RolloutState.PAUSED:  # a pause needs no pass, and one may take long just then
        await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def preview_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> Preview:
    """Preview a rollout: its events in order and their times if no VM approves."""
    wanted = read_new_rollout(context, body)
    await context.dependencies.flush_observations()
    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        with wanted.located():
            return await dry_run_rollout(
                context.control,
                wanted.rollout,
                who=context.caller_name,
                notice_s=wanted.notice_s,
                short_notice=wanted.short_notice,
            )


async def try_rollout_checks(context: RequestContext, call: HandlerCall, body: NewRollout) -> TriedChecksView:
    """Perform each health check of a rollout once, and show what it finds; starts and stores nothing."""
    wanted = read_new_rollout(context, body)
    if not wanted.rollout.checks:
        raise Rejected("this rollout has no health checks: give some, such as a figure of the service")
    health = context.control.rollouts.health
    checks = wanted.rollout.checks
    found = await asyncio.gather(*(health.try_once(check, wanted.rollout) for check in checks))
    return TriedChecksView(checks=tuple(map(tried_check_view, checks, found)))


async def plan_new_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutPlan:
    """Plan a rollout: its waves, their VMs, earliest and latest times, and VMs without a polling handler."""
    wanted = read_new_rollout(context, body)
    await context.dependencies.flush_observations()

    def has_handler(vm: Vm) -> bool:
        return polling_state(context.dependencies.pace_of(vm.key)) is PollingState.ACTIVE

    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        with wanted.located():
            return await plan_rollout(
                context.control,
                wanted.rollout,
                who=context.caller_name,
                notice_s=wanted.notice_s,
                short_notice=wanted.short_notice,
                has_handler=has_handler,
            )
