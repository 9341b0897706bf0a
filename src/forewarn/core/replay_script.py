"""From what was recorded to what is to be shown when: the script of a replay (docs/record-replay.md).

Names are the lab's from here on. Times are seconds since the story began, ids still those of the recording; both become
new with every telling (`core.replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from forewarn.errors import Rejected
from forewarn.protocol import document as wire
from forewarn.protocol.codec import Received, ReceivedEvent, Unreadable, decode
from forewarn.protocol.versions import VERSIONS, shows

_SHORTEST_S = 1.0  # so that every telling is to be seen
_DATE_S = 1.0  # a Date has whole seconds, so it may be off by that much
_STATUSES = frozenset(status.value for status in HTTPStatus)
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
Line = Annotated[str, Meta(pattern=r"^[ -~]*\Z", max_length=1000)]


class Taken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recorded answer."""

    at_s: Seconds  # by the recorder's own clock
    date: Seconds | None = None  # the server's
    status: int | None = None  # None: the connection broke
    content_type: Line = ""
    retry_after: Line = ""
    body: bytes = b""


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    vm: str  # the name of the VM that it was made in; "": not known
    api_version: str
    started_at: Seconds
    ended_s: Seconds | None = None  # None: it was cut off after its last answer
    ended_date: Seconds | None = None
    answers: Annotated[tuple[Taken, ...], Meta(min_length=1, max_length=100_000)]


class Instead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What polls get while no document is shown."""

    status: int | None = None  # None: the connection is reset
    content_type: str = ""
    retry_after: str = ""
    body: bytes = b""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_s: float
    notices: tuple[wire.Notice, ...] = ()  # below an `Instead` they stay as they were
    grows: int = 0  # the incarnation, by so much
    instead: Instead | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one telling; the last one leaves nothing listed."""

    steps: tuple[Step, ...]

    @property
    def length_s(self) -> float:
        return self.steps[-1].at_s


def script_of(recording: Recording, *, name: str, names: Mapping[str, str]) -> Script:
    """What a VM called `name` is shown. `names` are others to be replaced; Rejected if this cannot be told again."""
    if recording.api_version not in VERSIONS:
        raise Rejected(
            f"the recording was made with api-version {recording.api_version!r}: record with one of "
            f"{', '.join(VERSIONS)}"
        )
    reading = _Reading(recording, name, names)
    *instants, end_s = _instants(recording)
    for number, (taken, at_s) in enumerate(zip(recording.answers, instants, strict=True), start=1):
        reading.take(taken, at_s, number)
    reading.must_have_met(names)
    last = reading.steps[-1].notices
    return Script(steps=(*reading.steps, Step(at_s=max(end_s, _SHORTEST_S), grows=len(last))))


def _instants(recording: Recording) -> list[float]:
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
            instant = date - zero if date - zero - instant > _DATE_S else instant
        instants.append(instant)
    return instants


class _Reading:
    """The steps found so far, and what the next one depends on."""

    def __init__(self, recording: Recording, name: str, names: Mapping[str, str]) -> None:
        self.steps: list[Step] = []
        self._recording = recording
        self._underscore = shows(recording.api_version).underscore
        own = {recording.vm.casefold(): name} if recording.vm else {}
        self._names = own | {old.casefold(): new for old, new in names.items()}
        self._met: set[str] = set()
        self._incarnation: int | None = None
        self._due: dict[tuple[str, float], float] = {}  # event and its NotBefore → when that is in the story

    def take(self, taken: Taken, at_s: float, number: int) -> None:
        before = self.steps[-1].notices if self.steps else ()
        received = _document_in(taken)
        if received is None:
            self.steps.append(Step(at_s=at_s, notices=before, instead=_instead(taken, number)))
            return
        now = taken.date if taken.date is not None else self._recording.started_at + taken.at_s
        notices = tuple(self._notice(event, at_s, now, number) for event in received.events)
        grows = self._growth(before, notices, received.incarnation)
        self.steps.append(Step(at_s=at_s, notices=notices, grows=grows))

    def must_have_met(self, names: Mapping[str, str]) -> None:
        for old in names:
            if old.casefold() not in self._met | {self._recording.vm.casefold()}:
                listed = ", ".join(sorted(self._met)[:5]) or "none"
                raise Rejected(f"no recorded event names VM {old!r}: those named are {listed}")

    def _notice(self, event: ReceivedEvent, at_s: float, now: float, number: int) -> wire.Notice:
        if event.kind not in list(wire.Kind) or event.status not in list(wire.Status):
            raise Rejected(
                f"answer {number} of the recording lists event {event.id!r}, a {event.kind!r} that is "
                f"{event.status!r}, which no api-version knows: take that line out of the file"
            )
        started = event.status == wire.Status.STARTED
        return wire.Notice(
            id=event.id.upper(),
            status=wire.Status(event.status),
            kind=wire.Kind(event.kind),
            resources=tuple(self._named(name) for name in event.resources),
            not_before=None if started or event.not_before is None else self._in_story(event, at_s, now),
            description=event.description,
            source=wire.Source.USER if event.source == wire.Source.USER else wire.Source.PLATFORM,
            duration_s=-1 if event.duration_s is None else event.duration_s,
        )

    def _in_story(self, event: ReceivedEvent, at_s: float, now: float) -> float:
        """As much later as it was when the event was first met: it never changes while scheduled (spec §4.2)."""
        assert event.not_before is not None
        return self._due.setdefault((event.id, event.not_before), at_s + event.not_before - now)

    def _named(self, name: str) -> str:
        bare = name.removeprefix("_") if self._underscore else name
        self._met.add(bare.casefold())
        return self._names.get(bare.casefold(), bare)

    def _growth(self, before: tuple[wire.Notice, ...], after: tuple[wire.Notice, ...], incarnation: int) -> int:
        """As recorded; where that is not known, or went back, as many as the changes are (spec §4.2)."""
        known, self._incarnation = self._incarnation, incarnation
        if known is not None and incarnation > known >= 0:
            return incarnation - known
        return changes(before, after)


def changes(before: Sequence[wire.Notice], after: Sequence[wire.Notice]) -> int:
    """Events added, removed, and changed; at least 1 where the lists differ in any way."""
    old, new = ({notice.id: notice for notice in notices} for notices in (before, after))
    count = len(old.keys() ^ new.keys()) + sum(old[key] != new[key] for key in old.keys() & new.keys())
    return count or int(tuple(before) != tuple(after))


def _document_in(taken: Taken) -> Received | None:
    if taken.status != HTTPStatus.OK:
        return None
    try:
        return decode(taken.body)
    except Unreadable:
        return None


def _instead(taken: Taken, number: int) -> Instead:
    if taken.status is None:
        return Instead()
    if taken.status not in _STATUSES or taken.status < HTTPStatus.OK:
        raise Rejected(
            f"answer {number} of the recording has status {taken.status}, which HTTP does not know: "
            "take that line out of the file"
        )
    return Instead(status=taken.status, content_type=taken.content_type, retry_after=taken.retry_after, body=taken.body)
