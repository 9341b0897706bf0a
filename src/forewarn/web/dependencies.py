"""The dependencies of the web surfaces: control, and the callables that the composition root provides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from forewarn.auth.sessions import SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.base.clock import read_real_time
from forewarn.control.control_plane import ControlPlane
from forewarn.core.control_node import NodeRow
from forewarn.core.explain.polling import PollingPace
from forewarn.core.fleet import Vm
from forewarn.core.history import EventDelivery
from forewarn.protocol.exchange import EndpointRules
from forewarn.web.connection_slots import ConnectionShares


class CallerLocks:
    """One asyncio lock for each caller, kept only while it is in use."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal id

    def for_caller(self, principal_id: str) -> asyncio.Lock:
        """Return the lock of the principal with this id; does not acquire it."""
        return self._locks.setdefault(principal_id, asyncio.Lock())


class VmSupervisorInfo(Protocol):
    """The supervisor process of a namespace VM, while it is connected, and what it knows about its VM."""

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""

    @property
    def state(self) -> str:
        """The state of the VM: `running`, `frozen`, `down` (shut down) or `ended` (its program has ended)."""

    @property
    def boot_id(self) -> str:
        """The id of the VM's current boot; every start of the VM has another one."""

    @property
    def program(self) -> tuple[str, ...] | None:
        """The command line of the program that runs in the VM; None if the VM has none."""


class ControlNodeView(Protocol):
    """The control node of a cluster that this service runs on. Its properties are read from memory."""

    @property
    def name(self) -> str:
        """The name of this node, unique in the cluster."""

    @property
    def active_name(self) -> str:
        """The name of the control node that has the lease, this or another one; "" if none has it.

        Another node is named as this node last knew it, which may be old while the record (PostgreSQL) does not answer.
        """

    @property
    def active_term(self) -> int:
        """The term (number) of the lease of the active control node, this or another one; 0 if none has it."""

    @property
    def problem(self) -> str:
        """What is wrong with this node, as a sentence: why it cannot write or take over; "" if nothing is."""

    @property
    def clock_difference_s(self) -> float:
        """How many seconds this machine's clock is ahead of PostgreSQL's; negative if it is behind."""

    @property
    def nodes(self) -> Sequence[NodeRow]:
        """All control nodes, sorted by name: this one as it is, the others as they described themselves last."""

    def resign(self) -> None:
        """Make this active control node give control to another one; returns at once, before that is done."""


HostNodeInfo = Mapping[str, Any]  # a host node, by the keys that `NodeRegistry.describe` names


def _no_endpoint(vm: Vm) -> str:
    return ""


def _default_rules(location: str) -> EndpointRules:
    return EndpointRules()


DeliveryListener = Callable[[Sequence[EventDelivery]], None]  # called with new deliveries of events to VMs
PollingListener = Callable[[Sequence[str]], None]  # called with the keys of VMs that started to poll


def _no_deliveries(listener: DeliveryListener) -> Callable[[], None]:
    return lambda: None


def _no_polling(listener: PollingListener) -> Callable[[], None]:
    return lambda: None


async def _nothing_to_flush() -> None:
    return


def _no_pace(vm: str) -> PollingPace | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What handlers need beside the caller: the control plane, and functions of the running service.

    A default stands for a service without that feature. Both `subscribe_…` functions call the listener until the
    function that they return is called.
    """

    control: ControlPlane  # the use cases, which check no rights
    service_info: Callable[[], dict[str, Any]]  # the body of `GET /service` without `endpoint`; a new dict
    run_health_checks: Callable[[], Awaitable[Sequence[Any]]]  # one result per check: name, ok, text and remedy
    owner_name: str  # of the user that runs the service, the caller on the unix socket; the history shows it
    endpoint_of: Callable[[Vm], str] = _no_endpoint  # the base URL at which a lab serves a VM; "" on a real network
    rules_for: Callable[[str], EndpointRules] = _default_rules  # how the metadata server answers VMs of a location
    # Stores the deliveries and polls (of up to some thousand VMs) observed until now, for reads; errors are logged.
    flush_observations: Callable[[], Awaitable[None]] = _nothing_to_flush  # stores polls and deliveries; raises nothing
    pace_of: Callable[[str], PollingPace | None] = _no_pace  # how the VM with this key polls; None: it never did
    render_metrics: Callable[[], Awaitable[bytes]] | None = None  # Prometheus text; None: no metrics
    # Both call the listener until the returned function is called.
    subscribe_deliveries: Callable[[DeliveryListener], Callable[[], None]] = _no_deliveries  # to batches, once stored
    subscribe_polling: Callable[[PollingListener], Callable[[], None]] = _no_polling  # to VMs that start to poll
    # Returns when VMs are shown all that is committed.
    wait_until_published: Callable[[], Awaitable[None]] | None = None  # waits for VMs to see it; None: they do at once
    vm_supervisors: Callable[[], Mapping[str, VmSupervisorInfo]] = dict  # the connected ones, by VM key
    sign_in_links: SignInLinks | None = None  # one-time links that sign in to the portal; None: there is no portal
    sign_in: TokenService | None = None  # None: there is no sign-in, and only the unix socket is served
    preview_locks: CallerLocks = field(default_factory=CallerLocks)  # one preview at a time per caller
    # How the connections of each socket are divided among callers.
    connection_shares: ConnectionShares = field(default_factory=ConnectionShares.from_open_files)
    real_time: Callable[[], float] = read_real_time  # for tokens and sessions, which lab time does not affect
    strict_api_versions: bool = False  # Azure's API refuses missing api-versions, and those that Azure does not have
    hypervisor_text: str = ""  # what acts are performed on, such as `simulated processes`; "": not known
    control_node: ControlNodeView | None = None  # that this service runs on; None: it runs alone
    host_nodes: Callable[[], Sequence[HostNodeInfo]] | None = None  # that answer VMs and act; None: this machine does
    shutting_down: asyncio.Event = field(default_factory=asyncio.Event)  # set when it stops: long polls answer at once

    @property
    def is_cluster(self) -> bool:
        """Whether the service is part of a cluster: with other control nodes, or with host nodes."""
        return self.control_node is not None or self.host_nodes is not None
