"""When an event starts: every rule of spec §6.2, and the texts that say what it waits for."""

from __future__ import annotations

from itertools import product

import pytest

from forewarn.core.cause import CAUSE_RULES, Cause, Verb
from forewarn.core.decision import DecisionContext, HostSilence, Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.release import WaitReason, describe_gate_wait, start_wait, waits_only_for_gate
from forewarn.core.scope import Scope
from forewarn.protocol.document import Kind
from tests.support.world import a_vm

NOW = 1_000_000.0
PLACEMENT, SET = "placement:sub/lab/web/1", "set:sub/lab/web"
WITH_EVENT = [cause for cause, row in CAUSE_RULES.items() if row.kind is not None and row.has_impact]
# Spec §6.2: "planned platform maintenance" queues on update domains.
QUEUES = {Cause.HOST_UPDATE, Cause.LIVE_MIGRATION, Cause.PLATFORM_REBOOT, Cause.PREDICTED_FAILURE}
# Spec §6.2: "work that hits a whole host"; moves of single VMs never wait for it.
WHOLE_HOST = {Cause.HOST_UPDATE, Cause.PLATFORM_REBOOT}


def event(
    name: str = "E1", cause: Cause = Cause.HOST_UPDATE, *, due: bool = False, approved: bool = False, **facts: object
) -> Event:
    given: dict[str, object] = {
        "id": name,
        "scope_id": SET,
        "request_id": "r",
        "cause": cause,
        "requested_by": "ops",
        "vms": (f"vm-{name}",),
        "published_at": NOW - 900,
        "not_before": NOW if due else NOW + 60,
        "approved_at": NOW if approved else None,
    }
    return Event(**{**given, **facts})  # type: ignore[arg-type]


def scope_of(*events: Event, scope_id: str = SET) -> Scope:
    return Scope(id=scope_id, vms=tuple(a_vm(name) for e in events for name in e.vms), events=events)


def reason_for(scope: Scope, context: DecisionContext | None = None, name: str = "E1") -> WaitReason | None:
    found = scope.event(name)
    assert found is not None
    wait = start_wait(scope, found, context or DecisionContext(now=NOW))
    return wait.reason if wait else None


@pytest.mark.parametrize("cause", WITH_EVENT)
@pytest.mark.parametrize(("approved", "due"), list(product([False, True], repeat=2)))
def test_an_event_is_ready_once_it_is_approved_or_its_notice_has_ended(cause: Cause, approved: bool, due: bool) -> None:
    """Spec §6.2, first sentence: alone in its scope it then starts at once, for every cause."""
    scope = scope_of(event(cause=cause, approved=approved, due=due))
    assert reason_for(scope) is (None if approved or due else WaitReason.NOTICE)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param([], "the other VMs on host h1, which are not ready yet", id="just now"),
        pytest.param(["a"], "a on host h1, which is not ready yet", id="one"),
        pytest.param(["a", "b"], "a, b on host h1, which are not ready yet", id="two"),
        pytest.param(list("abcdef"), "a, b, c, d and 2 more on host h1, which are not ready yet", id="many"),
    ],
)
def test_operators_see_which_vms_keep_a_gate_closed(names: list[str], text: str) -> None:
    """Spec §6.2, shared host."""
    unready = [event(f"E-{name}", vms=(name,), host="h1") for name in names]
    assert describe_gate_wait(event(host="h1"), unready).text == text


def test_a_wait_for_the_notice_says_when_it_ends() -> None:
    wait = start_wait(scope_of(event()), event(), DecisionContext(now=NOW))
    assert wait is not None
    assert (wait.text, wait.until) == ("an approval, or the end of its notice", NOW + 60)


@pytest.mark.parametrize("mine", WITH_EVENT)
@pytest.mark.parametrize("other", WITH_EVENT)
@pytest.mark.parametrize("same_domain", [True, False], ids=["same domain", "another domain"])
@pytest.mark.parametrize("status", list(EventState))
def test_planned_platform_maintenance_takes_one_update_domain_at_a_time(
    mine: Cause, other: Cause, same_domain: bool, status: EventState
) -> None:
    """Spec §6.2: over all rollouts; user operations, Preempt, Terminate and failures do not queue."""
    busy = event("E2", other, status=status, update_domain=1, request_id="another rollout", due=True)
    scope = scope_of(busy, event(cause=mine, due=True, update_domain=1 if same_domain else 0))
    must_wait = mine in QUEUES and other in QUEUES and status is EventState.STARTED and not same_domain
    assert reason_for(scope) is (WaitReason.UPDATE_DOMAIN if must_wait else None)


@pytest.mark.parametrize("approved", [False, True])
@pytest.mark.parametrize("cause", [Cause.HOST_UPDATE, Cause.USER_RESTART])
def test_an_event_waits_for_the_move_of_its_vm_whether_or_not_it_is_approved(cause: Cause, approved: bool) -> None:
    """Spec §6.4: nothing is performed on the failed host, so no approval starts it before the move has ended."""
    mine = event(cause=cause, approved=approved, host="h1")
    move = Act(
        id="E2:vm-E1",
        vm="sub/lab/vm-E1",
        name="vm-E1",
        verb=Verb.REDEPLOY,
        event_id="E2",
        from_host="h1",
        to_host="h2",
        abrupt=True,
    )
    failure = event("E2", Cause.HOST_FAILED, status=EventState.STARTED, vms=mine.vms, acts=(move,))
    wait = start_wait(scope_of(mine, failure), mine, DecisionContext(now=NOW))
    assert wait is not None
    assert (wait.reason, wait.until) == (WaitReason.MOVE, None)
    assert wait.text == "vm-E1, which is being moved to h2 because host h1 failed"


@pytest.mark.parametrize("cause", [Cause.EVICTION, Cause.USER_DELETE])
def test_an_event_that_removes_its_vm_from_any_host_waits_for_its_notice_during_a_move(cause: Cause) -> None:
    mine = event(cause=cause)
    move = Act(id="a", vm="v", name="vm-E1", verb=Verb.REDEPLOY, event_id="E2", from_host="h1", to_host="h2")
    failure = event("E2", Cause.HOST_FAILED, status=EventState.STARTED, vms=mine.vms, acts=(move,))
    assert reason_for(scope_of(mine, failure)) is WaitReason.NOTICE


def test_a_wait_for_an_update_domain_names_the_domain_and_its_event() -> None:
    scope = scope_of(event("E2", status=EventState.STARTED, update_domain=3), event(due=True))
    wait = start_wait(scope, scope.events[1], DecisionContext(now=NOW))
    assert wait is not None
    assert (wait.text, wait.until) == ("update domain 3, where event E2 has started", None)


def test_a_wait_for_an_update_domain_says_if_its_event_is_only_released() -> None:
    scope = scope_of(event("E2", gate_id="G2", due=True, update_domain=3), event(due=True))
    wait = start_wait(scope, scope.events[1], DecisionContext(now=NOW, released_gates=frozenset({"G2"})))
    assert wait is not None
    assert wait.text == "update domain 3, where event E2 is released and starts first"


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("gate_id", ["", "G1"])
def test_an_event_behind_a_gate_starts_only_after_its_release(gate_id: str, released: bool) -> None:
    """Spec §6.2, shared host: the events on it start together when each is ready."""
    scope = scope_of(event(approved=True, gate_id=gate_id, host="h1"))
    context = DecisionContext(now=NOW, released_gates=frozenset({"G1"} if released else ()))
    assert reason_for(scope, context) is (WaitReason.GATE if gate_id and not released else None)


@pytest.mark.parametrize("mine_released", [True, False])
@pytest.mark.parametrize("other_released", [True, False])
def test_a_released_gate_counts_as_a_start_for_the_other_update_domains(
    mine_released: bool, other_released: bool
) -> None:
    """Spec §6.2: no event starts between release and start, which would separate the VMs of a host."""
    open_gates = {"G1"} if mine_released else set()
    open_gates |= {"G2"} if other_released else set()
    scope = scope_of(event(due=True, gate_id="G1"), event("E2", due=True, gate_id="G2", update_domain=1))
    context = DecisionContext(now=NOW, released_gates=frozenset(open_gates))
    held_up = other_released and not mine_released
    assert waits_only_for_gate(scope, scope.events[0], context) is not held_up
    if mine_released:
        assert reason_for(scope, context) is None
    else:
        assert reason_for(scope, context) is (WaitReason.UPDATE_DOMAIN if held_up else WaitReason.GATE)


def test_the_grace_after_an_outage_does_not_delay_events_of_a_released_gate() -> None:
    """Spec §6.2: other events on the host may have started before the outage."""
    scope = scope_of(event(not_before=NOW - 300, gate_id="G1"))
    assert (
        reason_for(
            scope, DecisionContext(now=NOW, resumed_at=NOW, released_gates=frozenset(e.gate_id for e in scope.events))
        )
        is None
    )


def test_a_wait_for_a_gate_names_the_host() -> None:
    waiting = event(approved=True, gate_id="G1", host="h1")
    wait = start_wait(scope_of(waiting), waiting, DecisionContext(now=NOW))
    assert wait is not None
    assert (wait.text, wait.until) == ("the other VMs on host h1, which are not ready yet", None)


def test_only_host_updates_and_reboots_are_work_on_a_whole_host() -> None:
    """Spec §6.2: redeploy, migration and predicted failure never wait for the other VMs of a host."""
    assert {cause for cause, row in CAUSE_RULES.items() if row.whole_host} == WHOLE_HOST
    assert {cause for cause, row in CAUSE_RULES.items() if row.planned} == QUEUES


@pytest.mark.parametrize(("ready", "busy"), list(product([False, True], repeat=2)))
def test_a_gate_counts_an_event_as_ready_if_it_waits_only_for_the_gate(ready: bool, busy: bool) -> None:
    mine = event(approved=ready, gate_id="G1")
    others = [event("E2", status=EventState.STARTED, update_domain=1)] if busy else []
    assert waits_only_for_gate(scope_of(mine, *others), mine, DecisionContext(now=NOW)) is (ready and not busy)


@pytest.mark.parametrize("scope_id", [PLACEMENT, SET])
@pytest.mark.parametrize("kinds", list(product([Cause.USER_DELETE, Cause.SCALE_IN, Cause.EVICTION], repeat=2)))
@pytest.mark.parametrize("other_ready", [True, False])
@pytest.mark.parametrize("other_status", list(EventState))
def test_terminates_of_one_placement_group_start_together(
    scope_id: str, kinds: tuple[Cause, Cause], other_ready: bool, other_status: EventState
) -> None:
    """Spec §6.2: an approved Terminate waits for each pending one that is not ready."""
    mine, other = kinds
    scope = scope_of(
        event(cause=mine, approved=True),
        event("E2", other, approved=other_ready, status=other_status),
        scope_id=scope_id,
    )
    both = all(CAUSE_RULES[cause].kind is Kind.TERMINATE for cause in kinds)
    must_wait = scope_id == PLACEMENT and both and not other_ready and other_status is EventState.SCHEDULED
    assert reason_for(scope) is (WaitReason.TERMINATES if must_wait else None)


def test_a_terminate_starts_no_later_than_its_own_not_before() -> None:
    """Spec §6.2."""
    slow = event("E2", Cause.USER_DELETE, not_before=NOW + 600)
    scope = scope_of(event(cause=Cause.USER_DELETE, approved=True), slow, scope_id=PLACEMENT)
    wait = start_wait(scope, scope.events[0], DecisionContext(now=NOW))
    assert wait is not None
    assert (wait.text, wait.until) == (
        "event E2, a Terminate of the same placement group that is not approved yet",
        NOW + 60,
    )
    assert reason_for(scope, DecisionContext(now=NOW + 60)) is None
    assert reason_for(scope, DecisionContext(now=NOW + 60), "E2") is WaitReason.NOTICE


@pytest.mark.parametrize(
    ("not_before", "approved", "now", "reason"),
    [
        pytest.param(NOW - 300, False, NOW, WaitReason.GRACE, id="ended during the outage"),
        pytest.param(NOW, False, NOW + 59, WaitReason.GRACE, id="ended as the service started"),
        pytest.param(NOW - 300, False, NOW + 60, None, id="the grace is over"),
        pytest.param(NOW - 300, True, NOW, None, id="was approved"),
        pytest.param(NOW + 1, False, NOW + 1, None, id="ends after the outage"),
    ],
)
def test_an_event_whose_notice_ended_during_an_outage_waits_for_the_grace(
    not_before: float, approved: bool, now: float, reason: WaitReason | None
) -> None:
    """After an outage VMs get some time to poll, unless the event was approved (spec §6.2, §6.3)."""
    scope = scope_of(event(approved=approved, not_before=not_before))
    context = DecisionContext(now=now, resumed_at=NOW, policy=Policy(grace_s=60))
    assert reason_for(scope, context) is reason
    assert waits_only_for_gate(scope, scope.events[0], context) is (reason is None)


def test_a_wait_for_the_grace_says_why_and_when_it_ends() -> None:
    late = event(not_before=NOW - 300)
    wait = start_wait(scope_of(late), late, DecisionContext(now=NOW, resumed_at=NOW))
    assert wait is not None
    assert (wait.text, wait.until) == ("VMs that could not poll while the service was down", NOW + 60)


@pytest.mark.parametrize(
    ("since", "until", "now", "expected"),
    [
        pytest.param(NOW - 90, None, NOW, NOW + 61, id="is silent"),
        pytest.param(NOW - 90, None, NOW + 590, NOW + 600, id="was silent for almost ten minutes"),
        pytest.param(NOW - 90, None, NOW + 600, None, id="was silent for ten minutes"),
        pytest.param(NOW - 90, NOW + 30, NOW + 31, NOW + 90, id="was silent at the end of the notice"),
        pytest.param(NOW - 90, NOW + 30, NOW + 90, None, id="was back for the grace period"),
        pytest.param(NOW - 90, NOW - 30, NOW, None, id="was back before the end of the notice"),
        pytest.param(NOW, None, NOW + 1, None, id="answered until the end of the notice"),
    ],
)
def test_an_event_waits_for_a_vm_that_could_not_poll_because_the_node_of_its_host_was_silent(
    since: float, until: float | None, now: float, expected: float | None
) -> None:
    due = event(not_before=NOW)
    silences = {scope_of(due).present_vms[0].host: HostSilence(since=since, until=until)}
    context = DecisionContext(now=now, host_silences=silences, policy=Policy(grace_s=60))
    wait = start_wait(scope_of(due), due, context)
    assert (wait and (wait.reason, wait.until)) == (expected and (WaitReason.SILENCE, expected))
    approved = event(approved=True, not_before=NOW)
    assert start_wait(scope_of(approved), approved, context) is None


def test_the_first_wait_is_reported_first() -> None:
    """Until its notice ends, an event does not mention gates and update domains."""
    scope = scope_of(event(gate_id="G1"), event("E2", status=EventState.STARTED, update_domain=1))
    assert reason_for(scope) is WaitReason.NOTICE
