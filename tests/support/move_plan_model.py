"""A model of a move over two host nodes: the plan of the active node, two ledgers, and everything that can go wrong.

`explore` visits every state that any order of changes can reach. The active node may be killed and forget everything
between any two steps, answers may be lost, orders may arrive late, and either host may be silent, crash, be fenced, be
confirmed down and come back. After a failed move, the next one settles it, as `RemoteHypervisor` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from forewarn.base.times import RealTime
from forewarn.cluster.move_plan import (
    MoveProgress,
    StepOrder,
    StepWait,
    after_fencing,
    after_silence,
    next_step,
)
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport

STOPPED = MoveRelease.STOPPED
_DESTINATION_STEPS = (MoveStep.PREPARE, MoveStep.ACTIVATE, MoveStep.UNDO, MoveStep.FENCE)
AfterSilence = Callable[..., StepOrder | StepWait | ActDone]


class Known(NamedTuple):
    """What the active node knows of the move, in memory."""

    reports: tuple[tuple[MoveStep, bool], ...] = ()
    release: MoveRelease | None = None
    lost_destination: str = ""


class HostState(NamedTuple):
    """One host, its ledger of the move, and the VM there. `silent` hosts work, but nobody hears them."""

    is_running: bool = False  # the VM, on this host
    is_silent: bool = False
    is_down: bool = False
    is_confirmed: bool = False  # the operator said that it is down, which is true
    done: frozenset[str] = frozenset()  # what the ledger has


class PlanState(NamedTuple):
    """Everything that matters about a move at one time."""

    source: HostState = HostState(is_running=True)
    destination: HostState = HostState()
    known: Known = Known()
    late: tuple[MoveStep, MoveRelease | None] | None = None  # an order that may still arrive
    faults: int = 0
    has_source_crashed: bool = False
    has_destination_crashed: bool = False
    ok: bool | None = None  # None: the move has not ended
    is_settled: bool = False  # the next move has settled it


class PlanViolation(AssertionError):
    """A rule of moves does not hold in a reachable state."""


class MovePlanModel:
    """The changes of a move's state; `explore` raises PlanViolation if a rule is broken.

    With `comes_back` False, a host that is down stays down. Wrong parts, to be found out: `decide_after_silence` in
    place of `after_silence`, and with `forgets_returns` a source that reports its release also after it has taken the
    VM back.
    """

    def __init__(
        self,
        act: Act,
        *,
        max_faults: int = 2,
        comes_back: bool = True,
        decide_after_silence: AfterSilence = after_silence,
        forgets_returns: bool = False,
    ) -> None:
        self._act, self._max_faults, self._comes_back = act, max_faults, comes_back
        self._after_silence, self._forgets_returns = decide_after_silence, forgets_returns

    def explore(self) -> int:
        """Visit all states from the beginning of the move and check them; return how many there are."""
        start = PlanState()
        parents: dict[PlanState, list[PlanState]] = {start: []}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            for following in self._changes(state):
                _check(state, following, self._act)
                if following not in parents:
                    parents[following] = []
                    queue.append(following)
                parents[following].append(state)
        can_end = {state for state in parents if state.ok is not None}
        queue.extend(can_end)
        while queue:
            for parent in parents[queue.popleft()]:
                if parent not in can_end:
                    can_end.add(parent)
                    queue.append(parent)
        for state in parents:
            if state not in can_end:
                raise PlanViolation(f"the move can never end: {state}")
        return len(parents)

    def _changes(self, state: PlanState) -> Iterator[PlanState]:
        if state.ok is None:
            yield from self._service_changes(state)
            if state.known != Known():
                yield state._replace(known=Known())  # the active node is killed, and another one begins again
        elif not state.ok and not state.is_settled:
            yield from self._settle(state)
        yield from self._host_changes(state)
        if state.late is not None:
            yield state._replace(late=None)
            step, release = state.late
            if not _host(state, step).is_down:
                for after, _ in self._effects(state._replace(late=None), step, release):
                    yield after
        if state.faults < self._max_faults:
            for fault in _faults(state):
                yield fault._replace(faults=state.faults + 1)

    def _service_changes(self, state: PlanState) -> Iterator[PlanState]:
        progress = self._progress(state.known)
        following = next_step(progress)
        if isinstance(following, ActDone):
            yield state._replace(ok=following.ok)
            return
        step, release = following.step, following.given.release
        host = _host(state, step)
        if not (host.is_silent or host.is_down):
            yield from self._order(state, step, release)
            return
        if host.is_silent and state.late is None and state.faults < self._max_faults:
            yield state._replace(late=(step, release), faults=state.faults + 1)
        for may_fence in (False, True):
            progress = self._progress(state.known)
            progress.clean_up_since = RealTime(0.0)
            answer = self._after_silence(
                progress,
                following,
                "it does not answer",
                is_down=state.source.is_confirmed,
                may_fence=may_fence,
                real_now=1000.0,
                is_destination_down=state.destination.is_confirmed,
            )
            after = state._replace(known=_known(progress))
            if isinstance(answer, StepOrder) and answer.step is MoveStep.FENCE:
                if not (state.destination.is_silent or state.destination.is_down):
                    assert isinstance(after_fencing(progress, ActDone(True)), StepOrder | ActDone)
                    yield _crash_source(after)._replace(known=_known(progress))
            elif isinstance(answer, ActDone):
                yield after._replace(ok=answer.ok)
            else:
                yield after

    def _order(self, state: PlanState, step: MoveStep, release: MoveRelease | None) -> Iterator[PlanState]:
        for after, report in self._effects(state, step, release):
            progress = self._progress(state.known)
            progress.record(step, report)
            yield after._replace(known=_known(progress))
            if state.faults < self._max_faults:
                yield after._replace(faults=state.faults + 1)  # its answer is lost

    def _settle(self, state: PlanState) -> Iterator[PlanState]:
        """Do what the next move does first."""
        if state.source.is_silent or state.source.is_down or state.destination.is_silent or state.destination.is_down:
            return
        for after, withdrawn in self._effects(state, MoveStep.WITHDRAW, None):
            release = withdrawn.handover.release
            following = MoveStep.UNDO if release is None else MoveStep.ACTIVATE
            for settled, _ in self._effects(after, following, release):
                yield settled._replace(is_settled=True)

    def _effects(
        self, state: PlanState, step: MoveStep, release: MoveRelease | None
    ) -> Iterator[tuple[PlanState, StepReport]]:
        """Yield each way in which a host that works carries out a step, with its report."""
        if step in _DESTINATION_STEPS:
            for host, ok in _destination_effects(state.destination, step, release):
                yield state._replace(destination=host), StepReport.of(ActDone(ok))
            return
        for host, ok, released in self._source_effects(state.source, step):
            handover = MoveHandover(release=STOPPED if released else None)
            yield state._replace(source=host), StepReport.of(ActDone(ok), handover)

    def _source_effects(self, host: HostState, step: MoveStep) -> Iterator[tuple[HostState, bool, bool]]:
        has_returned = "returned" in host.done and not self._forgets_returns
        is_released = "released" in host.done and not has_returned
        match step:
            case MoveStep.RELEASE if is_released or has_returned or "refused" in host.done:
                yield host, is_released, is_released
            case MoveStep.RELEASE:
                yield host._replace(is_running=False, done=host.done | {"released"}), True, True
                yield host._replace(done=host.done | {"refused"}), False, False
            case MoveStep.WITHDRAW:
                decided = host if host.done & {"released", "returned"} else host._replace(done=host.done | {"refused"})
                yield decided, True, is_released
            case MoveStep.RETURN:
                yield host._replace(is_running=True, done=host.done | {"returned"}), True, False
            case _:
                yield host, True, False

    def _host_changes(self, state: PlanState) -> Iterator[PlanState]:
        """Yield what operators do, and hosts that come back."""
        for name in ("source", "destination"):
            host: HostState = getattr(state, name)
            if host.is_silent:
                yield _with_host(state, name, host._replace(is_silent=False))
            if host.is_down:
                yield _with_host(state, name, host._replace(is_confirmed=True))
                if self._comes_back:
                    yield _with_host(state, name, host._replace(is_down=False, is_confirmed=False))

    def _progress(self, known: Known) -> MoveProgress:
        progress = MoveProgress(self._act, lost_destination=known.lost_destination)
        progress.reports = {step: StepReport.of(ActDone(ok)) for step, ok in known.reports}
        progress.given = replace(progress.given, release=known.release)
        return progress


def _known(progress: MoveProgress) -> Known:
    reports = tuple((step, done.ok) for step, done in progress.answers.items())
    return Known(reports, progress.given.release, progress.lost_destination)


def _host(state: PlanState, step: MoveStep) -> HostState:
    return state.destination if step in _DESTINATION_STEPS else state.source


def _destination_effects(
    host: HostState, step: MoveStep, release: MoveRelease | None
) -> Iterator[tuple[HostState, bool]]:
    match step:
        case MoveStep.ACTIVATE if host.done & {"activated", "failed", "undone"} or release is None:
            yield host, "activated" in host.done
        case MoveStep.ACTIVATE:
            yield host._replace(is_running=True, done=host.done | {"activated"}), True
            yield host._replace(done=host.done | {"failed"}), False
        case MoveStep.UNDO if "activated" not in host.done:
            yield host._replace(done=host.done | {"undone"}), True
        case MoveStep.UNDO:
            yield host, False
        case _:
            yield host, "undone" not in host.done


def _with_host(state: PlanState, name: str, host: HostState) -> PlanState:
    return state._replace(source=host) if name == "source" else state._replace(destination=host)


def _crash_source(state: PlanState) -> PlanState:
    is_late_there = state.late is not None and state.late[0] not in _DESTINATION_STEPS
    return state._replace(
        source=state.source._replace(is_running=False, is_down=True, is_silent=False),
        has_source_crashed=True,
        late=None if is_late_there else state.late,  # the order is lost with the host
    )


def _faults(state: PlanState) -> Iterator[PlanState]:
    for name in ("source", "destination"):
        host: HostState = getattr(state, name)
        if not (host.is_silent or host.is_down):
            yield _with_host(state, name, host._replace(is_silent=True))
    if not state.source.is_down:
        yield _crash_source(state)
    if not state.destination.is_down:
        is_late_there = state.late is not None and state.late[0] in _DESTINATION_STEPS
        yield state._replace(
            destination=state.destination._replace(is_running=False, is_down=True, is_silent=False),
            has_destination_crashed=True,
            late=None if is_late_there else state.late,
        )


def _check(before: PlanState, after: PlanState, act: Act) -> None:
    if after.source.is_running and after.destination.is_running:
        raise PlanViolation(f"two running copies: {before} → {after}")
    if after.ok is None or before.ok is not None or act.abrupt:
        return
    if after.ok and not after.destination.is_running and not after.has_destination_crashed:
        raise PlanViolation(f"a successful move has lost the VM: {before} → {after}")
    if not after.ok and not after.source.is_running and not after.has_source_crashed:
        raise PlanViolation(f"a failed move has not left the VM running: {before} → {after}")
