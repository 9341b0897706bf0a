"""Enabling and disabling a scope (spec §8.1 to §8.3, §4.2)."""

from __future__ import annotations

import pytest

from forewarn.core import lifecycle
from forewarn.core.cause import Cause
from forewarn.core.decision import DecisionContext, EnablementMode, Policy
from forewarn.core.event import Event
from forewarn.core.projection import document_for
from forewarn.core.reconcile import reconcile_scope
from forewarn.core.scope import Scope, disable_scope_if_idle, enable_scope, scope_idle_at
from tests.support.world import a_vm

NOW = 1_000_000.0
DAY = 24 * 3600.0
ON_REQUEST, ALWAYS = Policy(), Policy(enablement=EnablementMode.ALWAYS)


def scope(**facts: object) -> Scope:
    given: dict[str, object] = {"id": "vm:sub/lab/web-0", "vms": (a_vm("web-0"),)}
    return Scope(**{**given, **facts})  # type: ignore[arg-type]


def platform_event(number: int = 1) -> Event:
    return Event(
        id=f"E{number}", scope_id="vm:sub/lab/web-0", request_id="r", cause=Cause.HOST_UPDATE, requested_by="ops",
        vms=("web-0",), published_at=NOW, not_before=NOW + 7 * DAY,
    )  # fmt: skip


def test_a_newly_enabled_scope_shows_an_empty_document_at_incarnation_1() -> None:
    """Spec §4.2."""
    enabled = enable_scope(scope(), by="web-0", now=NOW)
    assert (enabled.epoch, enabled.incarnation, enabled.enabled_at) == (1, 1, NOW)
    assert document_for(enabled).notices == ()
    assert [entry.text for entry in enabled.new_entries] == ["scheduled events enabled by web-0"]


def test_enabling_an_enabled_scope_changes_nothing() -> None:
    enabled = enable_scope(scope(), by="web-0", now=NOW)
    assert enable_scope(enabled, by="web-1", now=NOW + 5) is enabled


def test_pending_events_are_listed_at_incarnation_1_of_an_enabled_scope() -> None:
    """Spec §8.1, §4.2: platform maintenance of a disabled scope becomes visible when it is enabled."""
    pending = lifecycle.announce(lifecycle.announce(scope(), platform_event(1)), platform_event(2))
    document = document_for(enable_scope(pending, by="web-0", now=NOW))
    assert document.incarnation == 1
    assert [notice.id for notice in document.notices] == ["E1", "E2"]


def test_enabling_a_scope_again_starts_a_new_epoch_at_incarnation_1() -> None:
    """Spec §4.2, §4.3: the epoch distinguishes documents before and after."""
    first = lifecycle.announce(enable_scope(scope(), by="web-0", now=NOW), platform_event())
    idle = disable_scope_if_idle(first, ON_REQUEST, NOW + DAY)
    again = enable_scope(idle, by="web-0", now=NOW + DAY + 1)
    assert (first.incarnation, idle.is_enabled) == (2, False)
    assert (again.epoch, again.incarnation) == (2, 1)
    assert [notice.id for notice in document_for(again).notices] == ["E1"]


@pytest.mark.parametrize(
    ("last_request_at", "disabled_at"),
    [
        pytest.param(None, NOW + DAY, id="no further poll"),
        pytest.param(NOW + 3600, NOW + 3600 + DAY, id="a poll an hour later"),
        pytest.param(NOW - 3600, NOW + DAY, id="an old request does not shorten the day"),
    ],
)
def test_a_scope_is_disabled_after_exactly_24_hours_without_polls(
    last_request_at: float | None, disabled_at: float
) -> None:
    """Spec §8.2."""
    enabled = scope(enabled_at=NOW, last_request_at=last_request_at, epoch=1, incarnation=1)
    assert scope_idle_at(enabled, ON_REQUEST) == disabled_at
    assert disable_scope_if_idle(enabled, ON_REQUEST, disabled_at - 1) is enabled
    disabled = disable_scope_if_idle(enabled, ON_REQUEST, disabled_at)
    assert not disabled.is_enabled
    assert [entry.text for entry in disabled.new_entries] == [
        "scheduled events of web-0 disabled: no VM of the scope has polled for 24 h"
    ]


def test_the_history_names_the_scope_that_is_disabled_in_words() -> None:
    vms = (a_vm("web-0", availability_set="web"), a_vm("web-1", availability_set="web"))
    disabled = disable_scope_if_idle(scope(id="set:sub/lab/web", vms=vms, enabled_at=NOW), ON_REQUEST, NOW + DAY)
    assert disabled.new_entries[0].text.startswith("scheduled events of web disabled: ")


def test_reconciling_disables_an_idle_scope() -> None:
    enabled = enable_scope(scope(), by="web-0", now=NOW)
    assert not reconcile_scope(enabled, DecisionContext(now=NOW + DAY)).is_enabled


def test_always_enabled_scopes_are_never_idle() -> None:
    """Spec §8.3: the lab."""
    enabled = enable_scope(scope(), by="the service", now=NOW)
    assert scope_idle_at(enabled, ALWAYS) is None
    assert disable_scope_if_idle(enabled, ALWAYS, NOW + 1000 * DAY) is enabled


def test_a_disabled_scope_has_no_idle_time() -> None:
    assert scope_idle_at(scope(), ON_REQUEST) is None
    untouched = scope()
    assert disable_scope_if_idle(untouched, ON_REQUEST, NOW + DAY) is untouched


def test_disabling_a_scope_keeps_its_pending_events() -> None:
    """Spec §8.2: platform maintenance still starts at its time, although no VM sees it."""
    pending = lifecycle.announce(enable_scope(scope(), by="web-0", now=NOW), platform_event())
    assert [event.id for event in disable_scope_if_idle(pending, ON_REQUEST, NOW + DAY).live_events()] == ["E1"]
