"""Use cases for maintenance configurations and their assignments: write, find and remove them."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.maintenance_configuration import (
    ConfigurationAssignment,
    HostConfigurations,
    MaintenanceConfiguration,
)
from forewarn.core.windows import MaintenanceCalendar, local_time_text, window_text
from forewarn.errors import NotFound

_REMEMBERED_S = 35 * 86_400.0  # how long canceled runs of the past are kept


class MaintenanceConfigurationService:
    """Writes, finds and removes maintenance configurations and assignments. Rights are not checked."""

    def __init__(self, *, transactions: ScopeTransactions) -> None:
        self._clock = transactions.clock
        self._store = transactions.store
        self._lock = asyncio.Lock()  # an assignment names a configuration that exists
        self._hosts: HostConfigurations | None = None  # None: to be read again

    def forget(self) -> None:
        """Drop the cached configurations of scope Host, so that they are read again at the next use."""
        self._hosts = None

    @property
    def hosts(self) -> HostConfigurations:
        """The assigned configurations of scope Host, to be looked up by VM, as they are stored now."""
        if self._hosts is None:
            self._hosts = HostConfigurations(self._store.configurations(), self._store.assignments())
        return self._hosts

    def find(self, resource: str) -> MaintenanceConfiguration | None:
        """Return the configuration with this resource id, ignoring letter case; None if there is none."""
        wanted = resource.casefold()
        return next((found for found in self._store.configurations() if found.key == wanted), None)

    def find_assignment(self, resource: str) -> ConfigurationAssignment | None:
        """Return the assignment with this resource id, ignoring letter case; None if there is none."""
        wanted = resource.casefold()
        return next((found for found in self._store.assignments() if found.key == wanted), None)

    async def put(self, new: MaintenanceConfiguration, *, who: str) -> tuple[MaintenanceConfiguration, bool]:
        """Add the configuration, or replace the one with its id; return (as stored, whether it is new)."""
        async with self._lock:
            old = self.find(new.id)
            if old is None:
                stored = replace(new, created_by=who, created_at=self._now(), changed_by=who, changed_at=self._now())
            else:
                same_window = replace(old.window, skipped=()) == new.window
                stored = replace(
                    new,
                    window=old.window if same_window else new.window,  # canceled runs stay canceled
                    id=old.id,
                    created_by=old.created_by,
                    created_at=old.created_at,
                    changed_by=old.changed_by,
                    changed_at=old.changed_at,
                )
                if stored == old:
                    return old, False
                stored = replace(stored, changed_by=who, changed_at=self._now())
            verb = "was added" if old is None else "was changed"
            entry = self._entry(
                who, f"maintenance configuration {stored.name} {verb}: {window_text(stored.window)} ({stored.id})"
            )
            await self._store.commit(Commit(configurations=(stored,), entries=(entry,)))
            return stored, old is None

    async def skip(self, resource: str, begin: float, *, who: str) -> MaintenanceConfiguration:
        """Cancel the one opening of a configuration's window that begins at `begin`; return the configuration."""
        async with self._lock:
            old = self.find(resource)
            if old is None:
                raise NotFound(f"maintenance configuration {resource!r} does not exist: create it first")
            if begin in old.window.skipped:
                return old
            recent = (at for at in old.window.skipped if at > self._now() - _REMEMBERED_S)
            window = replace(old.window, skipped=tuple(sorted({*recent, begin})))
            stored = replace(old, window=window, changed_by=who, changed_at=self._now())
            when = local_time_text(MaintenanceCalendar(windows=(window,)), begin)
            entry = self._entry(who, f"the window of maintenance configuration {old.name} on {when} was canceled")
            await self._store.commit(Commit(configurations=(stored,), entries=(entry,)))
            return stored

    async def remove(self, resource: str, *, who: str) -> MaintenanceConfiguration | None:
        """Remove the configuration with this id and all its assignments; return it, or None if there is none."""
        async with self._lock:
            old = self.find(resource)
            if old is None:
                return None
            assigned = [a for a in self._store.assignments() if a.configuration_id.casefold() == old.key]
            text = f"maintenance configuration {old.name} was removed with {len(assigned)} assignments ({old.id})"
            commit = Commit(
                removed_configurations=(old.key,),
                removed_assignments=tuple(a.key for a in assigned),
                entries=(self._entry(who, text),),
            )
            await self._store.commit(commit)
            return old

    async def assign(self, new: ConfigurationAssignment, *, who: str) -> tuple[ConfigurationAssignment, bool]:
        """Add the assignment, or replace the one with its id; return (as stored, whether it is new)."""
        async with self._lock:
            configuration = self.find(new.configuration_id)
            if configuration is None:
                raise NotFound(f"maintenance configuration {new.configuration_id!r} does not exist: create it first")
            old = self.find_assignment(new.id)
            kept = old or replace(new, created_by=who, created_at=self._now(), changed_by=who, changed_at=self._now())
            stored = replace(
                new,
                id=kept.id,
                target=kept.target,
                configuration_id=configuration.id,
                created_by=kept.created_by,
                created_at=kept.created_at,
                changed_by=kept.changed_by,
                changed_at=kept.changed_at,
            )
            if stored == old:
                return old, False
            stored = replace(stored, changed_by=who, changed_at=self._now())
            text = f"maintenance configuration {configuration.name} was assigned to {stored.target} ({stored.name})"
            await self._store.commit(Commit(assignments=(stored,), entries=(self._entry(who, text),)))
            return stored, old is None

    async def unassign(self, resource: str, *, who: str) -> ConfigurationAssignment | None:
        """Remove the assignment with this id; return it, or None if there is none."""
        async with self._lock:
            old = self.find_assignment(resource)
            if old is None:
                return None
            text = f"the assignment {old.name} of a maintenance configuration to {old.target} was removed"
            await self._store.commit(Commit(removed_assignments=(old.key,), entries=(self._entry(who, text),)))
            return old

    def _entry(self, who: str, text: str) -> HistoryEntry:
        return HistoryEntry(at=self._now(), kind=EntryKind.FLEET, actor=who, text=text)

    def _now(self) -> float:
        return self._clock.now()
