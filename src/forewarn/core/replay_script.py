"""Builds the script of a replay from a recording: which notices or failures to show at which time.

VM names are already those of the lab. Times count from the start of the recording and ids are the recorded ones;
`core.replay` replaces both in every loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.errors import Rejected
from forewarn.protocol import document as wire
from forewarn.protocol.codec import InvalidDocument, Received, ReceivedEvent, decode_document
from forewarn.protocol.versions import VERSIONS, version_features

_MIN_LENGTH_S = 1.0  # so that every telling is to be seen
_DATE_PRECISION_S = 1.0  # a Date has whole seconds, so it may be off by that much
_HTTP_STATUSES = frozenset(status.value for status in HTTPStatus)
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
HeaderText = Annotated[str, Meta(pattern=r"^[ -~]*\Z", max_length=1000)]


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recorded answer."""

    at_s: Seconds  # by the recorder's own clock
    date: Seconds | None = None  # the server's
    status: int | None = None  # None: the connection broke
    content_type: HeaderText = ""
    retry_after: HeaderText = ""
    body: bytes = b""


class UploadedRecording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    vm: str  # the name of the VM that it was made in; "": not known
    api_version: str
    started_at: Seconds
    ended_s: Seconds | None = None  # None: it was cut off after its last answer
    ended_date: Seconds | None = None
    answers: Annotated[tuple[RecordedAnswer, ...], Meta(min_length=1, max_length=100_000)]


class SubstituteAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What polls get while no document is shown."""

    status: int | None = None  # None: the connection is reset
    content_type: str = ""
    retry_after: str = ""
    body: bytes = b""


class ReplayStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_s: float
    notices: tuple[wire.EventNotice, ...] = ()  # below an `Instead` they stay as they were
    grows: int = 0  # the incarnation, by so much
    instead: SubstituteAnswer | None = None


class ReplayScript(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one telling; the last one leaves nothing listed."""

    steps: tuple[ReplayStep, ...]

    @property
    def length_s(self) -> float:
        return self.steps[-1].at_s


def build_replay_script(recording: UploadedRecording, *, name: str, names: Mapping[str, str]) -> ReplayScript:
    """What a VM called `name` is shown. `names` are others to be replaced; Rejected if this cannot be told again."""
    if recording.api_version not in VERSIONS:
        raise Rejected(
            f"the recording was made with api-version {recording.api_version!r}: record with one of "
            f"{', '.join(VERSIONS)}"
        )
    reading = _ScriptBuilder(recording, name, names)
    *instants, end_s = _answer_times(recording)
    for number, (taken, at_s) in enumerate(zip(recording.answers, instants, strict=True), start=1):
        reading.add_answer(taken, at_s, number)
    reading.require_names_seen(names)
    last = reading.steps[-1].notices
    return ReplayScript(steps=(*reading.steps, ReplayStep(at_s=max(end_s, _MIN_LENGTH_S), grows=len(last))))


def _answer_times(recording: UploadedRecording) -> list[float]:
    """When each answer came, and when the recording ended, since the first answer, in the server's time.

    The recorder's clock is finer than a Date, so it counts, unless the server's time went ahead of it, as a lab's does.
    """
    answers = recording.answers
    points = [(taken.at_s, taken.date) for taken in answers]
    points.append((recording.ended_s or answers[-1].at_s, recording.ended_date))
    instants: list[float] = []
    zero: float | None = None  # the server's time at the first answer
    for index, (at_s, date) in enumerate(points):
        instant = instants[-1] + max(0.0, at_s - points[index - 1][0]) if instants else 0.0
        if date is not None:
            zero = date - instant if zero is None else zero
            instant = date - zero if date - zero - instant > _DATE_PRECISION_S else instant
        instants.append(instant)
    return instants


class _ScriptBuilder:
    """The steps found so far, and what the next one depends on."""

    def __init__(self, recording: UploadedRecording, name: str, names: Mapping[str, str]) -> None:
        self.steps: list[ReplayStep] = []
        self._recording = recording
        self._underscore = version_features(recording.api_version).underscore
        own = {recording.vm.casefold(): name} if recording.vm else {}
        self._names = own | {old.casefold(): new for old, new in names.items()}
        self._seen_names: set[str] = set()
        self._incarnation: int | None = None
        self._not_before_times: dict[
            tuple[str, float], float
        ] = {}  # event and its NotBefore → when that is in the story

    def add_answer(self, taken: RecordedAnswer, at_s: float, number: int) -> None:
        before = self.steps[-1].notices if self.steps else ()
        received = _decoded_document(taken)
        if received is None:
            self.steps.append(ReplayStep(at_s=at_s, notices=before, instead=_substitute_answer(taken, number)))
            return
        now = taken.date if taken.date is not None else self._recording.started_at + taken.at_s
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
        """As much later as it was when the event was first met: it never changes while scheduled (spec §4.2)."""
        assert event.not_before is not None
        return self._not_before_times.setdefault((event.id, event.not_before), at_s + event.not_before - now)

    def _renamed(self, name: str) -> str:
        bare = name.removeprefix("_") if self._underscore else name
        self._seen_names.add(bare.casefold())
        return self._names.get(bare.casefold(), bare)

    def _incarnation_growth(
        self, before: tuple[wire.EventNotice, ...], after: tuple[wire.EventNotice, ...], incarnation: int
    ) -> int:
        """As recorded; where that is not known, or went back, as many as the changes are (spec §4.2)."""
        known, self._incarnation = self._incarnation, incarnation
        if known is not None and incarnation > known >= 0:
            return incarnation - known
        return count_changes(before, after)


def count_changes(before: Sequence[wire.EventNotice], after: Sequence[wire.EventNotice]) -> int:
    """Events added, removed, and changed; at least 1 where the lists differ in any way."""
    old, new = ({notice.id: notice for notice in notices} for notices in (before, after))
    count = len(old.keys() ^ new.keys()) + sum(old[key] != new[key] for key in old.keys() & new.keys())
    return count or int(tuple(before) != tuple(after))


def _decoded_document(taken: RecordedAnswer) -> Received | None:
    if taken.status != HTTPStatus.OK:
        return None
    try:
        return decode_document(taken.body)
    except InvalidDocument:
        return None


def _substitute_answer(taken: RecordedAnswer, number: int) -> SubstituteAnswer:
    if taken.status is None:
        return SubstituteAnswer()
    if taken.status not in _HTTP_STATUSES or taken.status < HTTPStatus.OK:
        raise Rejected(
            f"answer {number} of the recording has status {taken.status}, which HTTP does not know: "
            "take that line out of the file"
        )
    return SubstituteAnswer(
        status=taken.status, content_type=taken.content_type, retry_after=taken.retry_after, body=taken.body
    )
