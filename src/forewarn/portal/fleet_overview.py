"""The state of every VM of the fleet, in memory, so that a page reads only the part it shows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from forewarn.control.placement_index import PlacementIndex
from forewarn.core.access import ROLE_RIGHTS, Grant, Right
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import resource_group_of_scope
from forewarn.core.resource_ids import group_resource_id, is_within_resource
from forewarn.explain.vm_state import VmState, combine_vm_states, vm_states_during
from forewarn.store.interface import AppliedCommit, Store
from forewarn.web.authorization import VisibleDirectory
from forewarn.web.directory import FleetDirectory

_STANDALONE_PREFIX = "vms"


class VmBlock:
    """Keys only: what a page shows of a VM it reads when it shows it."""

    __slots__ = ("_group", "_keys", "id", "size")

    def __init__(self, block_id: str, group: GroupOverview) -> None:
        self.id = block_id
        self.size = 0
        self._group = group
        self._keys: list[str] = []  # in the order they came; some may have left

    @property
    def is_standalone(self) -> bool:
        return self.id.startswith(f"{_STANDALONE_PREFIX}:")

    @property
    def keys(self) -> Sequence[str]:
        if len(self._keys) != self.size:
            self._compact()
        return self._keys

    def add(self, key: str) -> None:
        if len(self._keys) > 2 * self.size + 16:
            self._compact()
        self._keys.append(key)
        self.size += 1

    def _compact(self) -> None:
        self._keys = [key for key in dict.fromkeys(self._keys) if self._group.block_of(key) is self]


class GroupOverview:
    """A resource group: its blocks, and the states of its VMs."""

    __slots__ = ("_block_by_vm", "blocks", "id", "non_running", "resource")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.resource = group_resource_id(*group_id.split("/"))
        self.blocks: dict[str, VmBlock] = {}
        self.non_running: dict[str, VmState] = {}  # of the VMs that are not simply running
        self._block_by_vm: dict[str, VmBlock] = {}

    @property
    def size(self) -> int:
        return len(self._block_by_vm)

    def block_of(self, key: str) -> VmBlock | None:
        return self._block_by_vm.get(key)

    def state_of(self, key: str) -> VmState:
        return self.non_running.get(key, VmState.RUNNING) if key in self._block_by_vm else VmState.GONE

    def counts(self, part: frozenset[str] | None) -> Counter[VmState]:
        """How many of these VMs are in which state; None: of all."""
        told = Counter(state for key, state in self.non_running.items() if part is None or key in part)
        told[VmState.RUNNING] = (self.size if part is None else len(part)) - told.total()
        return told

    def add_vm(self, key: str, block_id: str) -> bool:
        """Whether that is new."""
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


def block_id_for(scope_id: str) -> str:
    return f"{_STANDALONE_PREFIX}:{resource_group_of_scope(scope_id)}" if scope_id.startswith("vm:") else scope_id


Derived = TypeVar("Derived")
VmStateChange = tuple[str, VmState]  # a VM's key, and how it is now
VisibleKeys = frozenset[str] | None  # the VMs of a group that somebody sees; None: all
_BATCH_SIZE = 2_000  # VMs met before others get their turn
_MAX_CACHED_VIEWERS = 64  # visitors who see a part, and what of which groups


class FleetOverview:
    """`await ready()` before anything else is asked."""

    def __init__(self, store: Store, placement: PlacementIndex, directory: FleetDirectory) -> None:
        self._store = store
        self._placement = placement
        self._directory = directory
        self._groups: dict[str, GroupOverview] = {}
        self._event_effects: dict[
            str, dict[str, Mapping[str, VmState]]
        ] = {}  # scope → live event → what it makes of whom
        self._visible_cache: dict[tuple[Grant, ...], dict[str, frozenset[str]]] = {}
        self._derived: dict[Callable[[FleetOverview], Any], Any] = {}
        self._last_commit: Commit | None = None
        self._last_changes: Sequence[VmStateChange] = ()
        self._build_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self.seq = 0  # of the history: everything up to it is taken in

    async def ensure_built(self) -> None:
        """The first to ask has it built; others get their turn meanwhile."""
        if self._build_task is None or (self._build_task.done() and _has_failed(self._build_task)):
            self._build_task = asyncio.create_task(self._build())
        await asyncio.shield(self._build_task)

    def changes_in(self, commit: Commit) -> Sequence[VmStateChange]:
        """The VMs whose state this commit changed. For whoever hears of commits, while they hear of this one."""
        if self._last_commit is not commit:
            self._last_commit, self._last_changes = commit, self._apply_commit(commit)
        return self._last_changes

    def state_of(self, key: str) -> VmState:
        group = self._groups.get(_group_id_of(key))
        return group.state_of(key) if group is not None else VmState.GONE

    def vm_states_in(self, scope_id: str) -> list[VmStateChange]:
        group = self._groups.get(resource_group_of_scope(scope_id))
        block = group.blocks.get(block_id_for(scope_id)) if group is not None else None
        if group is None or block is None:
            return []
        keys = [scope_id.partition(":")[2]] if block.is_standalone else block.keys
        return [(key, group.state_of(key)) for key in keys]

    def count_states(self, sees: VisibleDirectory) -> dict[VmState, int]:
        """How many VMs are in which state, of those that somebody sees."""
        told: Counter[VmState] = Counter()
        for group, part in self.visible_groups(sees):
            told.update(group.counts(part))
        return {state: told[state] for state in VmState if state is not VmState.GONE}

    def cached(self, make: Callable[[FleetOverview], Derived]) -> Derived:
        """What this makes of all VMs; made anew only after some came or went."""
        if make not in self._derived:
            self._derived[make] = make(self)
        made: Derived = self._derived[make]
        return made

    def all_groups(self) -> list[GroupOverview]:
        return list(self._groups.values())

    def visible_groups(self, sees: VisibleDirectory) -> Iterator[tuple[GroupOverview, VisibleKeys]]:
        """Those in which somebody sees a VM, and which VMs."""
        for group in self._groups.values():
            part = self._visible_keys_in(group, sees)
            if part is None or part:
                yield group, part

    def visible_keys(self, sees: VisibleDirectory) -> Iterator[str]:
        """Of every VM that somebody sees."""
        for group, part in self.visible_groups(sees):
            yield from (key for block in group.blocks.values() for key in block.keys if part is None or key in part)

    def _visible_keys_in(self, group: GroupOverview, sees: VisibleDirectory) -> VisibleKeys:
        if sees.can_read(group.resource):
            return None
        if not any(_grants_read_in(grant, group) for grant in sees.grants):
            return frozenset()
        known = self._visible_cache.setdefault(sees.grants, {})
        if len(self._visible_cache) > _MAX_CACHED_VIEWERS:
            del self._visible_cache[next(iter(self._visible_cache))]
        if group.id not in known:
            known[group.id] = frozenset(listed.key for listed in sees.vms_within(group.resource))
        return known[group.id]

    async def _build(self) -> None:
        self._unsubscribe()
        self._groups, self._event_effects, self._visible_cache, self._derived = {}, {}, {}, {}
        keys = iter(self._placement.vm_keys())
        for event in self._store.events(statuses=[EventState.SCHEDULED, EventState.STARTED]):
            self._event_effects.setdefault(event.scope_id, {})[event.id] = vm_states_during(event)
        self._unsubscribe, self.seq = self._store.subscribe(self._on_commit), self._store.last_seq()
        while stretch := list(islice(keys, _BATCH_SIZE)):
            for key in filter(self._directory.has, stretch):
                self._get_or_add_group(key).add_vm(key, block_id_for(self._placement.scope_of(key)))
            await asyncio.sleep(0)
        # Most VMs are simply running: only those of which more is known are looked at.
        told = (key for works in self._event_effects.values() for meaning in works.values() for key in meaning)
        for key in {*told, *self._directory.stopped_keys()}:
            self._update_vm(key)

    def _on_commit(self, committed: AppliedCommit) -> None:
        self.changes_in(committed.commit)
        self.seq = max(self.seq, committed.seq)

    def _apply_commit(self, commit: Commit) -> Sequence[VmStateChange]:
        touched = dict.fromkeys(vm.key for vm in commit.vms)
        for event in commit.events:
            touched.update(dict.fromkeys(self._apply_event(event)))
        return [(key, state) for key in touched if (state := self._update_vm(key)) is not None]

    def _apply_event(self, event: Event) -> Iterator[str]:
        """The VMs to which the event means something else than before."""
        works = self._event_effects.setdefault(event.scope_id, {})
        old, new = works.get(event.id, {}), vm_states_during(event)
        if event.is_live:
            works[event.id] = new
        else:
            works.pop(event.id, None)
        if not works:
            del self._event_effects[event.scope_id]
        return (key for key in {**old, **new} if old.get(key) is not new.get(key))

    def _update_vm(self, key: str) -> VmState | None:
        """Where and how a VM is by now; None: as before."""
        group = self._groups.get(_group_id_of(key))
        if not self._directory.has(key):
            return self._remove_vm(key, group) if group is not None else None
        group = group or self._get_or_add_group(key)
        scope_id = self._placement.scope_of(key)
        is_new = group.add_vm(key, block_id_for(scope_id))
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
        meanings = (meaning.get(key) for meaning in self._event_effects.get(scope_id, {}).values())
        return combine_vm_states(meanings, self._directory.power_of(key))

    def _invalidate(self, group: GroupOverview) -> None:
        """What somebody sees of it may have changed, and what was made of all."""
        self._derived.clear()
        for known in self._visible_cache.values():
            known.pop(group.id, None)


def _group_id_of(key: str) -> str:
    return key.rpartition("/")[0]


def _grants_read_in(grant: Grant, group: GroupOverview) -> bool:
    return Right.READ in ROLE_RIGHTS[grant.role] and is_within_resource(group.resource, grant.over)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
