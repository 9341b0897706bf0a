"""Cache of recently read scopes, updated by commits, so that most decisions do not read the database.

A cached scope is never newer than the committed one. It may be older for the moment between a commit and its
notification; a decision on it then raises Conflict and is made again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import LastPoll
from forewarn.core.scope import Scope

T = TypeVar("T", Vm, Event)
_MAX_CACHED_VMS = 20_000  # VMs and scopes together: about 50 MB


class ScopeCache:
    """Least-recently-used cache, in memory, of a store's scopes with their present VMs and live events.

    Its owner, the store, passes every read scope to `put`, every commit to `on_commit` and every batch of polls to
    `record_polls`, all on one thread.
    """

    def __init__(self, max_vms: int = _MAX_CACHED_VMS) -> None:
        self._scopes: OrderedDict[str, Scope] = OrderedDict()  # least recently used first
        self._vms: dict[str, Vm] = {}  # VMs of the cached scopes, by key
        self._max_vms = max_vms
        self._cached_weight = 0

    def scope(self, scope_id: str) -> Scope | None:
        """Return a cached scope and mark it as used; None if it must be read from the database."""
        scope = self._scopes.get(scope_id)
        if scope is not None:
            self._scopes.move_to_end(scope_id)
        return scope

    def vm(self, key: str) -> Vm | None:
        """Return a present VM of a cached scope by its key; None if it must be read from the database."""
        return self._vms.get(key)

    def put(self, scope: Scope) -> None:
        """Cache a scope that was just read, and evict the least recently used ones to stay within the limit."""
        # A VM that has moved must not stay in the scope that it came from.
        self.evict((scope.id, *self._previous_scopes(scope)))
        self._scopes[scope.id] = scope
        self._vms.update((vm.key, vm) for vm in scope.vms)
        self._cached_weight += _scope_weight(scope)
        # By VMs, not by scopes: a scope may have one VM or a thousand.
        while self._cached_weight > self._max_vms:
            self.evict((next(iter(self._scopes)),))

    def evict(self, scope_ids: Iterable[str]) -> None:
        """Remove these scopes and their VMs from the cache; ids that are not cached are ignored."""
        for scope_id in scope_ids:
            if (evicted := self._scopes.pop(scope_id, None)) is not None:
                self._cached_weight -= _scope_weight(evicted)
                for vm in evicted.vms:
                    self._vms.pop(vm.key, None)

    def on_commit(self, commit: Commit) -> None:
        """Update cached scopes with a commit. Called for every commit, in order; it caches no further scope."""
        # The scopes of the commit have the versions from before.
        if commit.vms and not all(map(self._is_in_known_scope, commit.vms)):
            self._clear()  # a new or moved VM may have been in any scope
        vms, events = _group_by_scope(commit.vms), _group_by_scope(commit.events)
        # Their rows changed without a new version of the scope: what is cached can no longer be trusted.
        self.evict((vms.keys() | events.keys()) - {scope.id for scope in commit.scopes})
        for scope in commit.scopes:
            known = self._scopes.get(scope.id)
            if known is not None and known.version == scope.version:  # else it was read after this commit
                self._replace_scope(known, scope, vms.get(scope.id, ()), events.get(scope.id, ()))

    def record_polls(self, polls: Sequence[LastPoll]) -> None:
        """Move `last_request_at` of cached scopes forward to these polls; polls change no version."""
        for poll in polls:
            scope = self._scopes.get(poll.scope_id)
            if scope is not None:
                self._scopes[scope.id] = replace(scope, last_request_at=_later(scope.last_request_at, poll.at))

    def _previous_scopes(self, scope: Scope) -> set[str]:
        """Return cached scopes that VMs of this scope were in; the commit that moved them comes later."""
        known = (self._vms.get(vm.key) for vm in scope.vms)
        return {vm.scope_id for vm in known if vm is not None and vm.scope_id != scope.id}

    def _is_in_known_scope(self, vm: Vm) -> bool:
        known = self._vms.get(vm.key)
        return known is not None and known.scope_id == vm.scope_id

    def _replace_scope(self, known: Scope, row: Scope, vms: Sequence[Vm], events: Sequence[Event]) -> None:
        updated = replace(
            row,
            # The commit carries the version that it was decided on; the store has added one.
            version=row.version + 1,
            last_request_at=_later(known.last_request_at, row.last_request_at),
            vms=_present_vms(known, vms) if vms else known.vms,
            events=_live_events(known, events) if events else known.events,
            new_entries=(),
        )
        self._cached_weight += len(updated.vms) - len(known.vms)
        self._scopes[row.id] = updated
        for vm in vms:
            if vm.removed_at is None:
                self._vms[vm.key] = vm
            else:
                self._vms.pop(vm.key, None)

    def _clear(self) -> None:
        self._scopes.clear()
        self._vms.clear()
        self._cached_weight = 0


def _scope_weight(scope: Scope) -> int:
    return 1 + len(scope.vms)


def _group_by_scope(rows: Sequence[T]) -> dict[str, list[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for row in rows:
        found[row.scope_id].append(row)
    return found


def _present_vms(scope: Scope, vms: Sequence[Vm]) -> tuple[Vm, ...]:
    latest = {vm.key: vm for vm in (*scope.vms, *vms)}
    return tuple(vm for vm in latest.values() if vm.removed_at is None)


def _live_events(scope: Scope, events: Sequence[Event]) -> tuple[Event, ...]:
    latest = {event.id: event for event in (*scope.events, *events)}
    return tuple(sorted((event for event in latest.values() if event.is_live), key=lambda event: event.seq))


def _later(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
