"""Enabling and disabling a scope (spec §8): it gets documents once somebody asks, until a day of silence."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.core.history import Entry, What
from forewarn.core.policy import Enablement, Policy
from forewarn.core.scope import Scope


def enable(scope: Scope, *, by: str, now: float) -> Scope:
    """The scope with a new epoch at incarnation 1; what is pending is listed from the start (spec §4.2)."""
    if scope.is_enabled:
        return scope
    enabled = replace(
        scope,
        epoch=scope.epoch + 1,
        incarnation=1,
        enabled_at=now,
        last_request_at=max(now, scope.last_request_at or 0),
    )
    return enabled.saying(Entry(at=now, what=What.ENABLED, who=by, text=f"scheduled events enabled by {by}"))


def idle_at(scope: Scope, policy: Policy) -> float | None:
    """When this scope will have been silent for too long; None: never."""
    if policy.enablement is Enablement.ALWAYS or scope.enabled_at is None:
        return None
    return max(scope.enabled_at, scope.last_request_at or 0) + policy.idle_s


def disable_if_idle(scope: Scope, policy: Policy, now: float) -> Scope:
    at = idle_at(scope, policy)
    if at is None or now < at:
        return scope
    text = f"scheduled events disabled: no VM of the scope asked for {policy.idle_s / 3600:g} h"
    return replace(scope, enabled_at=None).saying(Entry(at=now, what=What.DISABLED, who="forewarn", text=text))
