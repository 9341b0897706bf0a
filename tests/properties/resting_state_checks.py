"""The judges of a world at rest, and of a world in which everything has been given time to end."""

from __future__ import annotations

from forewarn.control.placement_index import PlacementIndex
from forewarn.core.decision import EnablementMode
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import HostHealth
from forewarn.core.release import start_wait, waits_only_for_gate
from forewarn.core.request import RolloutState
from tests.support.world import World

LIVE = (EventState.SCHEDULED, EventState.STARTED)


def must_be_at_rest(world: World) -> None:
    """Everything due has happened: nothing that could start is left, and the next thing is in the future."""
    wake = world.control.reconciler.next_wake_at()
    assert wake is None or wake > world.now, f"woken for {wake} at {world.now}, and at rest"
    assert not world.store.planned(), "what was accepted is published"
    around = world.control.transactions.decision_context()
    for event in world.store.events(statuses=[EventState.SCHEDULED]):
        scope = world.store.scope(event.scope_id)
        assert scope is not None
        assert start_wait(scope, event, around) is not None, f"§6.2 a ready event starts at once: {event}"
    for gate_id in {event.gate_id for event in world.store.events() if event.gate_id}:
        _judge_gate(world, gate_id)
    for scope_id in world.store.scope_ids():
        _judge_idleness(world, scope_id)
    for event in world.store.events(statuses=[EventState.SCHEDULED]):
        assert not _is_overdue(world, event), f"§6.2 each starts at its own NotBefore at the latest: {event}"
    for event in world.store.events(statuses=[EventState.STARTED]):
        assert event.unfinished_acts or world.policy.settle_s, f"§6.5 nothing is owed, and it is still there: {event}"


def _is_overdue(world: World, event: Event) -> bool:
    """Said without the core: what is no planned maintenance waits for its time alone."""
    back = world.control.transactions.resumed_at
    in_grace = back is not None and event.not_before <= back and world.now < back + world.policy.grace_s
    return not event.rules.planned and world.now >= event.not_before and not in_grace


def _judge_idleness(world: World, scope_id: str) -> None:
    """Spec §8.2: 24 hours of silence disable a scope; never in a lab."""
    scope = world.store.scope(scope_id)
    assert scope is not None
    if world.policy.enablement is EnablementMode.ALWAYS:
        assert scope.is_enabled
    elif scope.enabled_at is not None:
        heard_at = max(scope.enabled_at, scope.last_request_at or 0)
        assert world.now < heard_at + 24 * 3600, f"nobody has asked since {heard_at}, and it is enabled: {scope_id}"


def _judge_gate(world: World, gate_id: str) -> None:
    """Spec §6.2: the events of one host start together."""
    gate = world.store.gate(gate_id)
    assert gate is not None
    events = world.store.events(gate_id=gate_id)
    instants = {event.started_at for event in events if event.started_at is not None}
    waiting = [event for event in events if event.status is EventState.SCHEDULED]
    if gate.released_at is None:
        assert not instants, f"started through a closed gate: {events}"
        assert not waiting or not all(_is_free(world, event) for event in waiting), f"all are free: {waiting}"
    else:
        assert instants <= {gate.released_at}
        assert not waiting, f"left behind by the others on its host: {waiting}"


def _is_free(world: World, event: Event) -> bool:
    scope = world.store.scope(event.scope_id)
    assert scope is not None
    return waits_only_for_gate(scope, event, world.control.transactions.decision_context())


def must_be_over(world: World) -> None:
    """No act is forgotten, and none took effect twice."""
    assert not world.store.events(statuses=LIVE), "everything is over"
    assert not world.store.planned()
    assert world.control.reconciler.next_wake_at() is None or world.policy.settle_s is not None
    acts = {act.id: act for event in world.store.events() for act in event.acts}
    effects = world.ledger.effects()
    assert world.ledger.repeated_effects == 0
    assert len({effect.act_id for effect in effects}) == len(effects)
    assert {effect.act_id for effect in effects} <= set(acts)
    done = {effect.act_id for effect in effects if effect.ended}
    for act in acts.values():
        assert act.outcome is not None, f"an act was forgotten: {act}"
        assert not act.outcome.ok or act.id in done, f"said to be done, and is not: {act}"
    for request in world.store.requests():
        ended = request.rollout is None or request.rollout.progress in (RolloutState.PAUSED, RolloutState.RUNNING)
        assert ended or not request.is_open, f"a rollout that ended is closed: {request}"
        assert request.rollout is None or request.rollout.progress is not RolloutState.RUNNING, f"it goes on: {request}"
    _judge_hosts(world)


def _judge_hosts(world: World) -> None:
    """Who is where, kept from commits, is who is where in the store; and nobody stays where nothing runs."""
    fresh, kept = PlacementIndex(world.store), world.control.placement
    failed = {host.name for host in world.store.hosts() if host.health is HostHealth.FAILED}
    for host in world.store.hosts():
        assert kept.vm_count(host.name) == fresh.vm_count(host.name), f"crowd of {host.name}"
    for vm in world.store.vms():
        for host in world.store.hosts():
            assert kept.has_other_update_domain(host.name, vm) == fresh.has_other_update_domain(host.name, vm)
        if vm.host in failed:
            assert _was_tried(world, vm.name), f"§6.4 {vm} is on a host that has failed, and nobody moves it"


def _was_tried(world: World, name: str) -> bool:
    """Whether a move of this VM failed: then it may stay, and history says why."""
    return any(act.name == name for event in world.store.events() for act in event.failed_acts)
