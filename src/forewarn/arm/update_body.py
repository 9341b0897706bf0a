"""What Azure calls the scheduled events profile and policy, read as settings of VMs. Pure; `shape` writes them."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from forewarn.console.arm.member import Path, invalid, says_nothing, short, text_of
from forewarn.console.call import fault_in
from forewarn.core.amendment import LONGEST_TERMINATE_MIN, OS_IMAGE_MIN, SHORTEST_TERMINATE_MIN, Amendment

_DURATION = re.compile(
    r"P(?:(?P<d>[0-9]{1,9})D)?(?:T(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9})S)?)?"
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LONGEST_NAME, _LONGEST_TEXT, _MOST_TAGS = 512, 256, 50  # of tags, as in Azure


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Notice(_Part, frozen=True, kw_only=True):
    enable: bool | None = None
    not_before_timeout: str | None = None


class _Profile(_Part, frozen=True, kw_only=True):
    terminate_notification_profile: _Notice = _Notice()
    os_image_notification_profile: _Notice = _Notice()


class _Approval(_Part, frozen=True, kw_only=True):
    automatically_approve: bool = False


class _Target(_Part, frozen=True, kw_only=True):
    enable: bool = False
    scheduled_events_api_version: str = ""  # webhooks are told everything, whatever the version


class _Targets(_Part, frozen=True, kw_only=True):
    event_grid_and_resource_graph: _Target = _Target()


class _Policy(_Part, frozen=True, kw_only=True):
    user_initiated_reboot: _Approval = _Approval()
    user_initiated_redeploy: _Approval = _Approval()
    all_instances_down: _Approval = _Approval()  # taken and without effect: a VM that is down is not waited for
    scheduled_events_additional_publishing_targets: _Targets = _Targets()


T = TypeVar("T", bound=_Part)


def read_profile(said: Any, path: Path) -> Amendment:
    """Which notices there shall be; what is left out is none."""
    profile = _read(said, _Profile, path)
    terminate = (*path, "terminateNotificationProfile", "notBeforeTimeout")
    os_image = (*path, "osImageNotificationProfile", "notBeforeTimeout")
    return Amendment(
        terminate_notice_min=_minutes(
            profile.terminate_notification_profile, terminate, SHORTEST_TERMINATE_MIN, LONGEST_TERMINATE_MIN
        ),
        os_image_notice_min=_minutes(profile.os_image_notification_profile, os_image, OS_IMAGE_MIN, OS_IMAGE_MIN),
    )


def read_policy(said: Any, path: Path) -> Amendment:
    """What needs nobody's approval, and whether events are told outside; what is left out is not so."""
    policy = _read(said, _Policy, path)
    targets = policy.scheduled_events_additional_publishing_targets
    return Amendment(
        approve_restart=policy.user_initiated_reboot.automatically_approve,
        approve_redeploy=policy.user_initiated_redeploy.automatically_approve,
        publish_outside=targets.event_grid_and_resource_graph.enable,
    )


def read_tags(said: Any, path: Path) -> dict[str, str]:
    try:
        tags = msgspec.convert(_spoken(said), dict[str, str])
    except msgspec.ValidationError as error:
        raise _wrong(error, path) from error
    if len(tags) > _MOST_TAGS:
        raise invalid(path, f"has {len(tags)} members: give {_MOST_TAGS} or fewer")
    for name, text in tags.items():
        if not name.strip() or len(name) > _LONGEST_NAME or len(text) > _LONGEST_TEXT:
            limits = f"a name of 1 to {_LONGEST_NAME} characters and a text of up to {_LONGEST_TEXT}"
            raise invalid((*path, name), f"cannot be a tag: give {limits}")
    if len({name.casefold() for name in tags}) < len(tags):
        raise invalid(path, "has a name twice, in other letters: tags are told apart without case")
    return tags


def _minutes(notice: _Notice, path: Path, shortest: int, longest: int) -> int:
    """0: none. Whoever gives a time and does not say whether to enable it wants it: `az` sends that."""
    timeout = notice.not_before_timeout
    minutes = shortest if timeout is None else _whole_minutes(timeout)
    if minutes is None or not shortest <= minutes <= longest:
        allowed = f"PT{shortest}M" if shortest == longest else f"PT{shortest}M to PT{longest}M, in whole minutes"
        raise invalid(path, f"is {text_of(timeout)}: give {allowed}")
    enable = timeout is not None if notice.enable is None else notice.enable
    return minutes if enable else 0


def _whole_minutes(text: str) -> int | None:
    """`PT5M`, or the same as `PT300S`; None if it is no duration, or not one of whole minutes."""
    match = _DURATION.fullmatch(text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    seconds = sum(_SECONDS[unit] * number for unit, number in parts.items())
    return seconds // 60 if parts and seconds % 60 == 0 else None


def _read(said: Any, shape: type[T], path: Path) -> T:
    try:
        return msgspec.convert(_spoken(said), shape)
    except msgspec.ValidationError as error:
        raise _wrong(error, path) from error


def _wrong(error: msgspec.ValidationError, path: Path) -> Exception:
    where, what = fault_in(error)
    return invalid((*path, where) if where else path, f"cannot be taken: {short(what)}")


def _spoken(value: Any) -> Any:
    """Without members that say nothing."""
    if not isinstance(value, dict):
        return {} if value is None else value
    return {name: _spoken(text) for name, text in value.items() if not says_nothing(text) or text == []}
