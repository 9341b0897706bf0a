"""Caches responses by the exact bytes of a request, per VM: this is the fast path of a poll."""

# The fast path of a poll, and why it cannot lie.
#
# The invariant. With and without this cache, a VM gets the same bytes, and the same counts, deliveries and uses of
# faults are recorded. A property test runs the same sequences against a server with and one without a cache and
# compares all of it.
#
# Why it exists. Clients poll once a second and nearly always get the answer that they got before. Parsing, deciding and
# writing cost about eight times what a web server needs for a constant; a lookup costs about as much as that. So the
# key is the exact bytes of the request, and the value is everything but the Date. There is no test in a hit: no fault,
# limit, right or version is looked at. All of that must have been settled when the entry was made, and must end the
# entry when it changes. The argument has therefore two halves.
#
# What may enter (`responder.cacheable_view`). A poll that was answered at once from what is published, without a fault
# for its VM and without a rate limit, whose bytes arrived alone. Alone, because only then the bytes that were received
# are known to be one request, neither half of one nor two. A held poll, a slow body, a refusal that depends on time, an
# unknown caller: never. One kind of POST enters, too: an approval that changes nothing any more, because its event has
# started, or because this process knows that its approval is durable. Both stay true for good, and clients that approve
# every listed event send one with every poll.
#
# What ends an entry. Everything that could change the next answer empties the tables of the VMs that it concerns: a
# publication of their scope, a removal, another VM at the network place (`subscribe_releases`), changes of faults, and
# the drain of the server. No entry ends by time: nothing in a document changes by time alone. Date is the exception,
# and is added at each hit; lab time may jump and run fast, so it is read each time.
#
# The subscriber runs within the publication, before a waiting poll is woken. All of it is one thread, so there is no
# moment in which the document is new and the entry old.
#
# Emptied, not replaced. A connection keeps a reference to the dictionary of its caller, which saves one more lookup, so
# the dictionaries are cleared in place (`_clear`) and never used again. A connection that finds an empty one asks for
# the present one, and takes what another connection has cached since (`_adopt_shared_cache`): after a change each VM
# costs one parsed poll, not one for each of its connections. An entry also belongs to one `view`, compared by identity.
# If a view arrives that is not the one of the table, the table is dropped, even if nobody announced a change.
#
# The kind of caller is part of the key, since the same bytes get another answer from elsewhere: rules on loopback
# differ from those on real networks.
#
# Bookkeeping comes later. A hit adds one to the entry and notes when the VM was seen last. Program, api-version and
# category follow from the bytes, so counts and last polls are computed when somebody reads them, when the VM sends
# something that is not cached (`flush_hits_of`, so that polls are recorded in their order), and before a table is
# emptied. Labels of metrics at each poll cost a fifth of it. A first delivery of an event is never a hit, because the
# publication before it emptied the table: deliveries need nothing here.
#
# Bounds. 16 entries a VM, the oldest goes first; 1 KiB a request; 200,000 VMs. The table is per VM so that a VM that
# never repeats itself slows down only itself. One table for all would save some hundred bytes for each VM, and would
# let one client evict the entries of all others.
#
# What a crash leaves: nothing is durable. Hits that were not flushed are lost: when VMs polled in the last second or
# two.
#
# A new input of responses must do one of two things: keep a poll out (`metadata.responder`), or empty the tables
# (`invalidate`). A third does not exist.

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from forewarn.base.times import LabTime
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
        self.last_hit_at: LabTime = 0.0


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
        """Count a hit of the entry and return the bytes to send, with the current Date."""
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
