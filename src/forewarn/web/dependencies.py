"""What the console is the face of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forewarn.access.link import Links
from forewarn.access.sign_in import SignIn
from forewarn.clock import read_real_time
from forewarn.console.turns import Turns
from forewarn.control.control import Control
from forewarn.core.fleet import Vm
from forewarn.core.history import Sighting
from forewarn.core.pace import Pace
from forewarn.protocol.exchange import Rules


class Keeper(Protocol):
    """The process that holds a VM made of namespaces, while it is connected."""

    @property
    def pid(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def program(self) -> tuple[str, ...] | None: ...


def _nowhere(vm: Vm) -> str:
    return ""


def _usual_rules(location: str) -> Rules:
    return Rules()


Watch = Callable[[Sequence[Sighting]], None]
Ear = Callable[[Sequence[str]], None]


def _nobody_sees(watch: Watch) -> Callable[[], None]:
    return lambda: None


def _nobody_asks(ear: Ear) -> Callable[[], None]:
    return lambda: None


async def _nothing_seen() -> None:
    return


def _unheard(vm: str) -> Pace | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    control: Control
    info: Callable[[], dict[str, Any]]  # what `GET /service` answers
    doctor: Callable[[], Awaitable[Sequence[Any]]]  # checks, each with name, ok, text and remedy
    who: str  # how the history calls whoever asks here
    endpoint_of: Callable[[Vm], str] = _nowhere  # the base URL under which a lab serves a VM; "" on real networks
    rules_for: Callable[[str], Rules] = _usual_rules  # by which VMs of a location are served
    observe: Callable[[], Awaitable[None]] = _nothing_seen  # writes down what VMs were seen to ask until now
    pace: Callable[[str], Pace | None] = _unheard  # how the VM with this key asks; None: it never has
    metrics: Callable[[], Awaitable[bytes]] | None = None  # what Prometheus is told
    follow_sightings: Callable[[Watch], Callable[[], None]] = (
        _nobody_sees  # tells of them until what it returns is called
    )
    follow_asking: Callable[[Ear], Callable[[], None]] = _nobody_asks  # likewise, of VMs that begin to ask: their keys
    shown: Callable[[], Awaitable[None]] | None = None  # returns once VMs are shown what is committed; None: they are
    keepers: Callable[[], Mapping[str, Keeper]] = dict  # those that are connected, by the key of their VM
    links: Links | None = None  # that sign in to the portal once; None: there is none
    sign_in: SignIn | None = None  # None: nobody can sign in, and only the local socket is served
    turns: Turns = field(default_factory=Turns)  # of those who have something rehearsed, which is done one at a time
    real_time: Callable[[], float] = read_real_time  # of tokens, which lab time does not touch
    strict_api_versions: bool = False  # of Azure's API
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set: held requests are answered now
