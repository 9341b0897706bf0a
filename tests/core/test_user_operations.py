"""Several user operations: which replaces which, which is refused, and the limit (spec §8.4)."""

from __future__ import annotations

from itertools import count, product

import pytest
from msgspec.structs import replace

from forewarn.core.cause import Cause
from forewarn.core.decision import DecisionContext, Policy
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import AutoApproval, PowerState, Priority, Vm
from forewarn.core.planning import apply_planned_event
from forewarn.core.reconcile import reconcile_scope
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope, enable_scope
from forewarn.errors import Refused
from tests.support.destinations import AnyVmTo
from tests.support.world import a_vm

NOW = 1_000_000.0
CONTEXT = DecisionContext(now=NOW, destinations=AnyVmTo("h2"))
SCHEDULED, STARTED = EventState.SCHEDULED, EventState.STARTED
_NUMBERS = count(1)

WITH_EVENT = [Cause.USER_RESTART, Cause.USER_REDEPLOY, Cause.USER_DELETE, Cause.SCALE_IN]
AT_ONCE = [Cause.POWER_OFF, Cause.START, Cause.DEALLOCATE, Cause.REAPPLY, Cause.REIMAGE]
OPERATIONS = [*WITH_EVENT, *AT_ONCE]
# Spec §8.4: "redeploy replaces a pending restart and delete replaces both"; a scale-in deletes as well.
REPLACED = {
    (Cause.USER_RESTART, Cause.USER_REDEPLOY),
    (Cause.USER_RESTART, Cause.USER_DELETE),
    (Cause.USER_REDEPLOY, Cause.USER_DELETE),
    (Cause.USER_RESTART, Cause.SCALE_IN),
    (Cause.USER_REDEPLOY, Cause.SCALE_IN),
}
MATRIX = [
    *product(WITH_EVENT, OPERATIONS, [SCHEDULED, STARTED]),
    *product(AT_ONCE, OPERATIONS, [STARTED]),
]


def vm(name: str = "web-0", **facts: object) -> Vm:
    return a_vm(name, **{"availability_set": "web", "terminate_notice_min": 5, **facts})


def scope_of(*vms: Vm) -> Scope:
    return enable_scope(Scope(id=vms[0].scope_id, vms=vms), by="web-0", now=NOW)


def with_operation(scope: Scope, cause: Cause, name: str = "web-0", context: DecisionContext = CONTEXT) -> Scope:
    plan = PlannedEvent(
        event_id=f"E{next(_NUMBERS)}", request_id="r", scope_id=scope.id, cause=cause, requested_by="ann", vms=(name,),
        notice_s=900,
    )  # fmt: skip
    return apply_planned_event(scope, plan, context)


def with_suitable_vm(scope: Scope, cause: Cause) -> Scope:
    """The scope with its VM in a state that allows the cause."""
    power = PowerState.STOPPED if cause is Cause.START else PowerState.RUNNING
    return scope.with_vm(replace(scope.vms[0], power=power))


def pending(cause: Cause, status: EventState) -> Scope:
    scope = with_operation(with_suitable_vm(scope_of(vm()), cause), cause)
    return (
        reconcile_scope(scope, DecisionContext(now=NOW + 900, destinations=CONTEXT.destinations))
        if status is STARTED
        else scope
    )


def limited_to(limit: int) -> DecisionContext:
    return DecisionContext(now=NOW, destinations=CONTEXT.destinations, policy=Policy(max_user_operations=limit))


def live(scope: Scope) -> list[Event]:
    return list(scope.live_events())


@pytest.mark.parametrize(("old", "new", "status"), [pytest.param(*m, id="-".join(m)) for m in MATRIX])
def test_a_second_user_operation_is_refused_or_replaces_the_first(old: Cause, new: Cause, status: EventState) -> None:
    """Spec §8.4, the whole matrix."""
    before = with_suitable_vm(pending(old, status), new)
    (first,) = live(before)
    assert first.status is status
    if status is SCHEDULED and (old, new) in REPLACED:
        replaced = with_operation(before, new)
        withdrawn = replaced.event(first.id)
        assert withdrawn is not None
        assert (withdrawn.ending, withdrawn.reason) == (Ending.WITHDRAWN, f"replaced by {new}")
        assert [event.cause for event in live(replaced)] == [new]
        return
    with pytest.raises(Refused) as refusal:
        with_operation(before, new)
    state = {
        SCHEDULED: f"is pending: approve or withdraw event {first.id} first",
        STARTED: "has started: wait until it is done",
    }
    assert str(refusal.value) == f"the {old} of VM 'web-0' {state[status]}"


def test_a_replacement_adds_two_to_the_incarnation() -> None:
    """Spec §4.2: one event removed, one added."""
    before = pending(Cause.USER_RESTART, SCHEDULED)
    assert with_operation(before, Cause.USER_REDEPLOY).incarnation == before.incarnation + 2


@pytest.mark.parametrize("cause", WITH_EVENT)
def test_user_operations_on_different_vms_of_a_scope_are_independent(cause: Cause) -> None:
    scope = with_operation(scope_of(vm(), vm("web-1")), cause)
    assert len(live(with_operation(scope, cause, "web-1"))) == 2


@pytest.mark.parametrize("cause", [Cause.HOST_UPDATE, Cause.PREDICTED_FAILURE, Cause.HOST_FAILED])
@pytest.mark.parametrize("operation", WITH_EVENT)
def test_a_vm_may_have_platform_maintenance_and_a_user_operation_at_once(cause: Cause, operation: Cause) -> None:
    """Spec §11: several events at once."""
    assert len(live(with_operation(with_operation(scope_of(vm()), operation), cause))) == 2
    assert len(live(with_operation(with_operation(scope_of(vm()), cause), operation))) == 2


def test_a_vm_has_at_most_one_eviction() -> None:
    scope = with_operation(scope_of(vm(priority=Priority.SPOT)), Cause.EVICTION)
    with pytest.raises(Refused, match=r"^the eviction of VM 'web-0' is pending"):
        with_operation(scope, Cause.EVICTION)


def test_a_scope_may_have_exactly_the_limit_of_scheduled_user_operations() -> None:
    """Spec §8.4: 100 per scope unless set otherwise."""
    scope = scope_of(*(vm(f"web-{n}") for n in range(101)))
    for n in range(100):
        scope = with_operation(scope, Cause.USER_RESTART, f"web-{n}")
    with pytest.raises(Refused) as refusal:
        with_operation(scope, Cause.USER_RESTART, "web-100")
    assert str(refusal.value) == (
        "availability set web may have at most 100 user operations scheduled at the same time, "
        "and this would be one more: approve some, wait until they are done, or request fewer"
    )


def test_restarts_and_redeploys_count_towards_the_same_limit() -> None:
    scope = with_operation(scope_of(vm(), vm("web-1")), Cause.USER_RESTART)
    with pytest.raises(Refused):
        with_operation(scope, Cause.USER_REDEPLOY, "web-1", limited_to(1))


@pytest.mark.parametrize("cause", [Cause.USER_DELETE, Cause.SCALE_IN, Cause.POWER_OFF, Cause.HOST_UPDATE])
def test_terminates_immediate_operations_and_platform_events_do_not_count_towards_the_limit(cause: Cause) -> None:
    """Spec §8.4."""
    full = with_operation(scope_of(vm(), vm("web-1")), Cause.USER_RESTART, context=limited_to(1))
    assert len(live(with_operation(full, cause, "web-1", limited_to(1)))) == 2
    other_first = with_operation(scope_of(vm(), vm("web-1")), cause, context=limited_to(1))
    assert len(live(with_operation(other_first, Cause.USER_RESTART, "web-1", limited_to(1)))) == 2


def test_a_replacement_fits_into_a_full_limit() -> None:
    full = with_operation(scope_of(vm()), Cause.USER_RESTART, context=limited_to(1))
    assert [e.cause for e in live(with_operation(full, Cause.USER_REDEPLOY, context=limited_to(1)))] == [
        Cause.USER_REDEPLOY
    ]


def test_operations_that_a_policy_approved_do_not_count_towards_the_limit() -> None:
    """Spec §9, §8.4."""
    eager = vm("web-1", auto_approve=AutoApproval(restart=True))
    full = with_operation(scope_of(vm(), eager), Cause.USER_RESTART, context=limited_to(1))
    assert len(live(with_operation(full, Cause.USER_RESTART, "web-1", limited_to(1)))) == 2


def test_a_started_operation_no_longer_counts_towards_the_limit() -> None:
    started = reconcile_scope(
        with_operation(scope_of(vm(), vm("web-1")), Cause.USER_RESTART), DecisionContext(now=NOW + 900)
    )
    assert len(live(with_operation(started, Cause.USER_RESTART, "web-1", limited_to(1)))) == 2
