"""Checks of a world at rest, and of a world in which all events have had time to end."""

from __future__ import annotations

from forewarn.control.placement_index import PlacementIndex
from forewarn.core.decision import EnablementMode
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import HostHealth
from forewarn.core.release import start_wait, waits_only_for_gate
from forewarn.core.request import RolloutState
from tests.support.world import World

LIVE = (EventState.SCHEDULED, EventState.STARTED)


def assert_at_rest(world: World) -> None:
    """Assert that all due work is done: no event could start, and the next due time is in the future."""
    wake = world.control.reconciler.next_wake_at()
    assert wake is None or wake > world.now, f"due at {wake}, but at rest at {world.now}"
    assert not world.store.planned(), "planned events are left"
    for event in world.store.events(statuses=[EventState.SCHEDULED]):
        scope = world.store.scope(event.scope_id)
        assert scope is not None
        context = world.control.transactions.context_for(scope)
        assert start_wait(scope, event, context) is not None, f"§6.2 a ready event starts at once: {event}"
    for gate_id in {event.gate_id for event in world.store.events() if event.gate_id}:
        _check_gate(world, gate_id)
    for scope_id in world.store.scope_ids():
        _check_idleness(world, scope_id)
    for request in world.store.requests(open_only=True):
        if request.rollout is not None and request.rollout.has_paused_itself:
            left = world.store.events(request_id=request.id, statuses=[EventState.SCHEDULED])
            assert not left, f"§13.5 a bad check withdraws what has not started: {request}"
    for event in world.store.events(statuses=[EventState.SCHEDULED]):
        assert not _is_overdue(world, event), f"§6.2 each starts at its own NotBefore at the latest: {event}"
    for event in world.store.events(statuses=[EventState.STARTED]):
        assert event.unfinished_acts or world.policy.settle_s, (
            f"§6.5 all acts are finished, but the event is live: {event}"
        )


def _is_overdue(world: World, event: Event) -> bool:
    """Computed without `core`: an event that is not planned maintenance waits only for its NotBefore."""
    resumed_at = world.control.transactions.resumed_at
    in_grace = (
        resumed_at is not None and event.not_before <= resumed_at and world.now < resumed_at + world.policy.grace_s
    )
    return not event.rules.planned and world.now >= event.not_before and not in_grace and not _is_moving(world, event)


def _is_moving(world: World, event: Event) -> bool:
    """Spec §6.4: an act is performed where the VM is, so an event waits until its VMs have arrived."""
    started = world.store.events(scope_id=event.scope_id, statuses=[EventState.STARTED])
    moving = {act.name for other in started for act in other.unfinished_acts if act.to_host}
    return bool(moving & set(event.vms))


def _check_idleness(world: World, scope_id: str) -> None:
    """Spec §8.2: 24 hours of silence disable a scope; never in a lab."""
    scope = world.store.scope(scope_id)
    assert scope is not None
    if world.policy.enablement is EnablementMode.ALWAYS:
        assert scope.is_enabled
    elif scope.enabled_at is not None:
        last_poll_at = max(scope.enabled_at, scope.last_request_at or 0)
        assert world.now < last_poll_at + 24 * 3600, f"no poll since {last_poll_at}, but enabled: {scope_id}"


def _check_gate(world: World, gate_id: str) -> None:
    """Spec §6.2: the events of one host start together."""
    gate = world.store.gate(gate_id)
    assert gate is not None
    events = world.store.events(gate_id=gate_id)
    instants = {event.started_at for event in events if event.started_at is not None}
    waiting = [event for event in events if event.status is EventState.SCHEDULED]
    if gate.released_at is None:
        assert not instants, f"started through a closed gate: {events}"
        assert not waiting or not all(_is_ready(world, event) for event in waiting), f"all are ready: {waiting}"
    else:
        assert not instants or min(instants) == gate.released_at, f"a release without a start is void: {events}"
        assert not waiting, f"left behind by the others on its host: {waiting}"


def _is_ready(world: World, event: Event) -> bool:
    scope = world.store.scope(event.scope_id)
    assert scope is not None
    return waits_only_for_gate(scope, event, world.control.transactions.context_for(scope))


def assert_all_over(world: World) -> None:
    """Assert that all events are over, no act was lost, and none took effect twice."""
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
        assert act.outcome is not None, f"an act has no outcome: {act}"
        assert not act.outcome.ok or act.id in done, f"reported as done without an effect: {act}"
    for request in world.store.requests():
        ended = request.rollout is None or request.rollout.progress in (RolloutState.PAUSED, RolloutState.RUNNING)
        assert ended or not request.is_open, f"a rollout that ended is closed: {request}"
        assert request.rollout is None or request.rollout.progress is not RolloutState.RUNNING, (
            f"still running: {request}"
        )
    _check_hosts(world)


def _check_hosts(world: World) -> None:
    """Assert that the placement index equals the store, and that no VM stays on a failed host."""
    rebuilt, index = PlacementIndex(world.store), world.control.placement
    sizes = [{name: len(part) for name, part in vars(each).items()} for each in (index, rebuilt)]
    assert sizes[0] == sizes[1], "the placement index keeps only what the store has"
    failed = {host.name for host in world.store.hosts() if host.health is HostHealth.FAILED}
    for host in world.store.hosts():
        assert index.vm_count(host.name) == rebuilt.vm_count(host.name), f"VM count of {host.name}"
    for vm in world.store.vms():
        for host in world.store.hosts():
            found, expected = (each.domains_on(host.name, vm.scope_id) for each in (index, rebuilt))
            assert set(found) == set(expected), f"domains of {vm.scope_id} on {host.name}"
        if vm.host in failed:
            assert _has_failed_act(world, vm.name), f"§6.4 {vm} stays on a failed host"


def _has_failed_act(world: World, name: str) -> bool:
    """Return whether an act on this VM failed: then it may stay on the failed host."""
    return any(act.name == name for event in world.store.events() for act in event.failed_acts)
