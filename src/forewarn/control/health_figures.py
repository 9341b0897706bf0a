"""The service's own figures about the VMs of a rollout, which a health check may demand (spec §13.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forewarn.base.wording import first_names
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace, PollingState, polling_state
from forewarn.core.fleet import PowerState, Vm, VmCondition, vm_key_in_scope
from forewarn.core.health import CheckOutcome, CheckResult, HealthCheck, OwnFigure, judge_values
from forewarn.core.request import Rollout
from forewarn.store.interface import LastPoll, Store

RETURN_LIMIT_S = 300.0  # lab time within which a VM polls again after its maintenance, or counts as not back
_MAX_NAMES = 3

PaceLookup = Callable[[str], PollingPace | None]  # by VM key; None for a VM that never polled


def measure_figure(
    check: HealthCheck,
    store: Store,
    rollout: Rollout,
    vms: Sequence[Vm],
    events: Sequence[Event],
    pace: PaceLookup,
    now: float,
) -> CheckResult:
    """Return the figure of this check as it is now, compared with the condition of the check.

    What happened to its events before its current wave began, or before a person last resumed it, does not count. Reads
    deliveries, polls and VMs from the store, which takes long for many VMs: call it in a thread.
    """
    assert check.figure is not None
    ended = [
        (event, act, act.outcome)
        for event in events
        for act in event.acts
        if act.outcome is not None and _counts(rollout, act.outcome.at)
    ]
    match check.figure:
        case OwnFigure.FAILED_ACTS:
            names = [act.name for _, act, outcome in ended if not outcome.ok]
        case OwnFigure.WITHOUT_HANDLER:
            names = vms_without_handler(vms, pace)
        case OwnFigure.UNDELIVERED:
            started = [e for e in events if e.started_at is not None and _counts(rollout, e.started_at)]
            names = _undelivered_vms(store, started)
        case OwnFigure.NOT_BACK:
            waiting, names = _vms_not_back(store, vms, ended, now)
            if waiting and not names:
                text = f"{_count_text(waiting)} not polled yet since their maintenance"
                return CheckResult(CheckOutcome.UNCLEAR, text, float(len(waiting)))
    return figure_result(check, names)


def figure_result(check: HealthCheck, names: Sequence[str]) -> CheckResult:
    """Return what a figure means for a check: the number of these names, compared with its condition."""
    found = judge_values(check.condition, [("", float(len(names)))])
    text = f"{found.text} ({first_names(names, _MAX_NAMES)})" if names else found.text
    return CheckResult(found.outcome, text, found.value)


def vms_without_handler(vms: Iterable[Vm], pace: PaceLookup) -> list[str]:
    """Return the names of the running VMs that have not polled within the last 60 s, in their order."""
    silent = (PollingState.NEVER, PollingState.STOPPED)
    return [vm.name for vm in vms if vm.power is PowerState.RUNNING and polling_state(pace(vm.key)) in silent]


def pace_from_store(store: Store, now: Callable[[], float]) -> PaceLookup:
    """Return a lookup of how VMs poll, by VM key, from the polls in the store alone, in lab time."""
    known: dict[str, LastPoll] | None = None

    def pace(key: str) -> PollingPace | None:
        nonlocal known
        if known is None:
            known = {poll.vm: poll for poll in store.last_polls()}
        poll = known.get(key)
        return None if poll is None else PollingPace(silent_s=max(0.0, now() - poll.at - poll.wait_s))

    return pace


def _counts(rollout: Rollout, at: float) -> bool:
    """Return whether what happened at this lab time counts: in the current wave, and since it was resumed."""
    is_in_wave = rollout.wave_began_at is None or at >= rollout.wave_began_at
    return is_in_wave and (rollout.resumed_at is None or at > rollout.resumed_at)


def _undelivered_vms(store: Store, started: Sequence[Event]) -> list[str]:
    listed = [event for event in started if event.listed]
    given = store.events_given_before_start([event.id for event in listed]) if listed else set()
    return [name for event in listed if event.id not in given for name in event.vms]


def _vms_not_back(
    store: Store, vms: Iterable[Vm], ended: Iterable[tuple[Event, Act, ActOutcome]], now: float
) -> tuple[list[str], list[str]]:
    """Return the VMs that polled before their maintenance and not since: within the limit, and beyond."""
    # A VM that has never polled has no handler that could come back, so it does not count; nor does one that was
    # removed or turned off meanwhile.
    over = {
        vm_key_in_scope(event.scope_id, act.name): (act.name, outcome.at)
        for event, act, outcome in ended
        if outcome.ok and event.status is EventState.OVER and CAUSE_RULES[event.cause].verb
    }
    if not over:
        return [], []
    polls = {poll.vm: poll for poll in store.last_polls()}
    covered = {vm.key: vm for vm in vms}
    silent = {
        key: (name, at)
        for key, (name, at) in over.items()
        if key in polls and polls[key].at + min(polls[key].wait_s, SILENCE_LIMIT_S) < at
    }
    absent = [found for key, found in silent.items() if _should_run(covered.get(key) or store.vm(key))]
    waiting = [name for name, at in absent if now - at <= RETURN_LIMIT_S]
    return waiting, [name for name, at in absent if now - at > RETURN_LIMIT_S]


def _should_run(vm: Vm | None) -> bool:
    """Return whether the VM is present, and nobody has turned it off: one that crashed should run."""
    if vm is None or vm.removed_at is not None:
        return False
    return vm.power is PowerState.RUNNING or vm.condition is VmCondition.CRASHED


def _count_text(names: Sequence[str]) -> str:
    have = "VM has" if len(names) == 1 else "VMs have"
    return f"{len(names)} {have}"
