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
from forewarn.store.record import NodeRow
from forewarn.web.connection_slots import ConnectionShares


class CallerLocks:
    """One asyncio lock per caller, kept only while it is in use."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by principal id

    def for_caller(self, principal_id: str) -> asyncio.Lock:
        """The lock of the principal with this id; does not acquire it.

        Each call for the same id returns the same lock while anybody has a reference to it, else a new one.
        """
        return self._locks.setdefault(principal_id, asyncio.Lock())


class VmSupervisorInfo(Protocol):
    """The connected supervisor process of a namespace VM."""

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""

    @property
    def state(self) -> str:
        """The state of the VM: `running`, `frozen`, `down` or `ended`."""

    @property
    def boot_id(self) -> str:
        """The id of the VM's current boot; every start of the VM has another."""

    @property
    def program(self) -> tuple[str, ...] | None:
        """The command line of the VM's program; None if the VM has none."""


class ControlNodeView(Protocol):
    """The control node of a cluster that this service runs on."""

    @property
    def name(self) -> str:
        """The name of this node, unique in the cluster."""

    @property
    def active_name(self) -> str:
        """The name of the node that has the lease, this or another one; "" if none has it.

        It is the one that this node knew last, and this node also while it starts or is suspended.
        """

    @property
    def active_term(self) -> int:
        """The term of the lease of the node that `active_name` names; 0 if that is ""."""

    @property
    def problem(self) -> str:
        """What is wrong with it, in a sentence: why it cannot write or take over; "" if nothing is."""

    @property
    def clock_difference_s(self) -> float:
        """How far this machine's clock is ahead of that of PostgreSQL, in seconds; negative if it is behind.

        As it was last measured; an active node does not measure it.
        """

    @property
    def nodes(self) -> Sequence[NodeRow]:
        """All control nodes, sorted by name: this one as it is, the others as they described themselves last.

        As they were read last, so empty before the first time.
        """

    def resign(self) -> None:
        """Give control to another node; returns at once, before that is done.

        Raises Refused if this node is not active, or no other one can take it.
        """


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
    """What handlers need beside the caller: the control plane, and callables from the composition root.

    The service makes one instance for all requests. A default stands for a service without that feature. `service_info`
    returns the body of `GET /service` without `endpoint`; `endpoint_of` the URL at which a lab serves a VM; `rules_for`
    the rules of the metadata server in a location. `flush_observations` stores the polls and deliveries observed so
    far; `pace_of` says how the VM with a key polls; both `subscribe_…` return a function that ends the subscription.
    `real_time` is for tokens and sessions, which lab time does not affect. Without `sign_in`, only the unix socket is
    served.
    """

    control: ControlPlane
    # Returns the body of `GET /service` without `endpoint`; a new dict.
    service_info: Callable[[], dict[str, Any]]
    # Results of the health checks, each with name, ok, text and remedy.
    run_health_checks: Callable[[], Awaitable[Sequence[Any]]]  # of the service; one result per check
    # The name of the unix socket's caller in the history.
    owner_name: str  # of the user that runs the service, the caller on the unix socket
    # The base URL at which a lab serves a VM; empty on a real network.
    endpoint_of: Callable[[Vm], str] = _no_endpoint
    # The rules by which the metadata server answers VMs of a location.
    rules_for: Callable[[str], EndpointRules] = _default_rules
    # Stores the deliveries and polls (of up to some thousand VMs) observed until now, for reads; errors are logged.
    flush_observations: Callable[[], Awaitable[None]] = _nothing_to_flush
    # How often the VM with this key polls, and how long ago it last did; None if it never did.
    pace_of: Callable[[str], PollingPace | None] = _no_pace
    # The Prometheus exposition; None if this service has no metrics.
    render_metrics: Callable[[], Awaitable[bytes]] | None = None  # Prometheus text; None: no metrics
    # Both call the listener until the returned function is called.
    subscribe_deliveries: Callable[[DeliveryListener], Callable[[], None]] = _no_deliveries  # to batches, once stored
    subscribe_polling: Callable[[PollingListener], Callable[[], None]] = _no_polling  # to VMs that start to poll
    # Returns when VMs are shown all that is committed; None if a commit returns no earlier.
    wait_until_published: Callable[[], Awaitable[None]] | None = None  # waits until workers have all events
    # The connected supervisors of namespace VMs, by VM key.
    vm_supervisors: Callable[[], Mapping[str, VmSupervisorInfo]] = dict  # by VM key, those that run
    # Issues and redeems one-time links that sign in to the portal; None if there is no portal.
    sign_in_links: SignInLinks | None = None  # None: no links
    # None: there is no sign-in, and only the unix socket is served.
    sign_in: TokenService | None = None
    # A caller's previews run one at a time.
    preview_locks: CallerLocks = field(default_factory=CallerLocks)  # one preview at a time per caller
    # How the connections of each socket are divided among callers.
    connection_shares: ConnectionShares = field(default_factory=ConnectionShares.from_open_files)
    # For tokens and sessions, which lab time does not affect.
    real_time: Callable[[], float] = read_real_time
    # Whether the ARM facade rejects missing and unknown api-versions.
    strict_api_versions: bool = False  # ARM refuses api-versions that Azure does not have
    # The hypervisor and what it acts on, for people: `simulated: no real VM is touched, …`; "": not known.
    hypervisor_text: str = ""  # which one, for people
    # The control node that this service runs on; None if it runs alone.
    control_node: ControlNodeView | None = None  # None: not in a cluster
    # The host nodes that answer VMs and act, as the service knows them now; None: this machine does.
    host_nodes: Callable[[], Sequence[HostNodeInfo]] | None = None  # None: the service has no host nodes
    # Set on shutdown: long polls answer at once.
    shutting_down: asyncio.Event = field(default_factory=asyncio.Event)  # set when the service stops

    @property
    def is_cluster(self) -> bool:
        """Whether the service has other nodes: control nodes that can take over, or host nodes."""
        return self.control_node is not None or self.host_nodes is not None
