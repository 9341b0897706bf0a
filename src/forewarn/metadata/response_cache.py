"""Caches responses by the exact bytes of a request, per VM: this is the fast path of a poll.

Every change that concerns a VM invalidates its entries. A response that needs a decision per request (a fault, a
rate limit, a scope that is not enabled) is never cached, so a hit needs no further test. Hits are counted per entry
and flushed to the counters and observations later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from forewarn.metadata.interface import GuestView
from forewarn.metadata.observations import BATCH_SIZE, GuestObservations
from forewarn.metadata.request_counters import RequestCategory
from forewarn.metadata.response_writer import PreparedResponse, ResponseWriter

if TYPE_CHECKING:
    from forewarn.metadata.identity import Caller


MAX_CACHED_REQUEST_BYTES = 1024  # longer requests are never cached
_MAX_ENTRIES_PER_VM = 16  # a VM that never repeats a request slows down only itself
_MAX_CACHED_VMS = 200_000

CachedResponses = dict[bytes, "CachedResponse"]  # by the exact bytes of the request


class CachedResponse:
    """A cache entry: the prepared response to one exact request of one VM; `hits` are not recorded yet."""

    __slots__ = ("category", "hits", "keep_alive", "prepared", "status", "user_agent", "version", "vm_cache")

    def __init__(
        self,
        *,
        vm_cache: _VmResponseCache,
        prepared: PreparedResponse,
        keep_alive: bool,
        status: int,
        version: str,
        category: RequestCategory,
        user_agent: str,
    ) -> None:
        self.vm_cache, self.prepared, self.keep_alive = vm_cache, prepared, keep_alive
        self.status, self.version, self.category, self.user_agent = status, version, category, user_agent
        self.hits = 0  # since the last flush


class _VmResponseCache:
    """The cache entries of one VM, by kind of caller; valid only as long as `view` is what the VM sees."""

    __slots__ = ("last_hit", "last_hit_at", "responses", "view")

    def __init__(self, view: GuestView) -> None:
        self.view = view
        self.responses: dict[tuple[bool, bool], CachedResponses] = {}  # by Caller.is_loopback and from_loopback
        self.last_hit: CachedResponse | None = None  # since the last flush
        self.last_hit_at = 0.0  # lab time


class ResponseCache:
    """The response cache of one server: responses by the exact bytes of a request, for each VM.

    Connections look up entries themselves (`responses_for`) and call `serve_hit`. A flush records the hits counted in
    the entries. With `is_enabled=False` nothing is ever cached.
    """

    def __init__(
        self,
        *,
        writer: ResponseWriter,
        observations: GuestObservations,
        now: Callable[[], float],
        count_hits: Callable[[RequestCategory, int, int], None],
        is_enabled: bool = True,
    ) -> None:
        self._writer, self._observations, self._now, self._count_hits = writer, observations, now, count_hits
        self._is_enabled = is_enabled
        self._vm_caches: dict[str, _VmResponseCache] = {}
        self._caches_with_hits: dict[_VmResponseCache, None] = {}
        self._date = writer.date_header_at(now())
        observations.set_flush_hooks(self.flush_hits, self.flush_hits_of)

    def responses_for(self, vm: str | None, is_loopback: bool, from_loopback: bool) -> CachedResponses | None:
        """Return the VM's cached responses for callers of this kind (see `Caller`), by request bytes.

        The dictionary is the cache's own, and may be kept: it is emptied when the entries become invalid, and then
        stays empty, so look it up again.
        """
        vm_cache = self._vm_caches.get(vm) if vm is not None else None
        return None if vm_cache is None else vm_cache.responses.get((is_loopback, from_loopback))

    def serve_hit(self, entry: CachedResponse) -> bytes:
        """Count a hit of the entry and return the bytes to send, with the current Date in lab time."""
        now = self._now()
        date = self._date
        if not date.valid_from <= now < date.valid_until:
            date = self._date = self._writer.date_header_at(now)
        vm_cache = entry.vm_cache
        if vm_cache.last_hit is None:
            self._caches_with_hits[vm_cache] = None
        vm_cache.last_hit, vm_cache.last_hit_at = entry, now
        entry.hits += 1
        prepared = entry.prepared
        return prepared.raw if prepared.date is date else prepared.bytes_at(date)

    def add(
        self,
        request_bytes: bytes,
        caller: Caller,
        view: GuestView,
        *,
        version: str,
        prepared: PreparedResponse,
        keep_alive: bool,
        status: int,
        category: RequestCategory,
        user_agent: str,
    ) -> CachedResponses:
        """Cache the response to these request bytes for the view's VM and callers of this kind."""
        if not self._is_enabled:
            return {}
        vm_cache = self._vm_cache_for(view)
        entries = vm_cache.responses.setdefault((caller.is_loopback, caller.from_loopback), {})
        if request_bytes in entries:
            return entries
        if len(entries) >= _MAX_ENTRIES_PER_VM:
            self._flush(vm_cache)
            del entries[next(iter(entries))]
        entries[request_bytes] = CachedResponse(
            vm_cache=vm_cache,
            prepared=prepared,
            keep_alive=keep_alive,
            status=status,
            version=version,
            category=category,
            user_agent=user_agent,
        )
        return entries

    def invalidate(self, vms: Iterable[str]) -> None:
        """Drop the entries of these VMs (keys), after a change of what they see; records their hits first."""
        for vm in vms:
            vm_cache = self._vm_caches.pop(vm, None)
            if vm_cache is not None:
                self._clear(vm_cache)

    def invalidate_all(self) -> None:
        """Drop the entries of all VMs; records their hits first."""
        self.invalidate(tuple(self._vm_caches))

    def disable(self) -> None:
        """Drop the entries of all VMs, after recording their hits, and cache nothing from now on."""
        self._is_enabled = False
        self.invalidate_all()

    def flush_hits(self) -> None:
        """Record the hits of the at most 500 VMs (BATCH_SIZE) that wait longest, as counts and observations."""
        for vm_cache in tuple(islice(self._caches_with_hits, BATCH_SIZE)):
            self._flush(vm_cache)

    def flush_hits_of(self, vm: str) -> None:
        """Record the hits of one VM (its key), so that its next request is recorded after them."""
        vm_cache = self._vm_caches.get(vm)
        if vm_cache is not None:
            self._flush(vm_cache)

    def _flush(self, vm_cache: _VmResponseCache) -> None:
        last, vm_cache.last_hit = vm_cache.last_hit, None
        if last is None:
            return
        del self._caches_with_hits[vm_cache]
        total = 0
        for entries in vm_cache.responses.values():
            for entry in entries.values():
                if entry.hits:
                    self._count_hits(entry.category, entry.status, entry.hits)
                    total += entry.hits
                    entry.hits = 0
        self._observations.record_poll(
            vm_cache.view, last.version, vm_cache.last_hit_at, count=total, user_agent=last.user_agent
        )

    def _clear(self, vm_cache: _VmResponseCache) -> None:
        self._flush(vm_cache)
        # Connections may have references to these dictionaries, so they must be emptied.
        for entries in vm_cache.responses.values():
            entries.clear()
        vm_cache.responses.clear()

    def _vm_cache_for(self, view: GuestView) -> _VmResponseCache:
        vm_cache = self._vm_caches.get(view.vm)
        if vm_cache is not None and vm_cache.view is view:
            return vm_cache
        self.invalidate([view.vm])
        if len(self._vm_caches) >= _MAX_CACHED_VMS:
            self.invalidate([next(iter(self._vm_caches))])
        vm_cache = self._vm_caches[view.vm] = _VmResponseCache(view)
        return vm_cache
