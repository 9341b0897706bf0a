"""Request bodies of rollouts: by fields or as a rollout file, and the rollout that they describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from forewarn.base.times import Timestamp
from forewarn.core.access import Right
from forewarn.core.health import MAX_CHECKS, CheckKind, HealthCheck, InvalidCheck, parse_condition
from forewarn.core.limits import CalendarTexts, Count, DurationSeconds, Name, NonEmptyText, Number, WholeNumber
from forewarn.core.request import Rollout, RolloutImpact, WaveSpec
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.core.rollout_file import RolloutFile, parse_deadline, read_rollout_file
from forewarn.core.waves import REST_WAVE, make_wave, make_waves
from forewarn.core.windows import MaintenanceCalendar, check_count, make_calendar, parse_blackout, parse_window
from forewarn.errors import Forbidden, Refused, Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import InvalidValue, StrictBody, convert_values, reject_duplicates
from forewarn.web.rollout_checks import NewCheck, check_from_table, check_of

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
