"""The `Hypervisor` interface: perform an act, and either it is done or it is under way.

A hypervisor that also implements `ObservingHypervisor` reports its VMs, so that changes by others are found.

`forewarn.conformance` holds the tests that every implementation must pass.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.event import Act
from forewarn.core.observation import HostObservation
from forewarn.errors import Unavailable


class ActDone(msgspec.Struct, frozen=True):
    """The act is over. Performing it again returns the same outcome, until it is forgotten as old."""

    ok: bool  # False: the act failed
    note: str = ""  # for people, in the history: what happened, or why it failed


class ActUnderWay(msgspec.Struct, frozen=True):
    """The act is not over yet: perform it again, with the same id, at lab time `at` or later."""

    at: LabTime
    note: str = ""  # for people: progress, or what it waits for
    waits_for_host: str = ""  # a host (by name) that does not answer, and without which it cannot go on; "": none


class ActNotTried(Unavailable):
    """A local problem, such as a full disk, prevented an attempt to perform an act or to record it.

    The attempt does not count as one: the act is performed again later, however often this happens.
    """


class Hypervisor(Protocol):
    """Performs acts on VMs, each at most once. Implementations pass the suite in `forewarn.conformance`."""

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Start this act, or return how it is going; does not wait for lab time to pass.

        An act, known by its id, takes effect at most once, however often this is called, even concurrently or after
        reopening; but an operator's command without a check runs again if the service did not see its end. While
        another call for the VM runs, the answer may only be ActUnderWay. Unavailable means that the outcome is unknown:
        call it again later.
        """

    async def close(self) -> None:
        """Release connections, files and tasks; may be called twice. A later hypervisor finds acts under way."""


@runtime_checkable
class ObservingHypervisor(Protocol):
    """A hypervisor whose hosts can list their VMs."""

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        """The names of the hosts that can be observed, as `observe` takes them, in no particular order."""

    @property
    def observe_interval_s(self) -> float:
        """How many seconds of real time to wait between two observations of a host; 0: never observe."""

    async def observe(self, host: str) -> HostObservation:
        """Return what a host reports about all its VMs, or in `problem` why it does not answer."""

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host whenever its VMs may have changed, as a reason to observe it at once.

        Several changes may be yielded as one, and changes while nobody iterates not at all.
        """
