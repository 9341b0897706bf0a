"""The timeline of one case: everything that was observed, by the service's clock.

Judgements read nothing else. Times are seconds since the start of the case. The structs are the JSON of recordings,
told apart by `type`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

import msgspec

THINNED_TEXT = "only some more are recorded"  # in the disturbance that says when requests were too many to keep all
_SETTLED_S = 4.0  # after a program's start, when its use of resources is first measured
_SHORTEST_RUN_S = 8.0  # of samples, before something can be said about growth and averages


class Poller(StrEnum):
    """Who sent a request: HANDLER, the handler under test, or REFERENCE, the reference poller beside it."""

    HANDLER = "handler"
    REFERENCE = "reference"  # it shows whether the machine was too slow to judge the handler


class Probe(StrEnum):
    """A shell command of the user that tells what the proxy cannot see; exit status 0 means yes."""

    PREPARED = "prepared"  # the handler has finished its preparation
    RECOVERED = "recovered"  # the application works again after the event


class _Observation(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    at: float  # seconds since the start of the case, by the service's clock
    vm: str = ""  # the VM's name; "": the platform, or all VMs


class ProgramStarted(_Observation, frozen=True, kw_only=True, tag="program started"):
    """The crash test began to start the handler's program on VM `vm`: at a boot, or again later."""

    run: int  # 1 for the first start on this VM
    is_boot: bool = False  # whether the VM booted, so that nothing in memory is left


class ProgramExited(_Observation, frozen=True, kw_only=True, tag="program exited"):
    """The handler's program on VM `vm` ended by itself, or was killed, `at` this time of the case."""

    code: int | None  # its exit status; None: a signal ended it
    signal: int | None = None  # the number of the signal; None: it exited
    by_case: bool = False  # whether the case killed it, or an act of the platform did


class ProgramOutput(_Observation, frozen=True, kw_only=True, tag="output"):
    """A line that the handler on VM `vm` wrote to its output or error output, `at` this time of the case."""

    text: str  # without the line break, at most 1000 characters; the 1000th line says that no more are recorded


class ConnectionOpened(_Observation, frozen=True, kw_only=True, tag="connection opened"):
    """A connection to the metadata endpoint of VM `vm` was accepted, `at` this time of the case."""

    by: Poller  # who opened it


class DeliveredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a document, as a poll got it."""

    id: str  # EventId, as the document shows it
    kind: str  # EventType, as the document shows it
    status: str  # Scheduled or Started; another one as the document shows it
    vms: tuple[str, ...]  # Resources, as the document shows them


class Polled(_Observation, frozen=True, kw_only=True, tag="poll"):
    """A GET of the scheduled events, which arrived `at` this time on VM `vm`, and its answer, if any."""

    by: Poller  # who sent it
    status: int | None  # of the answer; None: there was none, or the connection was reset
    version: str = ""  # the api-version that it asked for
    has_header: bool = True  # whether it had `Metadata: true`
    incarnation: int | None = None  # the incarnation of the document; None: it got none
    events: tuple[DeliveredEvent, ...] = ()  # of the document, as it showed them; at most 20 that are not the service's
    answered_at: float | None = None  # when the last byte was sent; None: never
    substitute: str = ""  # which substitute answer it got; "": the service's own


class Approved(_Observation, frozen=True, kw_only=True, tag="approval"):
    """A POST of StartRequests, which arrived `at` this time on VM `vm`, and its answer, if any."""

    by: Poller  # who sent it
    event_ids: tuple[str, ...]  # that it approves, in upper case; () if its body could not be read
    status: int | None  # of the answer; None: there was none, or the connection was reset
    version: str = ""  # the api-version that it named
    has_header: bool = True  # whether it had `Metadata: true`
    problem: str = ""  # why its body could not be read; "": it could
    substitute: str = ""  # which substitute answer it got; "": the service's own
    was_prepared: bool | None = None  # what the probe `prepared` said before it was passed on; None: no answer


class OtherRequest(_Observation, frozen=True, kw_only=True, tag="other request"):
    """A request for something else on the metadata endpoint, which arrived `at` this time on VM `vm`."""

    by: Poller  # who sent it
    method: str  # the HTTP method
    path: str  # without the query
    status: int | None  # of the answer; None: there was none, or the connection was reset


class EventPublished(_Observation, frozen=True, kw_only=True, tag="event published"):
    """The platform published an event `at` this time; `vm` is "" because an event may be for several."""

    event: str  # its id
    kind: str  # its EventType, such as Reboot
    vms: tuple[str, ...]  # names of the VMs that it is for
    not_before: float | None  # seconds since the start of the case; None: it started at once


class EventStarted(_Observation, frozen=True, kw_only=True, tag="event started"):
    """The platform started an event `at` this time, for all its VMs: `vm` is ""."""

    event: str  # its id


class EventEnded(_Observation, frozen=True, kw_only=True, tag="event ended"):
    """An event disappeared `at` this time: it was carried out, or withdrawn; `vm` is ""."""

    event: str  # its id
    is_withdrawn: bool = False  # False: it was carried out


class Impact(_Observation, frozen=True, kw_only=True, tag="impact"):
    """The platform acted on VM `vm` from `at` on: froze, rebooted, moved or removed it."""

    verb: str  # freeze, reboot, redeploy, evict, delete, …
    until: float | None = None  # when the VM ran again; None: it did not before the end of the case
    event: str = ""  # the id of the event that it belongs to


class Disturbance(_Observation, frozen=True, kw_only=True, tag="disturbance"):
    """Something that the case did to VM `vm` (all VMs if it is "") from `at` on: spoiled answers, a kill."""

    text: str  # such as "status 503"
    until: float | None = None  # None: it has no duration, or lasted to the end


class ProbeAnswered(_Observation, frozen=True, kw_only=True, tag="probe"):
    """A probe on VM `vm` changed its answer, or gave its first one; that run of it began `at` this time."""

    probe: Probe  # which of the user's commands
    is_yes: bool  # its command exited with status 0


class ResourcesSampled(_Observation, frozen=True, kw_only=True, tag="resources"):
    """What the handler on VM `vm` used `at` this time, its child processes included."""

    cpu_s: float  # seconds of CPU time of the processes that run now, since their start; may fall when one ends
    memory_bytes: int  # resident; pages that processes share count for each of them
    connections: int  # to the metadata endpoint, open now
    processes: int  # that run now
    starved_s: float = 0.0  # seconds of real time since the last sample in which it had to wait for a CPU


Observation = (
    ProgramStarted
    | ProgramExited
    | ProgramOutput
    | ConnectionOpened
    | Polled
    | Approved
    | OtherRequest
    | EventPublished
    | EventStarted
    | EventEnded
    | Impact
    | Disturbance
    | ProbeAnswered
    | ResourcesSampled
)
T = TypeVar("T", bound=_Observation)


class Timeline(msgspec.Struct, frozen=True):
    """The observations of one case, in the order of their times; all that demands and reports look at."""

    observations: tuple[Observation, ...] = ()  # sorted by time
    ended_at: float = 0.0  # when the case ended, in seconds since its start

    def of(self, kind: type[T], vm: str | None = None) -> list[T]:
        """Return the observations of this type, in order; with `vm` (a name) only those of this VM."""
        return [item for item in self.observations if isinstance(item, kind) and vm in (None, item.vm)]

    def polls(self, vm: str, by: Poller = Poller.HANDLER) -> list[Polled]:
        """Return the polls on this VM (a name), of the handler unless `by` says otherwise, in order."""
        return [poll for poll in self.of(Polled, vm) if poll.by is by]

    def approvals(self, vm: str | None = None, event: str | None = None) -> list[Approved]:
        """Return the handler's approvals, refused ones too, in order: on all VMs or one, of all events or one."""
        return [
            approval
            for approval in self.of(Approved, vm)
            if approval.by is Poller.HANDLER and event in (None, *approval.event_ids)
        ]

    def published(self, event: str) -> EventPublished | None:
        """Return the publication of this event (an id), or None if it was never published."""
        return next((item for item in self.of(EventPublished) if item.event == event), None)

    def delivered_at(self, event: str, vm: str, by: Poller = Poller.HANDLER) -> float | None:
        """Return when the last byte of the first document with this event was sent to a poll on this VM."""
        return next(
            (
                poll.answered_at
                for poll in self.polls(vm, by)
                if poll.answered_at is not None and any(shown.id == event for shown in poll.events)
            ),
            None,
        )

    def is_running(self, vm: str, at: float) -> bool:
        """Return whether the handler's program was running on this VM at this time."""
        states = [
            (item.at, isinstance(item, ProgramStarted))
            for item in self.observations
            if isinstance(item, ProgramStarted | ProgramExited) and item.vm == vm and item.at <= at
        ]
        return bool(states) and states[-1][1]

    def settled_samples(self, vm: str) -> list[list[ResourcesSampled]]:
        """Return the samples of each run of the program on this VM, from four seconds after its start."""
        starts = [item.at for item in self.of(ProgramStarted, vm)] or [0.0]
        samples = self.of(ResourcesSampled, vm)
        runs = [
            [item for item in samples if begin + _SETTLED_S <= item.at <= end]
            for begin, end in zip(starts, [*starts[1:], self.ended_at], strict=True)
        ]
        return [run for run in runs if run and run[-1].at - run[0].at >= _SHORTEST_RUN_S]

    def probe_yes_at(self, probe: Probe, vm: str, *, after: float = 0.0) -> float | None:
        """Return when this probe's answer on this VM first turned to yes, at `after` or later; None: never."""
        return next(
            (
                item.at
                for item in self.of(ProbeAnswered, vm)
                if item.probe is probe and item.is_yes and item.at >= after
            ),
            None,
        )


def build_timeline(observations: Iterable[Observation], ended_at: float) -> Timeline:
    """Return a timeline of these observations, sorted by time; those at the same time keep their order."""
    return Timeline(tuple(sorted(observations, key=lambda item: item.at)), ended_at)


def intervals_between(times: Sequence[float]) -> Iterator[float]:
    """Yield the time from each of these sorted times to the next one; nothing for fewer than two."""
    for earlier, later in pairwise(times):
        yield later - earlier
