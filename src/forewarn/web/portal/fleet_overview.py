"""In-memory index of every VM's state by resource group, so that no page reads the whole fleet.

A block is a scope of several VMs, or all standalone VMs of a resource group. Built in batches on first use, then kept
current by the store's commits; call `ensure_built` before any other method.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from forewarn.control.directory import FleetDirectory
from forewarn.control.placement_index import PlacementIndex
from forewarn.control.visibility import VisibleDirectory
from forewarn.core.access import ROLE_RIGHTS, Grant, Right
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import VmState, combine_vm_states, vm_states_during
from forewarn.core.fleet import resource_group_of_scope
from forewarn.core.resource_ids import group_resource_id, is_within_resource
from forewarn.store.interface import AppliedCommit, Store

_STANDALONE_PREFIX = "vms"


class VmBlock:
    """The VMs of one scope, or all standalone VMs of a resource group, by their keys; only the group changes it."""

    __slots__ = ("_group", "_keys", "id", "size")

    def __init__(self, block_id: str, group: GroupOverview) -> None:
        self.id = block_id
        self.size = 0
        self._group = group
        self._keys: list[str] = []  # some may have been removed; `size` counts those that are left

    @property
    def is_standalone(self) -> bool:
        """Whether this block holds standalone VMs, each of which is a scope of its own."""
        return self.id.startswith(f"{_STANDALONE_PREFIX}:")

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the VMs in this block, in the order of their addition."""
        if len(self._keys) != self.size:
            self._compact()
        return self._keys

    def add(self, key: str) -> None:
        """Add the key of a VM that is not in this block. Only `GroupOverview.add_vm` calls it."""
        if len(self._keys) > 2 * self.size + 16:
            self._compact()
        self._keys.append(key)
        self.size += 1

    def _compact(self) -> None:
        self._keys = [key for key in dict.fromkeys(self._keys) if self._group.block_of(key) is self]


class GroupOverview:
    """A resource group: its VMs with their states, in blocks; `non_running` lacks those that are running."""

    __slots__ = ("_block_by_vm", "blocks", "id", "non_running", "resource")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.resource = group_resource_id(*group_id.split("/"))
        self.blocks: dict[str, VmBlock] = {}
        self.non_running: dict[str, VmState] = {}  # every VM that is not here is running
        self._block_by_vm: dict[str, VmBlock] = {}

    @property
    def size(self) -> int:
        """How many VMs the resource group has, in all blocks together."""
        return len(self._block_by_vm)

    def block_of(self, key: str) -> VmBlock | None:
        return self._block_by_vm.get(key)

    def state_of(self, key: str) -> VmState:
        return self.non_running.get(key, VmState.RUNNING) if key in self._block_by_vm else VmState.GONE

    def count_states(self, visible: VisibleKeys) -> Counter[VmState]:
        """Return how many VMs of the group are in each state; states without VMs may be missing."""
        counts = Counter(state for key, state in self.non_running.items() if visible is None or key in visible)
        counts[VmState.RUNNING] = (self.size if visible is None else len(visible)) - counts.total()
        return counts

    def add_vm(self, key: str, block_id: str) -> bool:
        """Put the VM with this key into a block of this group, in the state running."""
        block = self._block_by_vm.get(key)
        if block is not None and block.id == block_id:
            return False
        self.remove_vm(key)
        if (block := self.blocks.get(block_id)) is None:
            block = self.blocks[block_id] = VmBlock(block_id, self)
        block.add(key)
        self._block_by_vm[key] = block
        return True

    def remove_vm(self, key: str) -> bool:
        """Remove the VM with this key and, if it was the last one of its block, the block."""
        block = self._block_by_vm.pop(key, None)
        self.non_running.pop(key, None)
        if block is None:
            return False
        block.size -= 1
        if not block.size:
            del self.blocks[block.id]
        return True

    def set_state(self, key: str, state: VmState) -> None:
        if state is VmState.RUNNING:
            self.non_running.pop(key, None)
        else:
            self.non_running[key] = state


def _block_id_for(scope_id: str) -> str:
    """The id of the block of a scope's VMs: the scope's id; `vms:SUBSCRIPTION/GROUP` for a standalone VM."""
    return f"{_STANDALONE_PREFIX}:{resource_group_of_scope(scope_id)}" if scope_id.startswith("vm:") else scope_id


Derived = TypeVar("Derived")
VmStateChange = tuple[str, VmState]  # a VM's key and its new state
VisibleKeys = frozenset[str] | None  # the VMs of a group that a user may see; None: all
_BATCH_SIZE = 2_000  # VMs indexed before other tasks run
VisibleNames = frozenset[str] | None  # hosts or scope ids that a user may see; None: all
_MAX_CACHED_RESULTS = 16  # of `cached`, for users who may not see everything; one may be large
_MAX_CACHED_VIEWERS = 64  # sets of grants whose visible VMs are cached


class _Locations(NamedTuple):
    scopes: frozenset[str]
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class VisibleScopes:
    """The scopes in which a user may read a present VM, by resource group."""

    by_group: Mapping[str, VisibleNames]  # `SUBSCRIPTION/GROUP` in lower case → ids of scopes; None: all

    def has(self, scope_id: str) -> bool:
        """Return whether the user may read a present VM of the scope with this id. Reads no store."""
        group = resource_group_of_scope(scope_id)
        return group in self.by_group and ((scopes := self.by_group[group]) is None or scope_id in scopes)


class FleetOverview:
    """The state of every present VM, by resource group. Await `ensure_built` before any other method.

    Once it is built, it follows the commits of the store. `seq` is the number of the last history entry that it
    includes. Iterators read the live overview: do not await while you iterate.
    """

    def __init__(self, store: Store, placement: PlacementIndex, directory: FleetDirectory) -> None:
        self._store = store
        self._placement = placement
        self._directory = directory
        self._groups: dict[str, GroupOverview] = {}
        # Scope id → id of a live event → VM key → the state that the event puts the VM into.
        self._event_effects: dict[str, dict[str, Mapping[str, VmState]]] = {}
        self._visible_cache: dict[tuple[Grant, ...], dict[str, frozenset[str]]] = {}
        self._locations_cache: dict[str, dict[VisibleKeys, _Locations]] = {}  # by group id
        self._derived: dict[tuple[Any, tuple[Grant, ...] | None], Any] = {}  # see `cached`
        self._last_commit: Commit | None = None
        self._last_changes: Sequence[VmStateChange] = ()
        self._build_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self.seq = 0  # of the history; the overview includes everything up to it

    async def ensure_built(self) -> None:
        """Build the overview from the store on the first call; later calls wait for that, or return at once."""
        if self._build_task is None or (self._build_task.done() and _has_failed(self._build_task)):
            self._build_task = asyncio.create_task(self._build())
        await asyncio.shield(self._build_task)

    def changes_in(self, commit: Commit) -> Sequence[VmStateChange]:
        """Return key and new state of each VM whose state or block a commit changed; GONE for removed VMs.

        Call it only in a subscriber of the store, for the commit being published; several subscribers may call it.
        """
        if self._last_commit is not commit:
            self._last_commit, self._last_changes = commit, self._apply_commit(commit)
        return self._last_changes

    def state_of(self, key: str) -> VmState:
        """Return the state of the VM with this key; GONE if no present VM has it, or before `ensure_built`."""
        group = self._groups.get(_group_id_of(key))
        return group.state_of(key) if group is not None else VmState.GONE

    def count_states(self, directory: VisibleDirectory) -> dict[VmState, int]:
        """Return how many of the VMs that a user may see are in each state."""
        counts: Counter[VmState] = Counter()
        for group, visible in self.visible_groups(directory):
            counts.update(group.count_states(visible))
        return {state: counts[state] for state in VmState if state is not VmState.GONE}

    def cached(
        self, derive: Callable[[FleetOverview, VisibleDirectory], Derived], directory: VisibleDirectory
    ) -> Derived:
        """Return `derive(self, directory)`, cached until a VM is added, removed or changes its block.

        Users with equal grants share a result. `derive` must be a module-level function, because it is part of the
        cache's key, and its result must not depend on states of VMs.
        """
        key = (derive, None if directory.sees_everything else directory.grants)
        derived: Derived = self._derived.pop(key) if key in self._derived else derive(self, directory)
        self._derived[key] = derived  # at the end: the first one was not used for the longest time
        restricted = [known for known in self._derived if known[1] is not None]
        for known in restricted[:-_MAX_CACHED_RESULTS]:
            del self._derived[known]
        return derived

    def all_groups(self) -> list[GroupOverview]:
        """Return all resource groups that have a present VM, in the order in which the fleet got them."""
        return list(self._groups.values())

    def visible_groups(self, directory: VisibleDirectory) -> Iterator[tuple[GroupOverview, VisibleKeys]]:
        """Yield the groups in which a user may see a VM, each with the keys of these VMs."""
        for group in self._groups.values():
            visible = self._visible_keys_in(group, directory)
            if visible is None or visible:
                yield group, visible

    def visible_keys(self, directory: VisibleDirectory) -> Iterator[str]:
        """Yield the keys of all VMs that a user may see; `directory` is the user's."""
        for group, visible in self.visible_groups(directory):
            for block in group.blocks.values():
                yield from (key for key in block.keys if visible is None or key in visible)

    def visible_hosts(self, directory: VisibleDirectory) -> VisibleNames:
        """Return the names of the hosts with a VM that the user may see; None if they may see everything."""
        if directory.sees_everything:
            return None
        return frozenset[str]().union(*(locations.hosts for locations in self._visible_locations(directory)))

    def visible_scopes(self, directory: VisibleDirectory) -> VisibleNames:
        """Return the ids of the scopes with a present VM that the user may see; None if they see everything."""
        if directory.sees_everything:
            return None
        return frozenset[str]().union(*(locations.scopes for locations in self._visible_locations(directory)))

    def visible_scopes_by_group(self, directory: VisibleDirectory) -> VisibleScopes:
        """Return the scopes with a present VM that the user may see, by resource group."""
        return VisibleScopes(
            {
                group.id: None if visible is None else self._locations_of(group, visible).scopes
                for group, visible in self.visible_groups(directory)
            }
        )

    def _visible_locations(self, directory: VisibleDirectory) -> Iterator[_Locations]:
        return (self._locations_of(group, visible) for group, visible in self.visible_groups(directory))

    def _locations_of(self, group: GroupOverview, visible: VisibleKeys) -> _Locations:
        cached = self._locations_cache.setdefault(group.id, {})
        if visible not in cached:
            if len(cached) >= _MAX_CACHED_VIEWERS:
                del cached[next(iter(cached))]
            cached[visible] = self._locate(group, visible)
        return cached[visible]

    def _locate(self, group: GroupOverview, visible: VisibleKeys) -> _Locations:
        keys = (key for block in group.blocks.values() for key in block.keys) if visible is None else visible
        present = list(filter(self._placement.has_vm, keys))
        scopes, hosts = map(self._placement.scope_of, present), map(self._placement.host_of, present)
        return _Locations(frozenset(scopes), frozenset(filter(None, hosts)))

    def find_by_name(self, directory: VisibleDirectory, text: str, limit: int) -> list[str]:
        """Return the keys of at most `limit` VMs that a user may see whose name contains `text`, best first."""
        if not text:
            return []
        exact: list[str] = []
        beginning: list[str] = []
        containing: list[str] = []
        for group, visible in self.visible_groups(directory):
            start = len(group.id) + 1  # of the name in a key
            for key in (key for block in group.blocks.values() for key in block.keys):
                at = key.find(text, start)
                if at < 0 or (visible is not None and key not in visible):
                    continue
                if at == start and len(key) == start + len(text):
                    exact.append(key)
                elif at == start and len(beginning) < limit:
                    beginning.append(key)
                elif at > start and len(containing) < limit:
                    containing.append(key)
        return [*exact, *beginning, *containing][:limit]

    def _visible_keys_in(self, group: GroupOverview, directory: VisibleDirectory) -> VisibleKeys:
        if directory.can_read(group.resource):
            return None
        if not any(_grants_read_in(grant, group) for grant in directory.grants):
            return frozenset()
        cached = self._visible_cache.setdefault(directory.grants, {})
        if len(self._visible_cache) > _MAX_CACHED_VIEWERS:
            del self._visible_cache[next(iter(self._visible_cache))]
        if group.id not in cached:
            cached[group.id] = frozenset(indexed.key for indexed in directory.vms_within(group.resource))
        return cached[group.id]

    async def _build(self) -> None:
        self._unsubscribe()
        self._groups, self._event_effects = {}, {}
        self._visible_cache, self._locations_cache, self._derived = {}, {}, {}
        keys = iter(self._placement.vm_keys())
        for event in self._store.events(statuses=[EventState.SCHEDULED, EventState.STARTED]):
            self._event_effects.setdefault(event.scope_id, {})[event.id] = vm_states_during(event)
        self._unsubscribe, self.seq = self._store.subscribe(self._on_commit), self._store.last_seq()
        while batch := list(islice(keys, _BATCH_SIZE)):
            for key in filter(self._directory.has, batch):
                self._get_or_add_group(key).add_vm(key, _block_id_for(self._placement.scope_of(key)))
            await asyncio.sleep(0)
        # Most VMs are running: only those with an event or another power state can be in another state.
        affected = {key for events in self._event_effects.values() for effects in events.values() for key in effects}
        for key in affected.union(self._directory.stopped_keys()):
            self._update_vm(key)

    def _on_commit(self, committed: AppliedCommit) -> None:
        self.changes_in(committed.commit)
        self.seq = max(self.seq, committed.seq)

    def _apply_commit(self, commit: Commit) -> Sequence[VmStateChange]:
        changed_keys = dict.fromkeys(vm.key for vm in commit.vms)
        for key in changed_keys:
            self._locations_cache.pop(_group_id_of(key), None)  # the VM may be on another host
        for event in commit.events:
            changed_keys.update(dict.fromkeys(self._apply_event(event)))
        return [(key, state) for key in changed_keys if (state := self._update_vm(key)) is not None]

    def _apply_event(self, event: Event) -> Iterator[str]:
        effects_by_event = self._event_effects.setdefault(event.scope_id, {})
        old, new = effects_by_event.get(event.id, {}), vm_states_during(event)
        if event.is_live:
            effects_by_event[event.id] = new
        else:
            effects_by_event.pop(event.id, None)
        if not effects_by_event:
            del self._event_effects[event.scope_id]
        return (key for key in {**old, **new} if old.get(key) is not new.get(key))

    def _update_vm(self, key: str) -> VmState | None:
        group = self._groups.get(_group_id_of(key))
        if not self._directory.has(key):
            return self._remove_vm(key, group) if group is not None else None
        group = group or self._get_or_add_group(key)
        scope_id = self._placement.scope_of(key)
        is_new = group.add_vm(key, _block_id_for(scope_id))
        if is_new:
            self._invalidate(group)
        before, now = group.state_of(key), self._vm_state(key, scope_id)
        group.set_state(key, now)
        return now if is_new or now is not before else None

    def _get_or_add_group(self, key: str) -> GroupOverview:
        group_id = _group_id_of(key)
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupOverview(group_id)
        return group

    def _remove_vm(self, key: str, group: GroupOverview) -> VmState | None:
        if not group.remove_vm(key):
            return None
        self._invalidate(group)
        if not group.size:
            del self._groups[group.id]
        return VmState.GONE

    def _vm_state(self, key: str, scope_id: str) -> VmState:
        effects_on_vm = (effects.get(key) for effects in self._event_effects.get(scope_id, {}).values())
        return combine_vm_states(effects_on_vm, self._directory.power_of(key))

    def _invalidate(self, group: GroupOverview) -> None:
        self._derived.clear()
        for cached in self._visible_cache.values():
            cached.pop(group.id, None)


def _group_id_of(key: str) -> str:
    return key.rpartition("/")[0]


def _grants_read_in(grant: Grant, group: GroupOverview) -> bool:
    return Right.READ in ROLE_RIGHTS[grant.role] and is_within_resource(group.resource, grant.resource)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
