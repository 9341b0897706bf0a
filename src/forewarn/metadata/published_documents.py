"""What VMs are shown, in memory: the newest view of each scope, its rendered bytes, its waiters.

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
from typing import Protocol

from forewarn.metadata.interface import GuestView, PublishedScope
from forewarn.protocol.codec import encode_document
from forewarn.protocol.exchange import PollRequest
from forewarn.protocol.http_message import HttpResponse

_WAKES_PER_TURN = 200  # more would make other polls wait
_CACHED_BODIES = 1024
_MAX_SHARED_RESPONSES = 64  # of one scope: whoever waits for a change asks in much the same words

_SharedResponses = dict[tuple[PollRequest, bool], HttpResponse]


class ChangeWaiter(Protocol):
    def wake(self) -> None:
        """Look at the board again; a waiter that left meanwhile has nothing to do."""


@dataclass(slots=True)
class _PublishedEntry:
    scope: PublishedScope
    delayed_until: float = 0.0
    views: dict[str, GuestView] = field(default_factory=dict)
    bodies: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    responses: _SharedResponses = field(default_factory=dict)
    waiters: dict[ChangeWaiter, None] = field(default_factory=dict)


class PublishedDocuments:
    """Control publishes here at every commit; polls are answered from here and never touch the store."""

    def __init__(self, *, first_answer_delay_s: float = 0.0) -> None:
        self._first_answer_delay_s = first_answer_delay_s
        self._entries: dict[str, _PublishedEntry] = {}
        self._scope_id_by_vm: dict[str, str] = {}
        self._wake_queue: deque[ChangeWaiter] = deque()
        self._subscribers: list[Callable[[Iterable[str]], None]] = []
        self.stale_documents = StaleDocuments()
        self._render = lru_cache(maxsize=_CACHED_BODIES)(encode_document)

    def subscribe(self, tell: Callable[[Iterable[str]], None]) -> None:
        """Tell this which VMs have another view, or none, as soon as they have."""
        self._subscribers.append(tell)

    def publish(self, scope: PublishedScope) -> None:
        """Show this from now on; whoever waits for a change of the scope is woken."""
        before = self._entries.get(scope.scope_id)
        posted = _PublishedEntry(scope, delayed_until=self._delayed_until(before, scope))
        self._entries[scope.scope_id] = posted
        self._index_vms(scope)
        self._notify_subscribers(scope)

        if before is None:
            return
        self._notify_subscribers(before.scope)
        self._unindex_vms(before.scope, staying=scope.vms.keys())
        if _polls_read_same(before.scope, scope):
            posted.bodies, posted.responses, posted.waiters = before.bodies, before.responses, before.waiters
        else:
            self.stale_documents.add(before.scope)
            self._wake(before.waiters)

    def remove(self, scope_id: str) -> None:
        """The scope is no more: its VMs are unknown from now on."""
        gone = self._entries.pop(scope_id, None)
        if gone is not None:
            self._unindex_vms(gone.scope, staying=())
            self._notify_subscribers(gone.scope)
            self._wake(gone.waiters)

    def view(self, vm: str) -> GuestView | None:
        """What this VM may be told; None: there is no such VM."""
        scope_id = self._scope_id_by_vm.get(vm)
        if scope_id is None:
            return None
        posted = self._entries[scope_id]
        view = posted.views.get(vm)
        if view is None:
            view = posted.views[vm] = _make_view(vm, posted)
        return view

    def shared_response(self, view: GuestView, poll: PollRequest, *, iso_dates: bool) -> HttpResponse | None:
        """The document as it was given before to whoever asked the same; None: nobody has yet."""
        posted = self._entry_for(view)
        return None if posted is None else posted.responses.get((poll, iso_dates))

    def share_response(self, view: GuestView, poll: PollRequest, answer: HttpResponse, *, iso_dates: bool) -> None:
        """Give this to whoever asks the same, until the scope changes."""
        posted = self._entry_for(view)
        if posted is not None and len(posted.responses) < _MAX_SHARED_RESPONSES:
            posted.responses[poll, iso_dates] = answer

    def document_bytes(self, view: GuestView, version: str, *, iso_dates: bool) -> bytes:
        """The view's document as `version` shows it: rendered when first asked for, equal ones kept once."""
        posted = self._entry_for(view)
        if posted is None:
            return self._render(view.document, version, iso_dates=iso_dates)
        body = posted.bodies.get((version, iso_dates))
        if body is None:
            fresh = self._render(view.document, version, iso_dates=iso_dates)
            body = next((equal for equal in posted.bodies.values() if equal == fresh), fresh)
            posted.bodies[version, iso_dates] = body
        return body

    def add_waiter(self, scope_id: str, waiter: ChangeWaiter) -> None:
        """Wake the waiter once, at the scope's next change."""
        self._entries[scope_id].waiters[waiter] = None

    def remove_waiter(self, scope_id: str, waiter: ChangeWaiter) -> None:
        posted = self._entries.get(scope_id)
        if posted is not None:
            posted.waiters.pop(waiter, None)

    def _entry_for(self, view: GuestView) -> _PublishedEntry | None:
        """What is posted, if that is what the view shows: it may be older."""
        posted = self._entries.get(view.scope_id)
        if posted is None or posted.scope.document is not view.document or posted.scope.epoch != view.epoch:
            return None
        return posted

    def _delayed_until(self, before: _PublishedEntry | None, scope: PublishedScope) -> float:
        if before is None:
            return 0.0
        if self._first_answer_delay_s and scope.enabled and not before.scope.enabled:
            return asyncio.get_running_loop().time() + self._first_answer_delay_s
        return before.delayed_until

    def _index_vms(self, scope: PublishedScope) -> None:
        for vm in scope.vms:
            self._scope_id_by_vm[vm] = scope.scope_id

    def _unindex_vms(self, scope: PublishedScope, *, staying: Iterable[str]) -> None:
        for vm in scope.vms.keys() - set(staying):
            # Unless another scope has taken it in already.
            if self._scope_id_by_vm.get(vm) == scope.scope_id:
                del self._scope_id_by_vm[vm]

    def _notify_subscribers(self, scope: PublishedScope) -> None:
        for tell in self._subscribers:
            tell(scope.vms)

    def _wake(self, waiters: Iterable[ChangeWaiter]) -> None:
        idle = not self._wake_queue
        self._wake_queue.extend(waiters)
        if idle and self._wake_queue:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(len(self._wake_queue), _WAKES_PER_TURN)):
            self._wake_queue.popleft().wake()
        if self._wake_queue:
            asyncio.get_running_loop().call_soon(self._wake_some)


def _make_view(vm: str, posted: _PublishedEntry) -> GuestView:
    scope = posted.scope
    return GuestView(
        vm=vm,
        scope_id=scope.scope_id,
        enabled=scope.enabled,
        epoch=scope.epoch,
        document=scope.document,
        facts=scope.vms[vm],
        poll_override=scope.poll_override,
        delayed_until=posted.delayed_until,
    )


def _polls_read_same(before: PublishedScope, after: PublishedScope) -> bool:
    """Whether a poll of any VM gets the same answer as before: same incarnation, same content (spec §4.2)."""
    same_words = before.document == after.document and before.poll_override == after.poll_override
    return before.epoch == after.epoch and same_words and before.vms.keys() == after.vms.keys()


_STALE_RETENTION_S = 60.0


class StaleDocuments:
    def __init__(self) -> None:
        self._replaced: dict[str, deque[tuple[float, PublishedScope]]] | None = (
            None  # scope → until when it was shown, what
        )

    def set_enabled(self, on: bool) -> None:
        """Begin to keep what is replaced; or forget all of it."""
        if not on:
            self._replaced = None
        elif self._replaced is None:
            self._replaced = {}

    def add(self, replaced: PublishedScope) -> None:
        if self._replaced is None:
            return
        now = asyncio.get_running_loop().time()
        kept = self._replaced.setdefault(replaced.scope_id, deque())
        kept.append((now, replaced))
        while kept[0][0] < now - _STALE_RETENTION_S:
            kept.popleft()

    def view_at(self, view: GuestView, at: float) -> GuestView:
        """What this VM was shown at a moment (loop time): the view itself if that has not changed since."""
        kept = self._replaced.get(view.scope_id, ()) if self._replaced is not None else ()
        then = next((scope for until, scope in kept if until >= at), None)
        if then is None or not then.enabled:
            return view
        return replace(view, epoch=then.epoch, document=then.document)
