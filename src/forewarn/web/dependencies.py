"""The dependencies of the web surfaces: control, and the callables that the composition root provides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from forewarn.auth.sessions import SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.clock import read_real_time
from forewarn.control.control_plane import ControlPlane
from forewarn.core.fleet import Vm
from forewarn.core.history import EventDelivery
from forewarn.explain.polling import PollingPace
from forewarn.protocol.exchange import EndpointRules


class CallerLocks:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # whose, while somebody holds it

    def for_caller(self, who: str) -> asyncio.Lock:
        return self._locks.setdefault(who, asyncio.Lock())


class VmSupervisorInfo(Protocol):
    """The process that holds a VM made of namespaces, while it is connected."""

    @property
    def pid(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def program(self) -> tuple[str, ...] | None: ...


def _no_endpoint(vm: Vm) -> str:
    return ""


def _default_rules(location: str) -> EndpointRules:
    return EndpointRules()


DeliveryListener = Callable[[Sequence[EventDelivery]], None]
PollingListener = Callable[[Sequence[str]], None]


def _no_deliveries(watch: DeliveryListener) -> Callable[[], None]:
    return lambda: None


def _no_polling(ear: PollingListener) -> Callable[[], None]:
    return lambda: None


async def _nothing_to_flush() -> None:
    return


def _no_pace(vm: str) -> PollingPace | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    control: ControlPlane
    service_info: Callable[[], dict[str, Any]]  # what `GET /service` answers
    run_health_checks: Callable[[], Awaitable[Sequence[Any]]]  # checks, each with name, ok, text and remedy
    owner_name: str  # how the history calls whoever asks here
    endpoint_of: Callable[[Vm], str] = _no_endpoint  # the base URL under which a lab serves a VM; "" on real networks
    rules_for: Callable[[str], EndpointRules] = _default_rules  # by which VMs of a location are served
    flush_observations: Callable[[], Awaitable[None]] = (
        _nothing_to_flush  # writes down what VMs were seen to ask until now
    )
    pace_of: Callable[[str], PollingPace | None] = _no_pace  # how the VM with this key asks; None: it never has
    render_metrics: Callable[[], Awaitable[bytes]] | None = None  # what Prometheus is told
    subscribe_deliveries: Callable[[DeliveryListener], Callable[[], None]] = (
        _no_deliveries  # tells of them until what it returns is called
    )
    subscribe_polling: Callable[[PollingListener], Callable[[], None]] = (
        _no_polling  # likewise, of VMs that begin to ask: their keys
    )
    wait_until_published: Callable[[], Awaitable[None]] | None = (
        None  # returns once VMs are shown what is committed; None: they are
    )
    vm_supervisors: Callable[[], Mapping[str, VmSupervisorInfo]] = (
        dict  # those that are connected, by the key of their VM
    )
    sign_in_links: SignInLinks | None = None  # that sign in to the portal once; None: there is none
    sign_in: TokenService | None = None  # None: nobody can sign in, and only the local socket is served
    preview_locks: CallerLocks = field(
        default_factory=CallerLocks
    )  # of those who have something rehearsed, which is done one at a time
    real_time: Callable[[], float] = read_real_time  # of tokens, which lab time does not touch
    strict_api_versions: bool = False  # of Azure's API
    shutting_down: asyncio.Event = field(default_factory=asyncio.Event)  # set: held requests are answered now
