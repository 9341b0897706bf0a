"""Events that a request leads to: the table of spec §6.4, notices of §6.3, and the states of VMs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forewarn.core.acts import vm_after_act
from forewarn.core.cause import CAUSE_RULES, Cause, Verb
from forewarn.core.decision import DecisionContext, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import AutoApproval, EvictionPolicy, PowerState, Priority, Vm
from forewarn.core.planning import OPERATION_CAUSES, apply_planned_event, pending_platform_events, plan_events_for_vms
from forewarn.core.projection import document_for
from forewarn.core.reconcile import reconcile_scope
from forewarn.core.request import IMPACT_CAUSES, MaintenanceRequest, PlannedEvent, RequestedOperation, RolloutImpact
from forewarn.core.scope import Scope, enable_scope
from forewarn.errors import Refused, Rejected, Remedy
from forewarn.protocol.document import EventSource, Kind
from tests.support.destinations import AnyVmTo
from tests.support.world import a_vm, sequential_ids

NOW = 1_000_000.0
MIN = 60.0
POLICY = Policy(recommends_rebalancing=True)
CONTEXT = DecisionContext(now=NOW, destinations=AnyVmTo("h2"), policy=POLICY)
HOST_WORK = "Host server is undergoing maintenance."
MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
REPAIR = "Host server is undergoing an emergency repair."
FAILURE = "Virtual machine has encountered a failure."
RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."
U, P = EventSource.USER, EventSource.PLATFORM

# Spec §6.4 and §6.3, row by row: kind, source, description, duration, minimum notice, moves to another host.
ROWS = {
    Cause.HOST_UPDATE: (Kind.FREEZE, P, HOST_WORK, 9, 15 * MIN, False),
    Cause.LIVE_MIGRATION: (Kind.FREEZE, P, MIGRATION, 5, 15 * MIN, True),
    Cause.PLATFORM_REBOOT: (Kind.REBOOT, P, HOST_WORK, -1, 15 * MIN, False),
    Cause.PREDICTED_FAILURE: (Kind.REDEPLOY, P, REPAIR, -1, 10 * MIN, True),
    Cause.HOST_FAILED: (Kind.REDEPLOY, P, FAILURE, -1, 0, True),
    Cause.EVICTION: (Kind.PREEMPT, P, "", -1, 30, False),
    Cause.REBALANCE: (Kind.SPOT_REBALANCE, P, "", 0, 0, False),
    Cause.USER_RESTART: (Kind.REBOOT, U, RESTARTED, -1, 15 * MIN, False),
    Cause.USER_REDEPLOY: (Kind.REDEPLOY, U, REDEPLOYED, -1, 10 * MIN, True),
    Cause.USER_DELETE: (Kind.TERMINATE, U, "", -1, 0, False),
    Cause.SCALE_IN: (Kind.TERMINATE, P, "", -1, 0, False),
    Cause.ANNOUNCED_REIMAGE: (Kind.REBOOT, U, "", -1, 0, False),
}
AT_ONCE = [Cause.POWER_OFF, Cause.START, Cause.DEALLOCATE, Cause.REAPPLY, Cause.REIMAGE]


def vm_for(cause: Cause, **facts: object) -> Vm:
    """A VM whose state allows the cause."""
    given: dict[str, object] = {}
    if cause in (Cause.EVICTION, Cause.REBALANCE):
        given = {"priority": Priority.SPOT}
    if cause in (Cause.USER_DELETE, Cause.SCALE_IN):
        given = {"terminate_notice_min": 5}
    if cause is Cause.START:
        given = {"power": PowerState.STOPPED}
    return a_vm("web-0", **{**given, **facts})


def scope_of(*vms: Vm, enabled: bool = True) -> Scope:
    scope = Scope(id=vms[0].scope_id, vms=vms)
    return enable_scope(scope, by="web-0", now=NOW) if enabled else scope


def planned(cause: Cause, vm: Vm, *, notice_s: float = 0.0, event_id: str = "E1") -> PlannedEvent:
    return PlannedEvent(
        event_id=event_id, request_id="r", scope_id=vm.scope_id, cause=cause, requested_by="ann", vms=(vm.name,),
        notice_s=notice_s, update_domain=vm.update_domain,
    )  # fmt: skip


def applied(
    cause: Cause, vm: Vm, *, enabled: bool = True, context: DecisionContext = CONTEXT, notice_s: float = 900.0
) -> Event:
    scope = apply_planned_event(scope_of(vm, enabled=enabled), planned(cause, vm, notice_s=notice_s), context)
    return scope.events[-1]


def request(ask: RequestedOperation, *, notice_s: float = 0, short_notice: bool = False) -> MaintenanceRequest:
    return MaintenanceRequest(
        id="r",
        operation=ask,
        requested_by="ann",
        requested_at=NOW,
        targets=("web-0",),
        notice_s=notice_s,
        short_notice=short_notice,
    )


def notice(ask: RequestedOperation, vm: Vm, *, notice_s: float = 0, short_notice: bool = False) -> float:
    maintenance_request = request(ask, notice_s=notice_s, short_notice=short_notice)
    return plan_events_for_vms(maintenance_request, [vm], lambda: "E1")[0].notice_s


def test_the_table_of_causes_matches_the_specification() -> None:
    assert set(CAUSE_RULES) == {*ROWS, *AT_ONCE}
    requested = set(OPERATION_CAUSES.values()) | set(IMPACT_CAUSES.values())
    assert requested == set(CAUSE_RULES) - {Cause.ANNOUNCED_REIMAGE}  # a reimage, by the VM's settings
    assert set(OPERATION_CAUSES) == set(RequestedOperation) - {
        RequestedOperation.ROLLOUT,
        RequestedOperation.REPLAY,
        RequestedOperation.PERFORM_MAINTENANCE,
    }
    assert set(IMPACT_CAUSES) == set(RolloutImpact)


@pytest.mark.parametrize("cause", ROWS)
def test_an_event_follows_the_rules_of_its_cause(cause: Cause) -> None:
    """Spec §6.4, and the minimum notice of §6.3."""
    kind, source, description, duration_s, minimum_s, moves = ROWS[cause]
    vm = vm_for(cause)
    (shown,) = document_for(apply_planned_event(scope_of(vm), planned(cause, vm), CONTEXT)).notices
    assert (shown.kind, shown.source, shown.description, shown.duration_s) == (kind, source, description, duration_s)
    assert (CAUSE_RULES[cause].minimum_notice_s, CAUSE_RULES[cause].verb.rules.moves) == (minimum_s, moves)


@pytest.mark.parametrize("cause", AT_ONCE)
def test_power_off_start_deallocate_reapply_and_reimage_publish_no_event(cause: Cause) -> None:
    """Spec §6.4: performed at once, and no document changes."""
    vm = vm_for(cause)
    before = scope_of(vm)
    scope = apply_planned_event(before, planned(cause, vm), CONTEXT)
    (begun,) = scope.events
    assert (begun.status, begun.listed, begun.note) == (EventState.STARTED, False, f"a {cause} publishes no event")
    assert document_for(scope) == document_for(before)


def test_a_failed_host_gives_no_notice() -> None:
    """Spec §6.4: Started at once."""
    event = applied(Cause.HOST_FAILED, vm_for(Cause.HOST_FAILED))
    assert (event.status, event.listed) == (EventState.STARTED, True)
    assert [act.to_host for act in event.acts] == ["h2"]


@pytest.mark.parametrize("cause", [c for c in ROWS if c is not Cause.HOST_FAILED])
def test_every_other_cause_gives_its_notice(cause: Cause) -> None:
    """NotBefore counts from publication."""
    announced = applied(cause, vm_for(cause), notice_s=123)
    assert (announced.status, announced.published_at, announced.not_before) == (EventState.SCHEDULED, NOW, NOW + 123)


def test_not_before_is_whole_seconds_and_never_less_than_the_notice() -> None:
    """Spec §4.2: the wire shows seconds."""
    announced = applied(
        Cause.USER_RESTART,
        a_vm("web-0"),
        context=DecisionContext(now=NOW + 0.25, destinations=CONTEXT.destinations, policy=POLICY),
        notice_s=900,
    )
    assert announced.not_before == NOW + 901


@pytest.mark.parametrize(
    ("ask", "seconds"),
    [
        (RequestedOperation.RESTART, 900),
        (RequestedOperation.REDEPLOY, 600),
        (RequestedOperation.EVICT, 30),
        (RequestedOperation.DEGRADE, 600),
        (RequestedOperation.POWER_OFF, 0),
        (RequestedOperation.FAIL, 0),
    ],
)
def test_the_default_notice_is_the_minimum_of_the_kind(ask: RequestedOperation, seconds: int) -> None:
    """Spec §6.3."""
    assert notice(ask, a_vm("web-0")) == seconds


@pytest.mark.parametrize("ask", [RequestedOperation.DELETE, RequestedOperation.SCALE_IN])
@pytest.mark.parametrize("minutes", [5, 10, 15])
def test_the_notice_of_a_terminate_is_the_setting_of_the_vm(ask: RequestedOperation, minutes: int) -> None:
    """Spec §6.3: 5 to 15 minutes."""
    assert notice(ask, a_vm("web-0", terminate_notice_min=minutes)) == minutes * MIN


def test_more_notice_than_the_minimum_may_be_given() -> None:
    """Spec §6.4: a predicted failure is announced days ahead."""
    assert notice(RequestedOperation.DEGRADE, a_vm("web-0"), notice_s=7 * 24 * 3600) == 7 * 24 * 3600


@pytest.mark.parametrize(
    ("ask", "seconds", "message", "minimum"),
    [
        (RequestedOperation.RESTART, 60, "notice of 1 min is shorter than the 15 min a Reboot needs", "15 min"),
        (RequestedOperation.EVICT, 29.5, "notice of 29.5 s is shorter than the 30 s a Preempt needs", "30 s"),
    ],
)
def test_too_short_a_notice_is_rejected_with_the_minimum(
    ask: RequestedOperation, seconds: float, message: str, minimum: str
) -> None:
    """Spec §6.3."""
    with pytest.raises(Rejected) as rejection:
        notice(ask, a_vm("web-0"), notice_s=seconds)
    assert str(rejection.value) == message
    assert rejection.value.remedy_code is Remedy.ALLOW_SHORT_NOTICE
    assert rejection.value.remedy_fields == {"minimum": minimum}


@pytest.mark.parametrize("seconds", [0, 1, 60, 5000])
def test_a_short_notice_is_given_if_the_request_allows_it(seconds: int) -> None:
    """Spec §6.3: for testing."""
    assert notice(RequestedOperation.RESTART, a_vm("web-0"), notice_s=seconds, short_notice=True) == seconds


def test_a_notice_for_an_operation_without_event_is_rejected() -> None:
    with pytest.raises(
        Rejected, match=r"^power-off gives no notice, because it is performed at once: leave the notice out$"
    ):
        notice(RequestedOperation.POWER_OFF, a_vm("web-0"), notice_s=60)


def test_a_request_for_several_vms_plans_one_event_per_vm() -> None:
    """Spec §7.3."""
    vms = [a_vm("a", availability_set="web", update_domain=2), a_vm("b")]
    numbers = sequential_ids()
    plans = plan_events_for_vms(request(RequestedOperation.RESTART), vms, lambda: next(numbers), host="h1")
    assert [(p.scope_id, p.vms, p.update_domain, p.host) for p in plans] == [
        ("set:sub/lab/web", ("a",), 2, "h1"),
        ("vm:sub/lab/b", ("b",), 0, "h1"),
    ]
    assert len({p.event_id for p in plans}) == 2


def test_applying_a_plan_twice_changes_nothing() -> None:
    vm = a_vm("web-0")
    once = apply_planned_event(scope_of(vm), planned(Cause.USER_RESTART, vm), CONTEXT)
    assert apply_planned_event(once, planned(Cause.USER_RESTART, vm), CONTEXT) is once


def test_a_planned_event_of_removed_vms_is_refused() -> None:
    gone = a_vm("web-0", removed_at=NOW)
    with pytest.raises(Refused, match=r"^VM 'web-0' no longer exists: there is nothing to reboot$"):
        apply_planned_event(scope_of(gone), planned(Cause.USER_RESTART, gone), CONTEXT)


def test_a_removed_vm_is_left_out_of_the_event() -> None:
    vms = [a_vm(name, availability_set="web") for name in ("a", "b")]
    both = replace(planned(Cause.HOST_UPDATE, vms[0]), vms=("a", "b"))
    assert apply_planned_event(scope_of(vms[0], replace(vms[1], removed_at=NOW)), both, CONTEXT).events[0].vms == ("a",)


BY_USER = {Cause.USER_RESTART, Cause.USER_REDEPLOY, Cause.USER_DELETE, Cause.ANNOUNCED_REIMAGE}


@pytest.mark.parametrize("cause", ROWS)
@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])
def test_user_operations_in_a_disabled_scope_publish_no_event(cause: Cause, enabled: bool) -> None:
    """Spec §8.2: the requester learns why; platform maintenance still starts at its time, unseen."""
    event = applied(cause, vm_for(cause), enabled=enabled)
    if enabled or cause not in BY_USER:
        assert event.listed
        assert event.note == ""
    else:
        assert (event.listed, event.status) == (False, EventState.STARTED)
        assert event.note == "no VM of the scope has polled within 24 h, so scheduled events are disabled there"


@pytest.mark.parametrize("cause", [Cause.USER_DELETE, Cause.SCALE_IN])
def test_a_vm_without_terminate_notification_is_deleted_at_once(cause: Cause) -> None:
    """Spec §6.3: only where enabled."""
    event = applied(cause, a_vm("web-0"))
    assert (event.listed, event.status, event.note) == (
        False,
        EventState.STARTED,
        "no terminate notification is set",
    )


@pytest.mark.parametrize("cause", [Cause.USER_DELETE, Cause.SCALE_IN])
def test_a_spot_vm_never_gets_a_terminate(cause: Cause) -> None:
    """Spec §6.3: never for Spot."""
    event = applied(cause, a_vm("web-0", priority=Priority.SPOT, terminate_notice_min=5))
    assert (event.listed, event.note) == (False, "a Spot VM has no terminate notification")


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("redeploy", [True, False])
@pytest.mark.parametrize("cause", [c for c in ROWS if c is not Cause.HOST_FAILED])
def test_a_policy_starts_user_restarts_and_redeploys_at_once(cause: Cause, restart: bool, redeploy: bool) -> None:
    """Spec §9: then the event appears as Started at once; other causes wait all the same."""
    vm = vm_for(cause, auto_approve=AutoApproval(restart=restart, redeploy=redeploy))
    event = applied(cause, vm)
    wanted = (cause is Cause.USER_RESTART and restart) or (cause is Cause.USER_REDEPLOY and redeploy)
    assert event.status is (EventState.STARTED if wanted else EventState.SCHEDULED)
    assert event.listed
    assert event.approved_by == ("policy" if wanted else "")


def test_only_a_spot_vm_can_be_evicted() -> None:
    """Spec §6.4."""
    with pytest.raises(Refused) as refusal:
        applied(Cause.EVICTION, a_vm("web-0"))
    assert str(refusal.value) == ("VM 'web-0' is not a Spot VM and cannot be evicted: delete or redeploy it instead")


@pytest.mark.parametrize("policy", list(EvictionPolicy))
def test_an_eviction_deallocates_or_deletes_by_policy(policy: EvictionPolicy) -> None:
    """Spec §6.4."""
    vm = vm_for(Cause.EVICTION, eviction_policy=policy)
    scope = apply_planned_event(scope_of(vm), planned(Cause.EVICTION, vm, notice_s=30), CONTEXT)
    (act,) = reconcile_scope(scope, DecisionContext(now=NOW + 30)).events[0].acts
    left = vm_after_act(vm, act, NOW + 40)
    assert act.keeps_vm is (policy is EvictionPolicy.DEALLOCATE)
    assert (left.removed_at, left.host) == (None if act.keeps_vm else NOW + 40, "")
    assert left.power is (PowerState.DEALLOCATED if act.keeps_vm else PowerState.RUNNING)


SUITS_DEALLOCATED = {Cause.USER_DELETE, Cause.SCALE_IN, Cause.DEALLOCATE, Cause.REAPPLY, Cause.START}


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("power", list(PowerState))
def test_the_power_state_of_a_vm_decides_which_operations_are_possible(cause: Cause, power: PowerState) -> None:
    vm = vm_for(cause, power=power, host="" if power is PowerState.DEALLOCATED else "h1")
    refusals = {
        (
            power is PowerState.RUNNING and cause is Cause.START
        ): "VM 'web-0' is running already: there is nothing to start",
        (power is PowerState.STOPPED and cause is Cause.USER_RESTART): (
            "VM 'web-0' is stopped and cannot be restarted: start it instead"
        ),
        (
            power is PowerState.DEALLOCATED and cause not in SUITS_DEALLOCATED
        ): "VM 'web-0' is deallocated: start it first",
    }
    if True not in refusals:
        assert applied(cause, vm).cause is cause
        return
    with pytest.raises(Refused) as refusal:
        applied(cause, vm)
    assert str(refusal.value) == refusals[True]


@pytest.mark.parametrize("cause", ROWS)
def test_a_user_may_perform_pending_platform_maintenance_now(cause: Cause) -> None:
    """Spec §6.4, last row; an eviction, a scale-in or what users started is no maintenance."""
    vm = vm_for(cause)
    scope = apply_planned_event(scope_of(vm), planned(cause, vm, notice_s=900), CONTEXT)
    if CAUSE_RULES[cause].planned:
        assert [event.id for event in pending_platform_events(scope, "WEB-0")] == ["E1"]
    else:
        with pytest.raises(Refused, match=r"^VM 'web-0' has no pending maintenance: there is nothing to perform$"):
            pending_platform_events(scope, "web-0")


def test_only_migrations_and_redeploys_move_a_vm() -> None:
    assert {row.verb for row in CAUSE_RULES.values() if row.verb.rules.moves} == {Verb.MIGRATE, Verb.REDEPLOY}


@pytest.mark.parametrize("ask", [RequestedOperation.DELETE, RequestedOperation.SCALE_IN])
def test_a_notice_for_a_vm_without_terminate_notification_is_refused(ask: RequestedOperation) -> None:
    """Spec §6.3: without terminate notification a delete is carried out at once, whatever was hoped for."""
    with pytest.raises(Refused, match="'web-0' has no terminate notification and would be deleted at once"):
        notice(ask, a_vm("web-0"), notice_s=3600)


@pytest.mark.parametrize("cause", [Cause.HOST_FAILED, Cause.USER_REDEPLOY])
def test_only_the_acts_of_a_failed_host_are_abrupt(cause: Cause) -> None:
    """Spec §6.4: a failure comes with no notice."""
    event = applied(cause, vm_for(cause, auto_approve=AutoApproval(redeploy=True)))
    assert [act.abrupt for act in event.acts] == [cause is Cause.HOST_FAILED]
