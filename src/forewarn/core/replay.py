"""State of a replay: which step of its script the scope is shown now, and when the next one is due.

Times are lab time. Each loop gets new event ids and times; another speed scales the notices too, so an event never
starts before its NotBefore unless it did in the recording.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime
from forewarn.base.wording import first_clauses
from forewarn.core.replay_script import ReplayScript, ReplayStep, SubstituteAnswer
from forewarn.core.scope import Scope
from forewarn.protocol.document import Document, EventNotice

KNOWN_EVENT_IDS_S = 24 * 3600.0  # after a replay, approvals of its event ids are accepted this long (spec §5.2)


class ReplayEnding(StrEnum):
    """How a replay ended: finished, stopped by a user, or interrupted by a real event or a removed VM."""

    FINISHED = "finished"  # all loops were shown
    STOPPED = "stopped"  # by a user
    INTERRUPTED = "interrupted"  # by a real event of the scope, or because the VM was removed


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a replay, which shows a recording to the scope of one VM. A loop shows all steps once."""

    vm: str  # the VM's key
    name: str  # the VM's name
    scope_id: str  # all VMs of this scope see the replay; if it is narrow, each only events that name it
    loop_started_at: LabTime  # when the current loop began, or will
    steps: int  # of one loop
    length_s: float  # seconds of one loop, at the recorded speed
    speed: float = 1.0  # 2: twice as fast as recorded; 0.01 to 10,000
    loops: int = 1  # in all, 1 to 1,000
    loop: int = 0  # index of the current loop, from 0; after the end, of the last one
    done: int = 0  # steps of the current loop that were shown
    outcome: ReplayEnding | None = None  # None: it goes on
    ended_at: LabTime | None = None  # None: it goes on
    reason: str = ""  # for people: why it ended early; "": it did not

    @property
    def ends_at(self) -> float:
        """The lab time at which the last loop of the replay ends as planned; `ended_at` is its actual end."""
        return self.loop_started_at + (self.loops - self.loop) * self.length_s / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedAnswer:
    """What VMs get during a replay: this document, or the answer `instead` of any document."""

    document: Document  # with `instead`, polls do not get it
    instead: SubstituteAnswer | None = None  # None: the document


def next_step_at(replay: Replay, script: ReplayScript) -> float | None:
    """Return the lab time, maybe past, at which the next step of the replay is due; None after its end."""
    return None if replay.outcome else replay.loop_started_at + script.steps[replay.done].at_s / replay.speed


def next_step(replay: Replay, script: ReplayScript) -> ReplayStep:
    """Return the step of the script to show next, due or not. The replay must not have ended."""
    return script.steps[replay.done]


def advance_replay(replay: Replay, script: ReplayScript, now: float) -> Replay:
    """Return the replay after its next step was shown: one step further, in the next loop, or finished."""
    if replay.done + 1 < len(script.steps):
        return msgspec.structs.replace(replay, done=replay.done + 1)
    if replay.loop + 1 < replay.loops:
        begun_at = replay.loop_started_at + script.length_s / replay.speed
        return msgspec.structs.replace(replay, done=0, loop=replay.loop + 1, loop_started_at=begun_at)
    return msgspec.structs.replace(replay, done=replay.done + 1, outcome=ReplayEnding.FINISHED, ended_at=now)


def interruption_reason(replay: Replay, scope: Scope | None) -> str:
    """Return why the replay must end: its VM was removed, or the scope lists an event of its own. Else ""."""
    if scope is None or all(vm.key != replay.vm for vm in scope.present_vms):
        return f"VM {replay.name} was removed"
    own = next((event for event in scope.live_events() if event.listed), None)
    return f"the scope has an event of its own, {own.id}" if own else ""


def current_answer(replay: Replay, script: ReplayScript, replay_id: str, scope: Scope) -> ReplayedAnswer | None:
    """Return what polls of the scope get now because of the replay; None: the scope's own document."""
    if replay.outcome or not replay.done or interruption_reason(replay, scope):
        return None
    step = script.steps[replay.done - 1]
    document = Document(
        incarnation=scope.incarnation, notices=_step_notices(step, replay, replay_id), roles=scope.is_cloud_service
    )
    return ReplayedAnswer(document=document, instead=step.instead)


def _step_notices(step: ReplayStep, replay: Replay, replay_id: str) -> tuple[EventNotice, ...]:
    return tuple(
        replace(
            notice,
            id=_replayed_event_id(replay_id, replay.loop, notice.id),
            not_before=_shifted_time(notice.not_before, replay),
        )
        for notice in step.notices
    )


def _shifted_time(not_before: float | None, replay: Replay) -> float | None:
    # Documents show whole seconds; rounding up never shortens a notice.
    return None if not_before is None else float(math.ceil(replay.loop_started_at + not_before / replay.speed))


def _replayed_event_id(replay_id: str, loop: int, event_id: str) -> str:
    return str(uuid.uuid5(uuid.UUID(replay_id), f"{loop}/{event_id}")).upper()


def shown_event_ids(replay: Replay, script: ReplayScript, replay_id: str, *, only_now: bool = False) -> Iterator[str]:
    """Yield the ids of the replayed events that VMs were shown so far, in no particular order, each once."""
    for loop in range(replay.loop if only_now else 0, replay.loop + 1):
        steps = script.steps if loop < replay.loop else script.steps[: replay.done]
        for event_id in {notice.id for step in steps for notice in step.notices}:
            yield _replayed_event_id(replay_id, loop, event_id)


def describe_step(step: ReplayStep) -> str:
    """Return a step in words, for the history: `Freeze of web scheduled`, `no events`, `status 503`."""
    if step.instead is not None:
        return _describe_substitute(step.instead)
    if not step.notices:
        return "no events"
    return first_clauses([f"{n.kind} of {', '.join(n.resources) or 'no VM'} {n.status.lower()}" for n in step.notices])


def _describe_substitute(instead: SubstituteAnswer) -> str:
    if instead.status is None:
        return "connections reset"
    return f"status {instead.status}" + ("" if instead.body else " with an empty body")
