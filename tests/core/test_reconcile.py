"""Reconciling a scope, and when to do it next (spec §4.2, §6.2, §6.4, §6.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.decision import DecisionContext, EnablementMode, Policy
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.fleet import EvictionPolicy, PowerState, Vm
from forewarn.core.history import EntryKind
from forewarn.core.reconcile import next_wake_at, reconcile_scope, record_act_outcome, with_next_wake
from forewarn.core.scope import Scope, enable_scope
from tests.support.destinations import AnyVmTo
from tests.support.world import a_vm

NOW = 1_000_000.0
DAY = 24 * 3600.0
LAB = Policy(enablement=EnablementMode.ALWAYS)


def context(now: float = NOW, *, policy: Policy = LAB, host: str | None = "h2") -> DecisionContext:
    return DecisionContext(now=now, policy=policy, destinations=AnyVmTo(host))


def event(name: str = "E1", cause: Cause = Cause.USER_RESTART, *vms: str, **facts: object) -> Event:
    given: dict[str, object] = {
        "id": name,
        "scope_id": "set:sub/lab/web",
        "request_id": "r",
        "cause": cause,
        "requested_by": "ann",
        "vms": vms or ("web-0",),
        "published_at": NOW,
        "not_before": NOW + 900,
    }
    return Event(**{**given, **facts})  # type: ignore[arg-type]


def vm(name: str = "web-0", **facts: Any) -> Vm:
    return a_vm(name, **{"availability_set": "web", **facts})


def scope_of(*vms: Vm, events: tuple[Event, ...] = ()) -> Scope:
    scope = enable_scope(Scope(id="set:sub/lab/web", vms=vms or (vm(),)), by="lab", now=NOW)
    for each in events:
        scope = lifecycle.announce(scope, each)
    return scope


def event_in(scope: Scope, name: str = "E1") -> Event:
    found = scope.event(name)
    assert found is not None
    return found


def performed(scope: Scope, at: float, *, ok: bool = True, name: str = "E1") -> Scope:
    for act in event_in(scope, name).unfinished_acts:
        scope = record_act_outcome(scope, act, ActOutcome(ok=ok, at=at, note="" if ok else "no power"))
    return scope


def test_reconciling_returns_the_same_scope_if_nothing_is_due() -> None:
    scope = scope_of(events=(event(),))
    assert reconcile_scope(scope, context(NOW + 899)) is scope


def test_an_event_starts_when_its_notice_ends() -> None:
    """Spec §6.2."""
    scope = reconcile_scope(scope_of(events=(event(),)), context(NOW + 900))
    assert (event_in(scope).status, event_in(scope).started_at) == (EventState.STARTED, NOW + 900)
    assert [act.id for act in event_in(scope).unfinished_acts] == ["E1:web-0"]


def test_a_vm_removed_before_the_start_is_skipped() -> None:
    """Spec §4.2: the list itself never changes."""
    gone = vm("web-1", removed_at=NOW + 5)
    idle = vm("web-2", power=PowerState.DEALLOCATED, host="")
    scope = reconcile_scope(
        scope_of(vm(), gone, idle, events=(event("E1", Cause.HOST_UPDATE, "web-0", "web-1", "web-2"),)),
        context(NOW + 900),
    )
    assert event_in(scope).vms == ("web-0", "web-1", "web-2")
    assert [act.name for act in event_in(scope).acts] == ["web-0"]
    assert [entry.text for entry in scope.new_entries if entry.kind is EntryKind.SKIPPED] == [
        "web-1 is skipped: it was removed or deallocated",
        "web-2 is skipped: it was removed or deallocated",
    ]


@pytest.mark.parametrize("facts", [{"removed_at": NOW + 5}, {"power": PowerState.DEALLOCATED, "host": ""}])
def test_an_event_without_remaining_vms_is_withdrawn_at_once(facts: dict[str, Any]) -> None:
    """Spec §4.2."""
    scope = scope_of(events=(event(),)).with_vm(vm(**facts))
    assert next_wake_at(scope, context()) == NOW
    over = event_in(reconcile_scope(scope, context()))
    assert (over.ending, over.reason) == (Ending.WITHDRAWN, "none of its VMs exists any more")


def test_a_terminate_of_a_deallocated_vm_stays_scheduled() -> None:
    """A deallocated VM can still be deleted."""
    scope = scope_of(vm(power=PowerState.DEALLOCATED, host=""), events=(event("E1", Cause.USER_DELETE),))
    assert reconcile_scope(scope, context()) is scope


@pytest.mark.parametrize("cause", [Cause.PREDICTED_FAILURE, Cause.HOST_UPDATE, Cause.USER_REDEPLOY])
def test_work_on_a_host_is_not_needed_for_a_vm_that_has_left_it(cause: Cause) -> None:
    """Spec §6.4: an operation of the user concerns the VM wherever it is."""
    moved = reconcile_scope(scope_of(vm(host="h2"), events=(event("E1", cause, host="h1"),)), context())
    if cause is not Cause.USER_REDEPLOY:
        assert (event_in(moved).ending, event_in(moved).reason) == (Ending.NOT_NEEDED, "web-0 is no longer on h1")
    else:
        assert event_in(moved).status is EventState.SCHEDULED


def test_a_predicted_failure_stays_scheduled_while_its_vm_is_on_the_host() -> None:
    scope = scope_of(events=(event("E1", Cause.PREDICTED_FAILURE, host="h1"),))
    assert reconcile_scope(scope, context()) is scope


def test_an_event_stays_started_until_every_outcome_is_known() -> None:
    """Spec §6.5."""
    scope = scope_of(vm(), vm("web-1"), events=(event("E1", Cause.HOST_UPDATE, "web-0", "web-1"),))
    scope = reconcile_scope(scope, context(NOW + 900))
    first, second = event_in(scope).unfinished_acts
    half = reconcile_scope(record_act_outcome(scope, first, ActOutcome(ok=True, at=NOW + 909)), context(NOW + 909))
    assert event_in(half).status is EventState.STARTED
    assert next_wake_at(half, context(NOW + 909)) is None
    whole = reconcile_scope(record_act_outcome(half, second, ActOutcome(ok=True, at=NOW + 912)), context(NOW + 912))
    assert (event_in(whole).ending, event_in(whole).over_at) == (Ending.FINISHED, NOW + 912)


def test_an_event_stays_started_for_the_settling_time_after_its_last_outcome() -> None:
    """Spec §6.5."""
    settling = replace_policy(settle_s=120)
    scope = performed(reconcile_scope(scope_of(events=(event(),)), context(NOW + 900, policy=settling)), NOW + 930)
    assert reconcile_scope(scope, context(NOW + 1049, policy=settling)) is scope
    assert next_wake_at(scope, context(NOW + 930, policy=settling)) == NOW + 1050
    assert event_in(reconcile_scope(scope, context(NOW + 1050, policy=settling))).ending is Ending.FINISHED


def test_an_operation_performed_at_once_has_no_settling_time() -> None:
    """No document shows it, so no VM needs the settling time."""
    settling = replace_policy(settle_s=120)
    act = Act(id="E1:web-0", vm=vm().key, name="web-0", verb=CAUSE_RULES[Cause.POWER_OFF].verb, event_id="E1")
    scope = lifecycle.start_without_notice(scope_of(), event("E1", Cause.POWER_OFF, listed=False), (act,), NOW)
    scope = reconcile_scope(performed(scope, NOW + 15), context(NOW + 15, policy=settling))
    assert event_in(scope).ending is Ending.FINISHED
    assert scope.vms[0].power is PowerState.STOPPED


def replace_policy(**facts: float) -> Policy:
    return Policy(enablement=EnablementMode.ALWAYS, **facts)  # type: ignore[arg-type]


def test_a_failed_act_ends_its_event_without_changing_the_vm() -> None:
    """Spec §6.1, §6.5."""
    scope = reconcile_scope(scope_of(events=(event("E1", Cause.USER_REDEPLOY),)), context(NOW + 900))
    over = reconcile_scope(performed(scope, NOW + 905, ok=False), context(NOW + 905))
    assert (event_in(over).ending, event_in(over).reason) == (Ending.FAILED, "web-0: no power")
    assert over.vms[0].host == "h1"


def test_a_move_without_a_destination_host_fails_with_the_reason() -> None:
    """Spec §6.4: no healthy host was left by the time the event started."""
    scope = reconcile_scope(scope_of(events=(event("E1", Cause.USER_REDEPLOY),)), context(NOW + 900, host=None))
    assert (event_in(scope).ending, event_in(scope).reason) == (
        Ending.FAILED,
        "web-0: no healthy host to move to in westeurope",
    )


@pytest.mark.parametrize(
    ("cause", "facts", "host", "power", "removed"),
    [
        (Cause.HOST_UPDATE, {}, "h1", PowerState.RUNNING, False),
        (Cause.LIVE_MIGRATION, {}, "h2", PowerState.RUNNING, False),
        (Cause.PLATFORM_REBOOT, {}, "h1", PowerState.RUNNING, False),
        (Cause.HOST_FAILED, {}, "h2", PowerState.RUNNING, False),
        (Cause.EVICTION, {}, "", PowerState.DEALLOCATED, False),
        (Cause.EVICTION, {"eviction_policy": EvictionPolicy.DELETE}, "", PowerState.RUNNING, True),
        (Cause.USER_DELETE, {}, "", PowerState.RUNNING, True),
        (Cause.DEALLOCATE, {}, "", PowerState.DEALLOCATED, False),
        (Cause.POWER_OFF, {}, "h1", PowerState.STOPPED, False),
        (Cause.START, {"power": PowerState.STOPPED}, "h1", PowerState.RUNNING, False),
        (Cause.START, {"power": PowerState.DEALLOCATED, "host": ""}, "h2", PowerState.RUNNING, False),
        (Cause.REAPPLY, {}, "h1", PowerState.RUNNING, False),
        (Cause.REIMAGE, {}, "h1", PowerState.RUNNING, False),
    ],
)
def test_an_act_changes_its_vm_as_the_table_says(
    cause: Cause, facts: dict[str, Any], host: str, power: PowerState, removed: bool
) -> None:
    """Spec §6.4, last column."""
    scope = reconcile_scope(scope_of(vm(**facts), events=(event("E1", cause),)), context(NOW + 900))
    left = performed(scope, NOW + 950).vms[0]
    assert (left.host, left.power, left.removed_at is not None) == (host, power, removed)


def test_an_unexpected_outcome_changes_nothing() -> None:
    scope = reconcile_scope(scope_of(events=(event(),)), context(NOW + 900))
    (act,) = event_in(scope).unfinished_acts
    known = performed(scope, NOW + 930)
    assert record_act_outcome(known, act, ActOutcome(ok=False, at=NOW + 931)) is known
    unknown = replace(act, event_id="E9")
    assert record_act_outcome(known, unknown, ActOutcome(ok=True, at=NOW + 931)) is known


def test_one_reconcile_pass_does_everything_that_becomes_due_by_it() -> None:
    """When one update domain is finished, the next one starts in the same pass (spec §6.2)."""
    first = event("E1", Cause.PLATFORM_REBOOT, "web-0", update_domain=0)
    second = event("E2", Cause.PLATFORM_REBOOT, "web-1", update_domain=1)
    scope = reconcile_scope(scope_of(vm(), vm("web-1", update_domain=1), events=(first, second)), context(NOW + 900))
    assert [e.status for e in scope.events] == [EventState.STARTED, EventState.SCHEDULED]
    scope = reconcile_scope(performed(scope, NOW + 930), context(NOW + 930))
    assert [e.status for e in scope.events] == [EventState.OVER, EventState.STARTED]


@pytest.mark.parametrize(
    ("scope", "at"),
    [
        pytest.param(scope_of(), None, id="nothing is due"),
        pytest.param(scope_of(events=(event(),)), NOW + 900, id="the end of a notice"),
        pytest.param(scope_of(events=(event(approved_at=NOW),)), NOW, id="approved"),
        pytest.param(scope_of(events=(event(approved_at=NOW, gate_id="G"),)), None, id="a gate"),
    ],
)
def test_the_next_wake_up_is_when_something_is_due(scope: Scope, at: float | None) -> None:
    assert next_wake_at(scope, context()) == at
    assert with_next_wake(scope, context()).wakes_at == at


def test_the_next_wake_up_is_when_the_scope_becomes_idle() -> None:
    """Spec §8.2."""
    assert next_wake_at(scope_of(), context(policy=Policy())) == NOW + DAY


CAUSES = st.sampled_from([cause for cause, row in CAUSE_RULES.items() if row.kind is not None and row.has_impact])
EVENTS = st.lists(
    st.builds(
        lambda cause, name, wait, approved, domain, gate: event(
            "?",
            cause,
            name,
            not_before=NOW + wait,
            approved_at=NOW if approved else None,
            update_domain=domain,
            gate_id=gate,
            host="h1",
        ),
        CAUSES,
        st.sampled_from(["web-0", "web-1", "web-2", "gone"]),
        st.integers(-100, 100),
        st.booleans(),
        st.integers(0, 2),
        st.sampled_from(["", "", "open", "shut"]),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    placement=st.booleans(),
    resumed=st.sampled_from([None, NOW - 30, NOW]),
    settle_s=st.sampled_from([0.0, 60.0]),
    nowhere=st.booleans(),
    policy=st.sampled_from([EnablementMode.ALWAYS, EnablementMode.ON_REQUEST]),
    silent_s=st.sampled_from([0.0, DAY, 2 * DAY]),
)
def test_a_second_reconcile_pass_changes_nothing(
    events: list[Event],
    placement: bool,
    resumed: float | None,
    settle_s: float,
    nowhere: bool,
    policy: EnablementMode,
    silent_s: float,
) -> None:
    """A scope with something due after a pass would be reconciled forever."""
    scope_id = "placement:sub/lab/web/1" if placement else "set:sub/lab/web"
    vms = (vm("web-0"), vm("web-1", update_domain=1), vm("web-2", host="h3"))
    scope = enable_scope(Scope(id=scope_id, vms=vms), by="web-0", now=NOW - silent_s)
    for number, each in enumerate(events):
        scope = lifecycle.announce(scope, replace(each, id=f"E{number}"))
    context = DecisionContext(
        now=NOW,
        policy=Policy(enablement=policy, settle_s=settle_s),
        resumed_at=resumed,
        released_gates=frozenset({"open"}),
        destinations=AnyVmTo(None if nowhere else "h2"),
    )
    reconciled = reconcile_scope(scope, context)
    at = next_wake_at(reconciled, context)
    assert reconcile_scope(reconciled, context) is reconciled
    assert at is None or at > NOW
