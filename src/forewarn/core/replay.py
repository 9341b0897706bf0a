"""Replays of a recording: their script, which step of it the scope is shown now, and when the next is due.

Times are lab time. Each loop gets new event ids and times; another speed scales the notices too, so an event never
starts before its NotBefore unless it did in the recording.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.base.times import LabTime, Timestamp
from forewarn.base.wording import first_clauses
from forewarn.core.limits import Name, RecordedBody, WholeNumber
from forewarn.core.scope import Scope
from forewarn.errors import Rejected
from forewarn.protocol import document as wire
from forewarn.protocol.codec import InvalidDocument, Received, ReceivedEvent, decode_document
from forewarn.protocol.document import Document, EventNotice
from forewarn.protocol.versions import ALL_VERSIONS, version_features

# Builds the script of a replay from a recording: which notices or failures to show at which time.
#
# VM names are already those of the lab. Times count from the start of the recording and ids are the recorded ones: both
# are replaced in every loop.

_MIN_LENGTH_S = 1.0  # so that clients can see every loop
_DATE_PRECISION_S = 1.0  # a Date header has whole seconds
_HTTP_STATUSES = frozenset(status.value for status in HTTPStatus)
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
HeaderText = Annotated[str, Meta(pattern=r"^[ -~]*\Z", max_length=1000)]


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recorded answer of the metadata endpoint: when it came, and what it was.

    Without a status there was no answer. Recordings have an answer only if it differs from the one before.
    """

    at_s: Seconds  # since the start of the recording, by the recorder's clock
    date: Timestamp | None = None  # its Date header; None: it had none
    status: WholeNumber | None = None  # None: the connection broke
    content_type: HeaderText = ""  # header; "": it had none
    retry_after: HeaderText = ""  # header, likewise
    body: RecordedBody = b""  # as received; base64 in JSON


class UploadedRecording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recording as a client uploads it for a replay: the answers that one VM got."""

    vm: Name  # the name of the VM it was made in; "": not known
    api_version: Name  # of the recorded polls
    started_at: Timestamp  # by the recorder's clock
    ended_s: Seconds | None = None  # the end, since the start; None: it ends with its last answer
    ended_date: Timestamp | None = None  # the end by the server's clock; None: not known
    answers: Annotated[tuple[RecordedAnswer, ...], Meta(min_length=1, max_length=100_000)]  # in the order they came


class SubstituteAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The HTTP answer that polls get instead of a document, as recorded; without a status, a reset."""

    status: int | None = None  # None: the connection is reset
    content_type: str = ""  # header; "": none
    retry_after: str = ""  # header, likewise
    body: bytes = b""  # b"" for an empty one


class ReplayStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What polls get from `at_s` on until the next step: a list of event notices, or the answer `instead`."""

    at_s: float  # seconds since the start of the loop, at the recorded speed
    notices: tuple[wire.EventNotice, ...] = ()  # NotBefore counts like `at_s`; with `instead`, as in the step before
    grows: int = 0  # by how much the scope's incarnation grows when the step is shown
    instead: SubstituteAnswer | None = None  # None: a document with the notices


class ReplayScript(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one loop of a replay, in order; the last one lists no events."""

    steps: tuple[ReplayStep, ...]

    @property
    def length_s(self) -> float:
        """The duration of one loop at the recorded speed, in seconds: the time of its last step, at least 1."""
        return self.steps[-1].at_s


def build_replay_script(recording: UploadedRecording, *, name: str, names: Mapping[str, str]) -> ReplayScript:
    """Return the script that replays a recording in the VM called `name`: one step per answer, and an end.

    An answer that is not a usable document is replayed as it is, a broken connection as a reset. `names` maps recorded
    VM names to those of the lab; without an entry the recorded VM itself becomes `name`, and others keep theirs.
    """
    if recording.api_version not in ALL_VERSIONS:
        raise Rejected(
            f"the recording was made with api-version {recording.api_version!r}: record with one of "
            f"{', '.join(ALL_VERSIONS)}"
        )
    builder = _ScriptBuilder(recording, name, names)
    *times, end_s = _answer_times(recording)
    for number, (answer, at_s) in enumerate(zip(recording.answers, times, strict=True), start=1):
        builder.add_answer(answer, at_s, number)
    builder.require_names_seen(names)
    last = builder.steps[-1].notices
    return ReplayScript(steps=(*builder.steps, ReplayStep(at_s=max(end_s, _MIN_LENGTH_S), grows=len(last))))


def _answer_times(recording: UploadedRecording) -> list[float]:
    """Return when each answer came and when the recording ended, in server time since the first answer."""
    # The recorder's clock is more precise than a Date header. It counts, unless the server's time runs ahead of it, as
    # the time of a lab does.
    answers = recording.answers
    points = [(answer.at_s, answer.date) for answer in answers]
    points.append((recording.ended_s or answers[-1].at_s, recording.ended_date))
    times: list[float] = []
    zero: float | None = None  # the server's time at the first answer
    for index, (at_s, date) in enumerate(points):
        time_s = times[-1] + max(0.0, at_s - points[index - 1][0]) if times else 0.0
        if date is not None:
            zero = date - time_s if zero is None else zero
            time_s = date - zero if date - zero - time_s > _DATE_PRECISION_S else time_s
        times.append(time_s)
    return times


class _ScriptBuilder:
    def __init__(self, recording: UploadedRecording, name: str, names: Mapping[str, str]) -> None:
        self.steps: list[ReplayStep] = []
        self._recording = recording
        self._underscore = version_features(recording.api_version).underscore
        own = {recording.vm.casefold(): name} if recording.vm else {}
        self._names = own | {old.casefold(): new for old, new in names.items()}
        self._seen_names: set[str] = set()
        self._incarnation: int | None = None
        # Event id and recorded NotBefore → NotBefore since the start of the script
        self._not_before_times: dict[tuple[str, float], float] = {}

    def add_answer(self, answer: RecordedAnswer, at_s: float, number: int) -> None:
        before = self.steps[-1].notices if self.steps else ()
        received = _decoded_document(answer)
        if received is None:
            self.steps.append(ReplayStep(at_s=at_s, notices=before, instead=_substitute_answer(answer, number)))
            return
        now = answer.date if answer.date is not None else self._recording.started_at + answer.at_s
        notices = tuple(self._notice(event, at_s, now, number) for event in received.events)
        grows = self._incarnation_growth(before, notices, received.incarnation)
        self.steps.append(ReplayStep(at_s=at_s, notices=notices, grows=grows))

    def require_names_seen(self, names: Mapping[str, str]) -> None:
        for old in names:
            if old.casefold() not in self._seen_names | {self._recording.vm.casefold()}:
                listed = ", ".join(sorted(self._seen_names)[:5]) or "none"
                raise Rejected(f"no recorded event names VM {old!r}: those named are {listed}")

    def _notice(self, event: ReceivedEvent, at_s: float, now: float, number: int) -> wire.EventNotice:
        if event.kind not in list(wire.Kind) or event.status not in list(wire.NoticeStatus):
            raise Rejected(
                f"answer {number} of the recording lists event {event.id!r}, a {event.kind!r} that is "
                f"{event.status!r}, which no api-version knows: take that line out of the file"
            )
        started = event.status == wire.NoticeStatus.STARTED
        return wire.EventNotice(
            id=event.id.upper(),
            status=wire.NoticeStatus(event.status),
            kind=wire.Kind(event.kind),
            resources=tuple(self._renamed(name) for name in event.resources),
            not_before=None if started or event.not_before is None else self._not_before_in_script(event, at_s, now),
            description=event.description,
            source=wire.EventSource.USER if event.source == wire.EventSource.USER else wire.EventSource.PLATFORM,
            duration_s=-1 if event.duration_s is None else event.duration_s,
        )

    def _not_before_in_script(self, event: ReceivedEvent, at_s: float, now: float) -> float:
        """Keep the notice that the event had when it was first seen: NotBefore never changes (spec §4.2)."""
        assert event.not_before is not None
        return self._not_before_times.setdefault((event.id, event.not_before), at_s + event.not_before - now)

    def _renamed(self, name: str) -> str:
        bare = name.removeprefix("_") if self._underscore else name
        self._seen_names.add(bare.casefold())
        return self._names.get(bare.casefold(), bare)

    def _incarnation_growth(
        self, before: tuple[wire.EventNotice, ...], after: tuple[wire.EventNotice, ...], incarnation: int
    ) -> int:
        """Return the recorded growth; if that is unknown or negative, the number of changes (spec §4.2)."""
        known, self._incarnation = self._incarnation, incarnation
        if known is not None and incarnation > known >= 0:
            return incarnation - known
        return _count_changes(before, after)


def _count_changes(before: Sequence[wire.EventNotice], after: Sequence[wire.EventNotice]) -> int:
    """Return how many notices, by id, were added, removed or changed; 1 if only their order was."""
    old, new = ({notice.id: notice for notice in notices} for notices in (before, after))
    count = len(old.keys() ^ new.keys()) + sum(old[key] != new[key] for key in old.keys() & new.keys())
    return count or int(tuple(before) != tuple(after))


def _decoded_document(answer: RecordedAnswer) -> Received | None:
    if answer.status != HTTPStatus.OK:
        return None
    try:
        received = decode_document(answer.body)
    except InvalidDocument:
        return None
    return None if received.unusable else received


def _substitute_answer(answer: RecordedAnswer, number: int) -> SubstituteAnswer:
    if answer.status is None:
        return SubstituteAnswer()
    if answer.status not in _HTTP_STATUSES or answer.status < HTTPStatus.OK:
        raise Rejected(
            f"answer {number} of the recording has status {answer.status}, which HTTP does not know: "
            "take that line out of the file"
        )
    return SubstituteAnswer(
        status=answer.status, content_type=answer.content_type, retry_after=answer.retry_after, body=answer.body
    )


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
