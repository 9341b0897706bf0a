"""Parses the body of an update: profile, policy and tags; all other members must be unchanged. Pure.

Clients send whole resources back, so members equal to what a GET shows, or without content, are accepted.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from forewarn.core.vm_settings import (
    MAX_TERMINATE_NOTICE_MIN,
    MIN_TERMINATE_NOTICE_MIN,
    OS_IMAGE_NOTICE_MIN,
    VmSettingsChange,
)
from forewarn.protocol.versions import VERSIONS
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.request_parsing import split_validation_error

MemberPath = tuple[str, ...]  # the names from the root of a JSON body to a member
_MAX_QUOTED_LENGTH = 80
# Only the service writes these: a client that sends back an old value does not mean to change them.
_READ_ONLY_MEMBERS = frozenset({"properties.instanceView", "properties.provisioningState", "etag", "systemData"})


class _MissingMember:
    """The type of MISSING: the member was not sent, which differs from null."""


MISSING: Final = _MissingMember()
_ISO_DURATION = re.compile(
    r"P(?:(?P<d>[0-9]{1,9})D)?(?:T(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9})S)?)?"
)
_SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_MAX_TAG_NAME, _MAX_TAG_VALUE, _MAX_TAGS = 512, 256, 50  # Azure's limits


def member_at(sent: JsonObject, path: MemberPath) -> Any:
    """Return the value at this path of a JSON body, None for null; MISSING if there is no such member."""
    value: Any = sent
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def merge_patch(old: Any, sent: Any) -> Any:
    """Return `old` merged with `sent` as a JSON merge patch (RFC 7396); neither is changed."""
    if not isinstance(sent, dict):
        return sent
    base = old if isinstance(old, dict) else {}
    merged = {name: merge_patch(base.get(name), value) for name, value in sent.items() if value is not None}
    return {name: value for name, value in base.items() if name not in sent} | merged


def is_empty_value(value: Any) -> bool:
    """Return whether a JSON value is null, an empty list, or an object without any other values."""
    if isinstance(value, dict):
        return all(map(is_empty_value, value.values()))
    return value is None or value == []


def require_unchanged(
    sent: JsonObject, shown: JsonObject, changeable: frozenset[MemberPath], above: MemberPath = ()
) -> None:
    """Raise ArmError if `sent` differs from `shown`, what a GET shows, except at the changeable paths.

    Members that are left out or null, read-only ones, and empty ones that a GET does not show are accepted.
    """
    for name, value in sent.items():
        path = (*above, name)
        if path in changeable or value is None or ".".join(path) in _READ_ONLY_MEMBERS:
            continue
        if name not in shown and is_empty_value(value):
            continue
        if name not in shown:
            raise _invalid_member(path, "cannot be set here: leave it out")
        old = shown[name]
        if isinstance(old, dict):
            require_unchanged(_require_object(value, path), old, changeable, path)
        elif not _equivalent(value, old, name):
            raise _change_not_allowed(path, value, old)


def _require_object(value: Any, path: MemberPath) -> JsonObject:
    """Returns the value, if it is a JSON object. Raises ArmError 400, naming `path`, if it is not."""
    if isinstance(value, dict):
        return value
    raise _invalid_member(path, f"is {_json_text(value)}: send an object")


def _invalid_member(path: MemberPath, what: str) -> ArmError:
    """Returns an ArmError 400 to raise about a member; `what` continues the sentence after its path."""
    where = _path_text(path)
    return ArmError(400, "InvalidParameter", f"{where} {what}", target=where)


def _path_text(path: MemberPath) -> str:
    """The names of the path joined with dots, for a message; cut after 80 characters."""
    return _truncate_text(".".join(path))


def _json_text(value: Any) -> str:
    """The value as JSON, for a message; cut after 80 characters."""
    return _truncate_text(msgspec.json.encode(value).decode())


def _equivalent(sent: Any, shown: Any, name: str) -> bool:
    """Return whether Azure treats both values as equal: texts ignoring case, locations also spaces."""
    if isinstance(sent, list) and isinstance(shown, list):
        return len(sent) == len(shown) and all(_equivalent(*pair, name) for pair in zip(sent, shown, strict=True))
    if isinstance(sent, dict) and isinstance(shown, dict):
        return all(
            key in shown and _equivalent(value, shown[key], key) for key, value in sent.items() if value is not None
        )
    if isinstance(sent, str) and isinstance(shown, str):
        return _normalize_text(sent, name) == _normalize_text(shown, name)
    return isinstance(sent, bool) == isinstance(shown, bool) and bool(sent == shown)


def _normalize_text(text: str, name: str) -> str:
    return (text.replace(" ", "") if name == "location" else text).casefold()


def _change_not_allowed(path: MemberPath, sent: Any, shown: Any) -> ArmError:
    where = _path_text(path)
    message = f"{where} is {_json_text(shown)} and cannot become {_json_text(sent)}: {_remedy_text(path, sent, shown)}"
    return ArmError(409, "PropertyChangeNotAllowed", message, target=where)


def _remedy_text(path: MemberPath, sent: Any, shown: Any) -> str:
    if path != ("sku", "capacity") or not isinstance(sent, int | float):
        return "leave it as it is, or change it in the fleet file (`forewarn fleet apply`)"
    if sent > shown:
        return "add instances to the fleet file, or with `forewarn fleet add`"
    return "delete instances (`az vmss delete-instances`, `forewarn delete --scale-in`)"


def _truncate_text(text: str) -> str:
    """The text; if it is longer than 80 characters, its first 80 and an ellipsis."""
    return text if len(text) <= _MAX_QUOTED_LENGTH else f"{text[:_MAX_QUOTED_LENGTH]}…"


class _SettingsPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class _NotificationProfile(_SettingsPart, frozen=True, kw_only=True):
    enable: bool | None = None
    not_before_timeout: str | None = None


class _ScheduledEventsProfile(_SettingsPart, frozen=True, kw_only=True):
    terminate_notification_profile: _NotificationProfile = _NotificationProfile()
    os_image_notification_profile: _NotificationProfile = _NotificationProfile()


class _AutomaticApproval(_SettingsPart, frozen=True, kw_only=True):
    automatically_approve: bool = False


class _AllInstancesDown(_SettingsPart, frozen=True, kw_only=True):
    automatically_approve: bool = True  # Azure's default


class _PublishingTarget(_SettingsPart, frozen=True, kw_only=True):
    enable: bool = False
    scheduled_events_api_version: str = ""  # "": the newest


class _PublishingTargets(_SettingsPart, frozen=True, kw_only=True):
    event_grid_and_resource_graph: _PublishingTarget = _PublishingTarget()


class _ScheduledEventsPolicy(_SettingsPart, frozen=True, kw_only=True):
    user_initiated_reboot: _AutomaticApproval = _AutomaticApproval()
    user_initiated_redeploy: _AutomaticApproval = _AutomaticApproval()
    all_instances_down: _AllInstancesDown = _AllInstancesDown()
    scheduled_events_additional_publishing_targets: _PublishingTargets = _PublishingTargets()


T = TypeVar("T", bound=_SettingsPart)


def read_profile(value: Any, path: MemberPath) -> VmSettingsChange:
    """Return the change of a VM's two notices that the value of a `scheduledEventsProfile` asks for.

    A notice is on if `enable` is true or, without `enable`, if it has a timeout. PT5M to PT15M, in whole minutes, are
    allowed for terminate, and PT15M for the OS image.
    """
    profile = _convert(value, _ScheduledEventsProfile, path)
    terminate = (*path, "terminateNotificationProfile", "notBeforeTimeout")
    os_image = (*path, "osImageNotificationProfile", "notBeforeTimeout")
    return VmSettingsChange(
        terminate_notice_min=_notice_minutes(
            profile.terminate_notification_profile, terminate, MIN_TERMINATE_NOTICE_MIN, MAX_TERMINATE_NOTICE_MIN
        ),
        os_image_notice_min=_notice_minutes(
            profile.os_image_notification_profile, os_image, OS_IMAGE_NOTICE_MIN, OS_IMAGE_NOTICE_MIN
        ),
    )


def read_policy(value: Any, path: MemberPath) -> VmSettingsChange:
    """Return the change of a VM's policy that the value of a `scheduledEventsPolicy` asks for.

    A member that is left out is off, except that `allInstancesDown` is on, and the api-version is the newest.
    """
    policy = _convert(value, _ScheduledEventsPolicy, path)
    targets = policy.scheduled_events_additional_publishing_targets
    version = targets.event_grid_and_resource_graph.scheduled_events_api_version
    if version and version not in VERSIONS:
        member = (
            "scheduledEventsAdditionalPublishingTargets",
            "eventGridAndResourceGraph",
            "scheduledEventsApiVersion",
        )
        raise _invalid_member((*path, *member), f"is {_json_text(version)}: give one of {', '.join(VERSIONS)}")
    return VmSettingsChange(
        approve_restart=policy.user_initiated_reboot.automatically_approve,
        approve_redeploy=policy.user_initiated_redeploy.automatically_approve,
        approve_all_down=policy.all_instances_down.automatically_approve,
        publish_outside=targets.event_grid_and_resource_graph.enable,
        publish_version=version,
    )


def read_tags(value: Any, path: MemberPath) -> dict[str, str]:
    """Return the tags of a body, value by name; {} for null."""
    try:
        tags = msgspec.convert(_drop_empty(value), dict[str, str])
    except msgspec.ValidationError as error:
        raise _invalid_value(error, path) from error
    if len(tags) > _MAX_TAGS:
        raise _invalid_member(path, f"has {len(tags)} tags: give {_MAX_TAGS} or fewer")
    for name, text in tags.items():
        if not name.strip() or len(name) > _MAX_TAG_NAME or len(text) > _MAX_TAG_VALUE:
            limits = f"a name of 1 to {_MAX_TAG_NAME} characters and a value of up to {_MAX_TAG_VALUE}"
            raise _invalid_member((*path, name), f"is not a valid tag: give {limits}")
    if len({name.casefold() for name in tags}) < len(tags):
        raise _invalid_member(path, "has two names that differ only in case: tag names ignore case, give one of them")
    return tags


def _notice_minutes(notice: _NotificationProfile, path: MemberPath, shortest: int, longest: int) -> int:
    """The notice in minutes, 0 if it is off. A timeout without `enable` is on, since `az` sends that."""
    timeout = notice.not_before_timeout
    minutes = shortest if timeout is None else _whole_minutes(timeout)
    if minutes is None or not shortest <= minutes <= longest:
        allowed = f"PT{shortest}M" if shortest == longest else f"PT{shortest}M to PT{longest}M, in whole minutes"
        raise _invalid_member(path, f"is {_json_text(timeout)}: give {allowed}")
    enable = timeout is not None if notice.enable is None else notice.enable
    return minutes if enable else 0


def _whole_minutes(text: str) -> int | None:
    """The minutes of an ISO 8601 duration such as `PT5M` or `PT300S`; None if it is not in whole minutes."""
    match = _ISO_DURATION.fullmatch(text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    seconds = sum(_SECONDS_PER_UNIT[unit] * number for unit, number in parts.items())
    return seconds // 60 if parts and seconds % 60 == 0 else None


def _convert(value: Any, part_type: type[T], path: MemberPath) -> T:
    try:
        return msgspec.convert(_drop_empty(value), part_type)
    except msgspec.ValidationError as error:
        raise _invalid_value(error, path) from error


def _invalid_value(error: msgspec.ValidationError, path: MemberPath) -> Exception:
    where, what = split_validation_error(error)
    return _invalid_member((*path, where) if where else path, f"is not valid: {_truncate_text(what)}")


def _drop_empty(value: Any) -> Any:
    """The value without empty members."""
    if not isinstance(value, dict):
        return {} if value is None else value
    return {name: _drop_empty(text) for name, text in value.items() if not is_empty_value(text) or text == []}
