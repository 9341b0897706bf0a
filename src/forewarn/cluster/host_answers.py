"""The facts that a host node shows, and the rule that it never goes back to an older state of a scope.

Without I/O. A fact about a scope replaces an earlier one only if its (epoch, version) is not older than any that the
node has shown of that scope, however it arrived: by the stream, with a complete state, or with the reply to a call.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from msgspec.structs import replace

from forewarn.base.clock import Clock
from forewarn.cluster.bus import Bus, NoAnswer, Subjects, request_repeatedly
from forewarn.cluster.messages import (
    HostFact,
    HostScope,
    NodeDenied,
    RecordPosition,
    VmCall,
    VmCallReply,
    decode_from_active,
    encode_bus_message,
)
from forewarn.errors import Rejected, Unavailable
from forewarn.metadata import ListenerSpec
from forewarn.metadata.workers.frontend import MetadataFrontend
from forewarn.metadata.workers.messages import (
    ApproveRequest,
    EnableRequest,
    FaultsUpdate,
    RequestDone,
    RequestFailed,
    TokenDenied,
    TokenGranted,
    WorkerRequest,
    WorkerTokenRequest,
)
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource
from forewarn.protocol.responses import service_unavailable

log = logging.getLogger(__name__)


class HostFacts:
    """The scopes and faults that a host node shows its VMs, in memory; empty at first."""

    def __init__(self) -> None:
        self.scopes: dict[str, HostScope] = {}
        self.faults = FaultsUpdate(())
        # Scope id → epoch and version of the newest fact, also of scopes that left; then whether it left unnoticed.
        self._newest: dict[str, tuple[int, int, bool]] = {}

    @property
    def vm_keys(self) -> list[str]:
        """The keys of the VMs on this host or on their way to it, in a new list, in no particular order."""
        return [vm for scope in self.scopes.values() for vm in scope.update.vms]

    def apply(self, facts: Iterable[HostFact]) -> list[HostFact]:
        """Take over these facts, and return those that change what VMs are shown, in the given order."""
        return [fact for fact in facts if self._take(fact)]

    def install(self, facts: Iterable[HostFact]) -> list[HostFact]:
        """Take over a complete state: scopes that are not in it leave this host. Return what changes."""
        facts = tuple(facts)
        named = {fact.update.scope_id for fact in facts if isinstance(fact, HostScope)}
        left = [_without_vms(scope) for scope_id, scope in self.scopes.items() if scope_id not in named]
        changes = self.apply([*left, *facts])
        for scope in left:  # it left with a version that is not known: a late fact of the known one is too old
            self._newest[scope.update.scope_id] = (*scope.order, True)
        return changes

    def _take(self, fact: HostFact) -> bool:
        if isinstance(fact, FaultsUpdate):
            changed, self.faults = fact != self.faults, fact
            return changed
        scope_id = fact.update.scope_id
        shown = self.scopes.get(scope_id)
        order = (*fact.order, False)
        if order < self._newest.get(scope_id, order):
            return False
        self._newest[scope_id] = order
        if fact.update.vms:
            self.scopes[scope_id] = fact
        else:
            self.scopes.pop(scope_id, None)
        return fact != shown and (shown is not None or bool(fact.update.vms))


def _without_vms(scope: HostScope) -> HostScope:
    return replace(scope, update=replace(scope.update, vms={}), addresses={})


# Shows the facts of a host to its VMs: turns them into published scopes and places of a frontend.


class HostServer:
    """Keeps what a host node's frontend shows to VMs equal to the node's facts.

    Call `show_all` once the frontend is prepared, and `show` with every change of `facts` after that.
    """

    def __init__(self, frontend: MetadataFrontend, facts: HostFacts, listeners: Iterable[ListenerSpec]) -> None:
        self._frontend = frontend
        self._facts = facts
        self._named_places = tuple(assignment for spec in listeners for assignment in spec.assignments)
        self._addresses: dict[str, dict[str, str]] = {}  # scope id → VM key → source address
        self._ambiguous: set[str] = set()  # names that were warned about
        self._is_stale = False

    def show_all(self) -> None:
        """Show all facts: publish the scopes and faults, and record where their VMs call from."""
        self.show([*self._facts.scopes.values(), self._facts.faults])

    def show(self, changes: Iterable[HostFact]) -> None:
        """Show facts that have changed: publish them, and record where their VMs call from."""
        for fact in changes:
            if isinstance(fact, HostScope):
                self._show_scope(fact)
            else:
                self._frontend.set_faults(fact.faults)
        self._assign_named_places()

    def set_stale(self, is_stale: bool) -> None:
        """Answer polls with 503 (`is_stale` True), or with the documents again (False), from now on."""
        if is_stale != self._is_stale:
            self._is_stale = is_stale
            for scope in self._facts.scopes.values():
                self._show_scope(scope)

    def _show_scope(self, scope: HostScope) -> None:
        published = scope.update.to_published_scope()
        self._frontend.publish(
            dataclasses.replace(published, poll_override=service_unavailable()) if self._is_stale else published
        )
        callers, scope_id = self._frontend.callers, scope.update.scope_id
        for vm, address in self._addresses.get(scope_id, {}).items():
            if scope.addresses.get(vm) != address and callers.vm_at(address) == vm:
                callers.release(address)
        for vm, address in scope.addresses.items():
            callers.assign(address, vm)
        self._addresses[scope_id] = scope.addresses
        if not scope.addresses:
            del self._addresses[scope_id]

    def _assign_named_places(self) -> None:
        if not self._named_places:
            return
        find = _name_index(self._facts)
        for place, name in self._named_places:
            keys = find(name)
            if len(keys) == 1:
                self._frontend.callers.assign(place, keys[0])
                continue
            self._frontend.callers.release(place)
            if len(keys) > 1 and name not in self._ambiguous:
                self._ambiguous.add(name)
                log.warning("a listener is for VM %r, but %d VMs have that name: write group/name", name, len(keys))


def _name_index(facts: HostFacts) -> Callable[[str], list[str]]:
    keys: dict[str, list[str]] = {}
    for scope in facts.scopes.values():
        for key in scope.update.vms:
            _, group, name = key.split("/", 2)
            for alias in (key, f"{group}/{name}", name):
                keys.setdefault(alias, []).append(key)
    return lambda wanted: keys.get(wanted.casefold(), [])


# The `MetadataBackend` of a host node: sends what VMs ask for to the active node.

CALL_TIMEOUT_S = 5.0


class HostBackend:
    """The `MetadataBackend` of a host node: sends what VMs ask for to the active control node."""

    # A call is repeated for 5 s, then it raises Unavailable: it may have taken effect, which does no harm when the VM
    # repeats it. `show` gets the scopes that come with a reply, before the VM gets its answer, so that it sees what it
    # caused.

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        host: str,
        node_id: str,
        *,
        clock: Clock,
        show: Callable[[Sequence[HostScope], RecordPosition], None],
        on_denied: Callable[[NodeDenied], None],
    ) -> None:
        self._bus, self._subject, self._node_id = bus, subjects.request(host), node_id
        self._show, self._on_denied = show, on_denied
        self._ids = count(1)
        self._clock = clock

    def now(self) -> float:
        return self._clock.now()

    async def enable(self, vm: str) -> None:
        await self._call(EnableRequest(next(self._ids), vm))

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await self._call(ApproveRequest(next(self._ids), vm, event_ids))
        return unknown.unknown if isinstance(unknown, RequestDone) else None

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        reply = await self._call(WorkerTokenRequest(next(self._ids), identity, resource))
        if isinstance(reply, TokenGranted):
            return reply.token
        assert isinstance(reply, TokenDenied)
        return WrongResource(accepted=reply.accepted)

    async def _call(self, request: WorkerRequest) -> RequestDone | TokenGranted | TokenDenied:
        payload = encode_bus_message(VmCall(self._node_id, request))
        try:
            answer = decode_from_active(
                await request_repeatedly(self._bus, self._subject, payload, within_s=CALL_TIMEOUT_S)
            )
        except (NoAnswer, Rejected) as error:
            raise Unavailable("the service does not answer: try again later") from error
        if isinstance(answer, NodeDenied):
            self._on_denied(answer)
        if not isinstance(answer, VmCallReply):
            raise Unavailable("the service refuses calls of this node now: try again later")
        self._show(answer.scopes, answer.record)
        if isinstance(answer.reply, RequestFailed):
            raise answer.reply.to_error()
        return answer.reply
