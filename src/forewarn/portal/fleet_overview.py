"""How every VM of the fleet is, in memory, so that no page reads the whole fleet to show a part of it.

Built when somebody first looks, from what the house holds anyway; from then on kept up to date by what is committed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from forewarn.console.directory import Directory
from forewarn.console.outlook import Outlook
from forewarn.console.portal.block import Group, block_id_for
from forewarn.control.placement import Placement
from forewarn.core.access import RIGHTS, Grant, Right
from forewarn.core.change import Commit
from forewarn.core.event import Event, Status
from forewarn.core.fleet import group_of_scope
from forewarn.core.resource import covers
from forewarn.core.vmstate import VmState, meaning_of, state_from
from forewarn.store.seam import Committed, Store

Made = TypeVar("Made")
Change = tuple[str, VmState]  # a VM's key, and how it is now
Part = frozenset[str] | None  # the VMs of a group that somebody sees; None: all
_AT_A_STRETCH = 2_000  # VMs met before others get their turn
_REMEMBERED = 64  # visitors who see a part, and what of which groups


class Overview:
    """`await ready()` before anything else is asked."""

    def __init__(self, store: Store, placement: Placement, directory: Directory) -> None:
        self._store = store
        self._placement = placement
        self._directory = directory
        self._groups: dict[str, Group] = {}
        self._works: dict[str, dict[str, Mapping[str, VmState]]] = {}  # scope → live event → what it makes of whom
        self._parts: dict[tuple[Grant, ...], dict[str, frozenset[str]]] = {}
        self._made: dict[Callable[[Overview], Any], Any] = {}
        self._heard: Commit | None = None
        self._changes: Sequence[Change] = ()
        self._building: asyncio.Task[None] | None = None
        self._stop: Callable[[], None] = lambda: None
        self.seq = 0  # of the history: everything up to it is taken in

    async def ready(self) -> None:
        """The first to ask has it built; others get their turn meanwhile."""
        if self._building is None or (self._building.done() and _failed(self._building)):
            self._building = asyncio.create_task(self._build())
        await asyncio.shield(self._building)

    def changed(self, commit: Commit) -> Sequence[Change]:
        """The VMs whose state this commit changed. For whoever hears of commits, while they hear of this one."""
        if self._heard is not commit:
            self._heard, self._changes = commit, self._take_in(commit)
        return self._changes

    def state_of(self, key: str) -> VmState:
        group = self._groups.get(_group_of(key))
        return group.state_of(key) if group is not None else VmState.GONE

    def states_in(self, scope_id: str) -> list[Change]:
        group = self._groups.get(group_of_scope(scope_id))
        block = group.blocks.get(block_id_for(scope_id)) if group is not None else None
        if group is None or block is None:
            return []
        keys = [scope_id.partition(":")[2]] if block.is_of_standalone else block.keys
        return [(key, group.state_of(key)) for key in keys]

    def counts(self, sees: Outlook) -> dict[VmState, int]:
        """How many VMs are in which state, of those that somebody sees."""
        told: Counter[VmState] = Counter()
        for group, part in self.groups(sees):
            told.update(group.counts(part))
        return {state: told[state] for state in VmState if state is not VmState.GONE}

    def once(self, make: Callable[[Overview], Made]) -> Made:
        """What this makes of all VMs; made anew only after some came or went."""
        if make not in self._made:
            self._made[make] = make(self)
        made: Made = self._made[make]
        return made

    def every_group(self) -> list[Group]:
        return list(self._groups.values())

    def groups(self, sees: Outlook) -> Iterator[tuple[Group, Part]]:
        """Those in which somebody sees a VM, and which VMs."""
        for group in self._groups.values():
            part = self._part(group, sees)
            if part is None or part:
                yield group, part

    def keys(self, sees: Outlook) -> Iterator[str]:
        """Of every VM that somebody sees."""
        for group, part in self.groups(sees):
            yield from (key for block in group.blocks.values() for key in block.keys if part is None or key in part)

    def _part(self, group: Group, sees: Outlook) -> Part:
        if sees.reads(group.resource):
            return None
        if not any(_reaches_into(grant, group) for grant in sees.grants):
            return frozenset()
        known = self._parts.setdefault(sees.grants, {})
        if len(self._parts) > _REMEMBERED:
            del self._parts[next(iter(self._parts))]
        if group.id not in known:
            known[group.id] = frozenset(listed.key for listed in sees.within(group.resource))
        return known[group.id]

    async def _build(self) -> None:
        self._stop()
        self._groups, self._works, self._parts, self._made = {}, {}, {}, {}
        keys = iter(self._placement.keys())
        for event in self._store.events(statuses=[Status.SCHEDULED, Status.STARTED]):
            self._works.setdefault(event.scope_id, {})[event.id] = meaning_of(event)
        self._stop, self.seq = self._store.subscribe(self._hear), self._store.last_seq()
        while stretch := list(islice(keys, _AT_A_STRETCH)):
            for key in filter(self._directory.has, stretch):
                self._group_for(key).join(key, block_id_for(self._placement.scope_of(key)))
            await asyncio.sleep(0)
        # Most VMs are simply running: only those of which more is known are looked at.
        told = (key for works in self._works.values() for meaning in works.values() for key in meaning)
        for key in {*told, *self._directory.off()}:
            self._settle(key)

    def _hear(self, committed: Committed) -> None:
        self.changed(committed.commit)
        self.seq = max(self.seq, committed.seq)

    def _take_in(self, commit: Commit) -> Sequence[Change]:
        touched = dict.fromkeys(vm.key for vm in commit.vms)
        for event in commit.events:
            touched.update(dict.fromkeys(self._follow(event)))
        return [(key, state) for key in touched if (state := self._settle(key)) is not None]

    def _follow(self, event: Event) -> Iterator[str]:
        """The VMs to which the event means something else than before."""
        works = self._works.setdefault(event.scope_id, {})
        old, new = works.get(event.id, {}), meaning_of(event)
        if event.is_live:
            works[event.id] = new
        else:
            works.pop(event.id, None)
        if not works:
            del self._works[event.scope_id]
        return (key for key in {**old, **new} if old.get(key) is not new.get(key))

    def _settle(self, key: str) -> VmState | None:
        """Where and how a VM is by now; None: as before."""
        group = self._groups.get(_group_of(key))
        if not self._directory.has(key):
            return self._forget(key, group) if group is not None else None
        group = group or self._group_for(key)
        scope_id = self._placement.scope_of(key)
        is_new = group.join(key, block_id_for(scope_id))
        if is_new:
            self._look_again_at(group)
        before, now = group.state_of(key), self._state(key, scope_id)
        group.mark(key, now)
        return now if is_new or now is not before else None

    def _group_for(self, key: str) -> Group:
        group_id = _group_of(key)
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id)
        return group

    def _forget(self, key: str, group: Group) -> VmState | None:
        if not group.leave(key):
            return None
        self._look_again_at(group)
        if not group.size:
            del self._groups[group.id]
        return VmState.GONE

    def _state(self, key: str, scope_id: str) -> VmState:
        meanings = (meaning.get(key) for meaning in self._works.get(scope_id, {}).values())
        return state_from(meanings, self._directory.power_of(key))

    def _look_again_at(self, group: Group) -> None:
        """What somebody sees of it may have changed, and what was made of all."""
        self._made.clear()
        for known in self._parts.values():
            known.pop(group.id, None)


def _group_of(key: str) -> str:
    return key.rpartition("/")[0]


def _reaches_into(grant: Grant, group: Group) -> bool:
    return Right.READ in RIGHTS[grant.role] and covers(group.resource, grant.over)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
