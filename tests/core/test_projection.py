"""What VMs are shown: the document (spec §4, §7.2) and what each may know of itself (spec §2.6)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import EvictionPolicy, Priority
from forewarn.core.projection import document_for, instance_facts
from forewarn.core.scope import Scope
from forewarn.protocol import document as wire
from tests.support.world import a_vm

NOW = 1_000_000.0


def event(name: str = "E1", cause: Cause = Cause.HOST_UPDATE, **facts: object) -> Event:
    given: dict[str, object] = {
        "id": name,
        "scope_id": "set:sub/lab/web",
        "request_id": "r",
        "cause": cause,
        "requested_by": "ops",
        "vms": ("Web-0", "Web-1"),
        "published_at": NOW,
        "not_before": NOW + 900,
    }
    return Event(**{**given, **facts})  # type: ignore[arg-type]


def scope_of(*events: Event, scope_id: str = "set:sub/lab/web") -> Scope:
    scope = Scope(id=scope_id, incarnation=1)
    for each in events:
        scope = lifecycle.announce(scope, each)
    return scope


def test_a_scheduled_event_is_shown_with_everything_the_wire_has() -> None:
    """Spec §4.2: names keep their case."""
    document = document_for(scope_of(event()))
    assert document == wire.Document(
        incarnation=2,
        notices=(
            wire.EventNotice(
                id="E1",
                status=wire.NoticeStatus.SCHEDULED,
                kind=wire.Kind.FREEZE,
                resources=("Web-0", "Web-1"),
                not_before=NOW + 900,
                description="Host server is undergoing maintenance.",
                source=wire.EventSource.PLATFORM,
                duration_s=9,
            ),
        ),
    )


def test_a_started_event_shows_no_not_before() -> None:
    """Spec §4.2."""
    scope = scope_of(event())
    (notice,) = document_for(lifecycle.start(scope, scope.events[0], (), NOW)).notices
    assert (notice.status, notice.not_before) == (wire.NoticeStatus.STARTED, None)


def test_an_approval_does_not_change_the_document() -> None:
    """Spec §4.2: same number, same content."""
    scope = scope_of(event())
    approved = lifecycle.approve(scope, scope.events[0], by="Web-1", now=NOW)
    assert document_for(approved) == document_for(scope)


def test_a_finished_or_withdrawn_event_is_no_longer_listed() -> None:
    """Spec §6.1: removal is the only signal of completion."""
    scope = scope_of(event("E1"), event("E2"))
    scope = lifecycle.withdraw(scope, scope.events[0], by="ops", reason="no", now=NOW)
    assert [notice.id for notice in document_for(scope).notices] == ["E2"]


def test_events_are_listed_in_the_order_they_were_published() -> None:
    """Spec §4.1, whatever order a store gives them in."""
    scope = scope_of(event("E3"), event("E1"), event("E2"))
    shuffled = replace(scope, events=tuple(sorted(scope.events, key=lambda e: e.id)))
    assert [notice.id for notice in document_for(shuffled).notices] == ["E3", "E1", "E2"]


@pytest.mark.parametrize("status", list(EventState))
def test_an_operation_performed_at_once_is_never_listed(status: EventState) -> None:
    """Spec §8.2."""
    unlisted = event("E1", Cause.USER_RESTART, listed=False, status=status)
    assert document_for(Scope(id="vm:sub/lab/x", events=(unlisted,))).notices == ()


@pytest.mark.parametrize(
    ("scope_id", "roles"), [("service:sub/lab/shop", True), ("set:sub/lab/web", False), ("vm:sub/lab/x", False)]
)
def test_only_a_cloud_service_has_roles(scope_id: str, roles: bool) -> None:
    """Spec §3: role names never carried the underscore of 2017."""
    assert document_for(scope_of(scope_id=scope_id)).roles is roles


def test_instance_metadata_describes_the_vm() -> None:
    """Spec §2.6."""
    facts = instance_facts(
        a_vm(
            "Web-0",
            vm_id="0a1b2c3d-0000-4000-8000-000000000001",
            zone="2",
            update_domain=3,
            fault_domain=1,
            tags={"env": "lab", "team": "shop"},
            address="10.0.0.4",
        )
    )
    assert (facts.name, facts.computer_name, facts.zone) == ("Web-0", "Web-0", "2")
    assert (facts.update_domain, facts.fault_domain) == ("3", "1")
    assert facts.tags == (("env", "lab"), ("team", "shop"))
    assert (facts.address, facts.mac) == ("10.0.0.4", "00-0D-3A-0a-1b-2c")


def test_instance_metadata_of_a_scale_set_instance_has_its_hostname() -> None:
    """Spec §4.2: `set_7` is called `set000007` inside."""
    facts = instance_facts(a_vm("set_7", scale_set="set", computer_name="set000007"))
    assert (facts.name, facts.computer_name) == ("set_7", "set000007")


@pytest.mark.parametrize(
    ("priority", "shown"),
    [(Priority.SPOT, ("Spot", "Delete")), (Priority.REGULAR, ("", ""))],
)
def test_only_spot_vms_show_priority_and_eviction_policy(priority: Priority, shown: tuple[str, str]) -> None:
    facts = instance_facts(a_vm("x", priority=priority, eviction_policy=EvictionPolicy.DELETE))
    assert (facts.priority, facts.eviction_policy) == shown


@pytest.mark.parametrize(
    ("facts", "tail"),
    [
        ({}, "virtualMachines/web_7"),
        ({"scale_set": "web"}, "virtualMachineScaleSets/web/virtualMachines/7"),
    ],
)
def test_the_resource_id_of_a_vm_is_that_of_azure(facts: dict[str, str], tail: str) -> None:
    head = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/"
    assert instance_facts(a_vm("web_7", **facts)).resource_id == head + tail
