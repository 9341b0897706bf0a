"""Facts of hosts for tests, and a model of the active node's side of one stream."""

from __future__ import annotations

from forewarn.cluster.messages import (
    Heartbeat,
    HostFact,
    HostScope,
    HostUpdate,
    JoinAccepted,
    StatePart,
    StreamPosition,
    StreamSource,
)
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.workers.messages import BeginServing, FaultsUpdate, ScopeUpdate
from forewarn.protocol.document import Document
from forewarn.protocol.instance import InstanceFacts

BEGIN = BeginServing(ServingSettings(), "tag")


def a_host_scope(name: str, version: int, *, epoch: int = 1, vms: int = 1) -> HostScope:
    """A scope `vm:sub/lab/NAME` with this many VMs on the host; its document shows the version."""
    keys = [f"sub/lab/{name}-{number}" for number in range(vms)]
    facts = {
        key: InstanceFacts(
            name=key,
            vm_id=key,
            resource_id=key,
            location="westeurope",
            subscription_id="sub",
            resource_group="lab",
        )
        for key in keys
    }
    update = ScopeUpdate(f"set:sub/lab/{name}", True, epoch, Document(incarnation=version, notices=()), facts)
    return HostScope(update, version)


class ModelStream:
    """The active node of one host: scopes with versions, numbered updates, and states in parts of one fact."""

    def __init__(self, source: StreamSource, scopes: dict[str, HostScope] | None = None) -> None:
        self.source = source
        self.number = 0
        self.scopes: dict[str, HostScope] = dict(scopes or {})
        self.versions: dict[str, int] = {name: scope.version for name, scope in self.scopes.items()}
        self.joins = 0
        self._states: dict[str, list[HostFact]] = {}

    def change(self, name: str, vms: int) -> HostUpdate:
        """Commit a change of a scope, which then has this many VMs on the host."""
        self.versions[name] = self.versions.get(name, 0) + 1
        scope = a_host_scope(name, self.versions[name], vms=vms)
        if vms:
            self.scopes[name] = scope
        else:
            self.scopes.pop(name, None)
        self.number += 1
        return HostUpdate(self.position, (scope,))

    @property
    def position(self) -> StreamPosition:
        return StreamPosition(self.source, self.number)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.source)

    def join(self) -> JoinAccepted:
        """The reply to a request for the state."""
        self.joins += 1
        join_id = f"{self.source.session}-{self.joins}"
        facts: list[HostFact] = [FaultsUpdate(()), *self.scopes.values()]
        self._states = {join_id: facts}
        return JoinAccepted(self.position, BEGIN, join_id, len(facts), (facts[0],))

    def part(self, join_id: str, index: int) -> StatePart | None:
        """The reply to a request for a part; None if that state is no longer kept."""
        facts = self._states.get(join_id)
        return StatePart(join_id, index, (facts[index],)) if facts else None
