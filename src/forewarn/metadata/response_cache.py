"""Caches responses by the exact bytes of a request, per VM: this is the fast path of a poll.

Every change that concerns a VM invalidates its entries. Whatever needs a decision per request (a fault, a rate
limit, a scope that is not enabled) is never cached, so a hit needs no further test. Hits are counted per entry and
flushed to the counters and observations later.
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


MAX_CACHED_REQUEST_BYTES = 1024  # of a request that is remembered
_MAX_ENTRIES_PER_VM = 16  # requests: so a VM that never asks the same twice makes only itself slow
_MAX_CACHED_VMS = 200_000

CachedResponses = dict[bytes, "CachedResponse"]


class CachedResponse:
    """One request's answer, as long as it is right."""

    __slots__ = ("category", "hits", "keep_alive", "prepared", "status", "user_agent", "version", "vm_cache")

    def __init__(
        self,
        *,
        shelf: VmResponseCache,
        dated: PreparedResponse,
        keep_alive: bool,
        status: int,
        version: str,
        sort: RequestCategory,
        agent: str,
    ) -> None:
        self.vm_cache, self.prepared, self.keep_alive = shelf, dated, keep_alive
        self.status, self.version, self.category, self.user_agent = status, version, sort, agent
        self.hits = 0  # repeats that are not settled yet


class VmResponseCache:
    """What one VM is told while it may be told the same; another view of it begins another shelf."""

    __slots__ = ("last_hit", "last_hit_at", "responses", "view")

    def __init__(self, view: GuestView) -> None:
        self.view = view
        self.responses: dict[tuple[bool, bool], CachedResponses] = {}  # by what sets callers of one VM apart
        self.last_hit: CachedResponse | None = None  # repeated since the last settling
        self.last_hit_at = 0.0


class ResponseCache:
    def __init__(
        self,
        *,
        writer: ResponseWriter,
        observations: GuestObservations,
        now: Callable[[], float],
        count: Callable[[RequestCategory, int, int], None],
        is_on: bool = True,
    ) -> None:
        self._writer, self._observations, self._now, self._count_hits = writer, observations, now, count
        self._is_enabled = is_on
        self._vm_caches: dict[str, VmResponseCache] = {}
        self._caches_with_hits: dict[VmResponseCache, None] = {}
        self._date = writer.date_header_at(now())
        observations.set_flush_hooks(self.flush_hits, self.flush_hits_of)

    def responses_for(self, vm: str | None, is_loopback: bool, is_local: bool) -> CachedResponses | None:
        """What is remembered for the VM's callers of this kind; None: nothing."""
        shelf = self._vm_caches.get(vm) if vm is not None else None
        return None if shelf is None else shelf.responses.get((is_loopback, is_local))

    def serve_hit(self, answer: CachedResponse) -> bytes:
        """The answer once more, dated and counted: this is what a poll costs."""
        now = self._now()
        date = self._date
        if not date.valid_from <= now < date.valid_until:
            date = self._date = self._writer.date_header_at(now)
        shelf = answer.vm_cache
        if shelf.last_hit is None:
            self._caches_with_hits[shelf] = None
        shelf.last_hit, shelf.last_hit_at = answer, now
        answer.hits += 1
        dated = answer.prepared
        return dated.raw if dated.date is date else dated.bytes_at(date)

    def add(
        self,
        raw: bytes,
        caller: Caller,
        view: GuestView,
        *,
        version: str,
        dated: PreparedResponse,
        keep_alive: bool,
        status: int,
        sort: RequestCategory,
        agent: str,
    ) -> CachedResponses:
        """Give this answer to these bytes from now on; gives all that this caller may be answered with."""
        if not self._is_enabled:
            return {}
        shelf = self._vm_cache_for(view)
        answers = shelf.responses.setdefault((caller.is_loopback, caller.from_loopback), {})
        if raw in answers:
            return answers
        if len(answers) >= _MAX_ENTRIES_PER_VM:
            self._flush(shelf)
            del answers[next(iter(answers))]
        answers[raw] = CachedResponse(
            shelf=shelf, dated=dated, keep_alive=keep_alive, status=status, version=version, sort=sort, agent=agent
        )
        return answers

    def invalidate(self, vms: Iterable[str]) -> None:
        """Something about these VMs has changed: their next requests are read anew."""
        for vm in vms:
            shelf = self._vm_caches.pop(vm, None)
            if shelf is not None:
                self._clear(shelf)

    def invalidate_all(self) -> None:
        self.invalidate(tuple(self._vm_caches))

    def disable(self) -> None:
        """Remember nothing any more."""
        self._is_enabled = False
        self.invalidate_all()

    def flush_hits(self) -> None:
        """Put down what repeats would have put down one by one; of many VMs those that wait longest."""
        for shelf in tuple(islice(self._caches_with_hits, BATCH_SIZE)):
            self._flush(shelf)

    def flush_hits_of(self, vm: str) -> None:
        """As `settle_some`, for one VM, whose next request is to come after those."""
        shelf = self._vm_caches.get(vm)
        if shelf is not None:
            self._flush(shelf)

    def _flush(self, shelf: VmResponseCache) -> None:
        last, shelf.last_hit = shelf.last_hit, None
        if last is None:
            return
        del self._caches_with_hits[shelf]
        total = 0
        for answers in shelf.responses.values():
            for answer in answers.values():
                if answer.hits:
                    self._count_hits(answer.category, answer.status, answer.hits)
                    total += answer.hits
                    answer.hits = 0
        self._observations.record_poll(shelf.view, last.version, shelf.last_hit_at, count=total, agent=last.user_agent)

    def _clear(self, shelf: VmResponseCache) -> None:
        self._flush(shelf)
        # Connections may hold these tables: they must find nothing there.
        for answers in shelf.responses.values():
            answers.clear()
        shelf.responses.clear()

    def _vm_cache_for(self, view: GuestView) -> VmResponseCache:
        shelf = self._vm_caches.get(view.vm)
        if shelf is not None and shelf.view is view:
            return shelf
        self.invalidate([view.vm])
        if len(self._vm_caches) >= _MAX_CACHED_VMS:
            self.invalidate([next(iter(self._vm_caches))])
        shelf = self._vm_caches[view.vm] = VmResponseCache(view)
        return shelf
