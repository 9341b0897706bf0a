"""The published scopes in memory: what VMs see, the encoded documents, and the waiting long polls.

The publisher publishes a scope at every commit that changes what its VMs see, and long polls of that scope are
woken. Polls are answered from here and never touch the store. `StaleDocuments` keeps replaced views for a minute
while a fault of kind `stale` is set (spec §11).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from forewarn.metadata.interface import GuestView, PublishedScope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.document import Document
from forewarn.protocol.exchange import PollRequest, body_digest, etag
from forewarn.protocol.http_message import HttpResponse

_WAKES_PER_TURN = 200  # more would delay other polls
_CACHED_BODIES = 1024
_MAX_SHARED_RESPONSES = 64  # per scope: clients that wait for a change send nearly equal polls

_SharedResponses = dict[tuple[PollRequest, bool], HttpResponse]


class RenderedDocument(NamedTuple):
    """A document as polls of one api-version get it; the digest is computed here, once, and not by each poll."""

    body: bytes
    digest: str  # of the body, for the ETag


class ChangeWaiter(Protocol):
    """A connection with a held long poll, which waits until the document of its scope changes."""

    def wake(self) -> None:
        """Look at the document again, because the scope has changed; called once for each `add_waiter`.

        Must do nothing if the connection no longer waits, and must raise nothing: an error would keep all later waiters
        from being woken.
        """


@dataclass(slots=True)
class _PublishedEntry:
    scope: PublishedScope
    delayed_until: float = 0.0
    views: dict[str, GuestView] = field(default_factory=dict)
    rendered: dict[tuple[str, bool], RenderedDocument] = field(default_factory=dict)  # by version and iso_dates
    responses: _SharedResponses = field(default_factory=dict)
    waiters: dict[ChangeWaiter, None] = field(default_factory=dict)


class PublishedDocuments:
    """The published scopes in memory, from which polls are answered. Not thread-safe.

    `first_answer_delay_s`: for how long (real time) after a scope was enabled its responses are held back (spec §8.1).
    `store_tag`: the part of every ETag that distinguishes this store from any other (spec §4.3).
    """

    def __init__(self, *, first_answer_delay_s: float = 0.0, store_tag: str = "") -> None:
        self._first_answer_delay_s, self._store_tag = first_answer_delay_s, store_tag
        self._entries: dict[str, _PublishedEntry] = {}
        self._scope_id_by_vm: dict[str, str] = {}
        self._wake_queue: deque[ChangeWaiter] = deque()
        self._subscribers: list[Callable[[Iterable[str]], None]] = []
        self.stale_documents = StaleDocuments()
        self._render = lru_cache(maxsize=_CACHED_BODIES)(_render)

    def subscribe(self, callback: Callable[[Iterable[str]], None]) -> None:
        """Call back, within `publish` and `remove`, with the keys of all VMs that the scope has or had.

        The callback must not call `view` for a VM that has left the scope, and must raise nothing: no long poll would
        be woken.
        """
        self._subscribers.append(callback)

    def publish(self, scope: PublishedScope) -> None:
        """Replace what the scope's VMs see, or add the scope; calls the subscribers. Needs a running loop.

        If its epoch, document, override, `is_narrow` or set of VMs changes, its long polls are woken soon after. A VM
        that the scope no longer has is unknown from now on, unless another scope has it.
        """
        before = self._entries.get(scope.scope_id)
        entry = _PublishedEntry(scope, delayed_until=self._delayed_until(before, scope))
        self._entries[scope.scope_id] = entry
        self._index_vms(scope)
        self._notify_subscribers(scope)

        if before is None:
            return
        self._notify_subscribers(before.scope)
        # After the new scope is in the index, so that no VM is unknown in between.
        self._unindex_vms(before.scope, staying=scope.vms.keys())
        if _polls_read_same(before.scope, scope):
            # Nothing that a poll could read has changed: long polls stay asleep.
            entry.rendered, entry.responses, entry.waiters = before.rendered, before.responses, before.waiters
        else:
            self.stale_documents.add(before.scope)
            self._wake(before.waiters)

    def remove(self, scope_id: str) -> None:
        """Remove a scope: its VMs are unknown from now on, and its long polls are woken soon after."""
        removed = self._entries.pop(scope_id, None)
        if removed is not None:
            self._unindex_vms(removed.scope, staying=())
            self._notify_subscribers(removed.scope)
            self._wake(removed.waiters)

    def view(self, vm: str) -> GuestView | None:
        """Return what this VM (its key) sees now; None if no published scope has it."""
        scope_id = self._scope_id_by_vm.get(vm)
        if scope_id is None:
            return None
        entry = self._entries[scope_id]
        view = entry.views.get(vm)
        if view is None:
            view = entry.views[vm] = _make_view(vm, entry)
        return view

    def shared_response(self, view: GuestView, poll: PollRequest, *, iso_dates: bool) -> HttpResponse | None:
        """Return the response that `share_response` kept for an equal poll of any VM that sees the same."""
        entry = self._entry_for(view)
        return None if entry is None else entry.responses.get((poll, iso_dates))

    def share_response(self, view: GuestView, poll: PollRequest, response: HttpResponse, *, iso_dates: bool) -> None:
        """Keep a response with the document (200) for equal polls of all VMs that see this document."""
        entry = self._entry_for(view)
        if entry is not None and len(entry.responses) < _MAX_SHARED_RESPONSES:
            entry.responses[poll, iso_dates] = response

    def rendered(self, view: GuestView, version: str, *, iso_dates: bool) -> RenderedDocument:
        """Return the view's document as JSON in this api-version, cached; works for an outdated view too.

        NotBefore of a scheduled event is an RFC 1123 date; with `iso_dates`, up to version 2017-08-01 only, an ISO
        date.
        """
        entry = self._entry_for(view)
        if entry is None:
            return self._render(view.document, version, iso_dates)
        known = entry.rendered.get((version, iso_dates))
        if known is None:
            fresh = self._render(view.document, version, iso_dates)
            # Api-versions often have the same bytes: keep them once.
            known = next((equal for equal in entry.rendered.values() if equal == fresh), fresh)
            entry.rendered[version, iso_dates] = known
        return known

    def etag(self, view: GuestView, rendered: RenderedDocument) -> str:
        """Return the ETag of the view's document in this form, with its quotes (spec §4.3)."""
        return etag(view.scope_id, view.epoch, view.document.incarnation, rendered.digest, self._store_tag)

    def add_waiter(self, scope_id: str, waiter: ChangeWaiter) -> None:
        """Call the waiter's `wake` once, after the next change of responses to polls of the scope."""
        self._entries[scope_id].waiters[waiter] = None

    def remove_waiter(self, scope_id: str, waiter: ChangeWaiter) -> None:
        """Do not wake the waiter, unless a change has come already; does nothing if it does not wait."""
        entry = self._entries.get(scope_id)
        if entry is not None:
            entry.waiters.pop(waiter, None)

    def _entry_for(self, view: GuestView) -> _PublishedEntry | None:
        entry = self._entries.get(view.scope_id)
        # An older view must never fill the entry of a newer document.
        if entry is None or entry.scope.document is not view.document or entry.scope.epoch != view.epoch:
            return None
        return entry

    def _delayed_until(self, before: _PublishedEntry | None, scope: PublishedScope) -> float:
        if before is None:
            return 0.0
        if self._first_answer_delay_s and scope.enabled and not before.scope.enabled:
            return asyncio.get_running_loop().time() + self._first_answer_delay_s
        # A change during the delay does not begin it again.
        return before.delayed_until

    def _index_vms(self, scope: PublishedScope) -> None:
        for vm in scope.vms:
            self._scope_id_by_vm[vm] = scope.scope_id

    def _unindex_vms(self, scope: PublishedScope, *, staying: Iterable[str]) -> None:
        for vm in scope.vms.keys() - set(staying):
            # A VM that moved is already in the index of its new scope.
            if self._scope_id_by_vm.get(vm) == scope.scope_id:
                del self._scope_id_by_vm[vm]

    def _notify_subscribers(self, scope: PublishedScope) -> None:
        for callback in self._subscribers:
            callback(scope.vms)

    def _wake(self, waiters: Iterable[ChangeWaiter]) -> None:
        idle = not self._wake_queue
        self._wake_queue.extend(waiters)
        if idle and self._wake_queue:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        # Some in each turn: thousands of long polls of a large scope would keep all other polls waiting.
        for _ in range(min(len(self._wake_queue), _WAKES_PER_TURN)):
            self._wake_queue.popleft().wake()
        if self._wake_queue:
            asyncio.get_running_loop().call_soon(self._wake_some)


def _render(document: Document, version: str, iso_dates: bool) -> RenderedDocument:
    body = encode_document(document, version, iso_dates=iso_dates)
    return RenderedDocument(body, body_digest(body))


def _make_view(vm: str, entry: _PublishedEntry) -> GuestView:
    scope = entry.scope
    return GuestView(
        vm=vm,
        scope_id=scope.scope_id,
        enabled=scope.enabled,
        epoch=scope.epoch,
        document=scope.document_of(vm),
        facts=scope.vms[vm],
        poll_override=scope.poll_override,
        delayed_until=entry.delayed_until,
    )


def _polls_read_same(before: PublishedScope, after: PublishedScope) -> bool:
    """Whether polls of all VMs get the same response as before (spec §4.2)."""
    same_response = before.document == after.document and before.poll_override == after.poll_override
    same_readers = before.vms.keys() == after.vms.keys() and before.is_narrow == after.is_narrow
    return before.epoch == after.epoch and same_response and same_readers


_STALE_RETENTION_S = 60.0


class StaleDocuments:
    """Keeps replaced scopes for at least a minute (real time) while enabled, so a fault can serve old documents."""

    def __init__(self) -> None:
        # scope id → (loop time until which it was published, scope), oldest first; None: off
        self._replaced: dict[str, deque[tuple[float, PublishedScope]]] | None = None

    def set_enabled(self, enabled: bool) -> None:
        """Start (True) to keep replaced scopes, or stop (False) and drop all that are kept."""
        if not enabled:
            self._replaced = None
        elif self._replaced is None:
            self._replaced = {}

    def add(self, replaced: PublishedScope) -> None:
        """Keep a scope that was replaced just now; does nothing if not enabled."""
        if self._replaced is None:
            return
        now = asyncio.get_running_loop().time()
        history = self._replaced.setdefault(replaced.scope_id, deque())
        history.append((now, replaced))
        while history[0][0] < now - _STALE_RETENTION_S:
            history.popleft()

    def view_at(self, view: GuestView, at: float) -> GuestView:
        """Return a copy of the view with the epoch and document that its scope had at `at` (event loop time)."""
        # A VM that the scope did not have then gets what the others got; if the scope was narrow, only the events that
        # name the VM.
        history = self._replaced.get(view.scope_id, ()) if self._replaced is not None else ()
        earlier = next((scope for until, scope in history if until >= at), None)
        if earlier is None or not earlier.enabled:
            return view
        document = earlier.document.narrowed_to(view.facts.name) if earlier.is_narrow else earlier.document
        return replace(view, epoch=earlier.epoch, document=document)
