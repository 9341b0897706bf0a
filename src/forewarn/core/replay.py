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

from forewarn.core.replay_script import ReplayScript, ReplayStep, SubstituteAnswer
from forewarn.core.scope import Scope
from forewarn.protocol.document import Document, EventNotice

KNOWN_EVENT_IDS_S = 24 * 3600.0  # spec §5.2: for so long ids count as approved when their event is over


class ReplayEnding(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"  # by somebody
    INTERRUPTED = "interrupted"  # by an event of the scope's own, or because the VM went


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    vm: str  # the VM's key
    name: str
    scope_id: str
    begun_at: float  # this telling
    steps: int  # of one telling
    length_s: float  # of one telling, at the speed it was recorded at
    speed: float = 1.0
    loops: int = 1
    loop: int = 0  # tellings that are over
    done: int = 0  # steps of this telling that were shown
    ended: ReplayEnding | None = None
    ended_at: float | None = None
    reason: str = ""

    @property
    def ends_at(self) -> float:
        return self.begun_at + (self.loops - self.loop) * self.length_s / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedAnswer:
    """What takes the place of the scope's own document."""

    document: Document
    instead: SubstituteAnswer | None = None


def next_step_at(replay: Replay, script: ReplayScript) -> float | None:
    """When the next step is to be shown."""
    return None if replay.ended else replay.begun_at + script.steps[replay.done].at_s / replay.speed


def next_step(replay: Replay, script: ReplayScript) -> ReplayStep:
    return script.steps[replay.done]


def advance_replay(replay: Replay, script: ReplayScript, now: float) -> Replay:
    """The replay once its next step is shown."""
    if replay.done + 1 < len(script.steps):
        return msgspec.structs.replace(replay, done=replay.done + 1)
    if replay.loop + 1 < replay.loops:
        begun_at = replay.begun_at + script.length_s / replay.speed
        return msgspec.structs.replace(replay, done=0, loop=replay.loop + 1, begun_at=begun_at)
    return msgspec.structs.replace(replay, done=replay.done + 1, ended=ReplayEnding.FINISHED, ended_at=now)


def interruption_reason(replay: Replay, scope: Scope | None) -> str:
    """Why the replay cannot go on, if so: what really happens to the scope comes first."""
    if scope is None or all(vm.key != replay.vm for vm in scope.present_vms):
        return f"VM {replay.name} is gone"
    own = next((event for event in scope.live_events() if event.listed), None)
    return f"the scope has an event of its own, {own.id}" if own else ""


def current_answer(replay: Replay, script: ReplayScript, replay_id: str, scope: Scope) -> ReplayedAnswer | None:
    """None: the scope shows its own document."""
    if replay.ended or not replay.done or interruption_reason(replay, scope):
        return None
    step = script.steps[replay.done - 1]
    document = Document(
        incarnation=scope.incarnation, notices=step_notices(step, replay, replay_id), roles=scope.is_cloud_service
    )
    return ReplayedAnswer(document=document, instead=step.instead)


def step_notices(step: ReplayStep, replay: Replay, replay_id: str) -> tuple[EventNotice, ...]:
    """The events of a step with the ids and times of this telling."""
    return tuple(
        replace(
            notice,
            id=replayed_event_id(replay_id, replay.loop, notice.id),
            not_before=_shifted_time(notice.not_before, replay),
        )
        for notice in step.notices
    )


def _shifted_time(not_before: float | None, replay: Replay) -> float | None:
    # Whole seconds, as the wire shows them, never less.
    return None if not_before is None else float(math.ceil(replay.begun_at + not_before / replay.speed))


def replayed_event_id(replay_id: str, loop: int, event_id: str) -> str:
    """One and the same for an event throughout a telling, and never twice."""
    return str(uuid.uuid5(uuid.UUID(replay_id), f"{loop}/{event_id}")).upper()


def shown_event_ids(replay: Replay, script: ReplayScript, replay_id: str, *, only_now: bool = False) -> Iterator[str]:
    """The ids that VMs were shown until now, or in this telling only."""
    for loop in range(replay.loop if only_now else 0, replay.loop + 1):
        steps = script.steps if loop < replay.loop else script.steps[: replay.done]
        for event_id in {notice.id for step in steps for notice in step.notices}:
            yield replayed_event_id(replay_id, loop, event_id)


def describe_step(step: ReplayStep) -> str:
    """A step in words, for the history."""
    if step.instead is not None:
        return _describe_substitute(step.instead)
    if not step.notices:
        return "no events"
    listed = [f"{n.kind} of {', '.join(n.resources) or 'nobody'} {n.status.lower()}" for n in step.notices[:3]]
    more = f" and {len(step.notices) - 3} more" if len(step.notices) > 3 else ""
    return "; ".join(listed) + more


def _describe_substitute(instead: SubstituteAnswer) -> str:
    if instead.status is None:
        return "connections reset"
    return f"status {instead.status}" + ("" if instead.body else " with an empty body")
