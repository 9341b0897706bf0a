"""What VMs are shown, in memory: the newest view of every scope, its rendered bytes, and who waits for a change."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from forewarn.metadata.past import Past
from forewarn.metadata.seam import ScopeView, View
from forewarn.protocol.codec import encode
from forewarn.protocol.exchange import Poll, Response

_WAKES_PER_TURN = 200  # more would make other polls wait
_SHARED_BODIES = 1024
_SHARED_ANSWERS = 64  # of one scope: whoever waits for a change asks in much the same words

Answers = dict[tuple[Poll, bool], Response]


class Waiter(Protocol):
    def wake(self) -> None:
        """Look at the board again; a waiter that left meanwhile has nothing to do."""


@dataclass(slots=True)
class _Posted:
    scope: ScopeView
    answers_from: float = 0.0
    views: dict[str, View] = field(default_factory=dict)
    bodies: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    answers: Answers = field(default_factory=dict)
    waiters: dict[Waiter, None] = field(default_factory=dict)


class Board:
    """Control publishes here at every commit; polls are answered from here and never touch the store."""

    def __init__(self, *, first_answer_delay_s: float = 0.0) -> None:
        self._delay_s = first_answer_delay_s
        self._posted: dict[str, _Posted] = {}
        self._scope_of: dict[str, str] = {}
        self._woken: deque[Waiter] = deque()
        self._tell: list[Callable[[Iterable[str]], None]] = []
        self.past = Past()
        self._render = lru_cache(maxsize=_SHARED_BODIES)(encode)

    def follow(self, tell: Callable[[Iterable[str]], None]) -> None:
        """Tell this which VMs have another view, or none, as soon as they have."""
        self._tell.append(tell)

    def publish(self, scope: ScopeView) -> None:
        """Show this from now on; whoever waits for a change of the scope is woken."""
        before = self._posted.get(scope.scope_id)
        posted = _Posted(scope, answers_from=self._answers_from(before, scope))
        self._posted[scope.scope_id] = posted
        self._move_in(scope)
        self._changed(scope)

        if before is None:
            return
        self._changed(before.scope)
        self._move_out(before.scope, staying=scope.vms.keys())
        if _reads_alike(before.scope, scope):
            posted.bodies, posted.answers, posted.waiters = before.bodies, before.answers, before.waiters
        else:
            self.past.keep(before.scope)
            self._wake(before.waiters)

    def drop(self, scope_id: str) -> None:
        """The scope is no more: its VMs are unknown from now on."""
        gone = self._posted.pop(scope_id, None)
        if gone is not None:
            self._move_out(gone.scope, staying=())
            self._changed(gone.scope)
            self._wake(gone.waiters)

    def view(self, vm: str) -> View | None:
        """What this VM may be told; None: there is no such VM."""
        scope_id = self._scope_of.get(vm)
        if scope_id is None:
            return None
        posted = self._posted[scope_id]
        view = posted.views.get(vm)
        if view is None:
            view = posted.views[vm] = _view(vm, posted)
        return view

    def answer(self, view: View, poll: Poll, *, iso_dates: bool) -> Response | None:
        """The document as it was given before to whoever asked the same; None: nobody has yet."""
        posted = self._shown(view)
        return None if posted is None else posted.answers.get((poll, iso_dates))

    def keep(self, view: View, poll: Poll, answer: Response, *, iso_dates: bool) -> None:
        """Give this to whoever asks the same, until the scope changes."""
        posted = self._shown(view)
        if posted is not None and len(posted.answers) < _SHARED_ANSWERS:
            posted.answers[poll, iso_dates] = answer

    def body(self, view: View, version: str, *, iso_dates: bool) -> bytes:
        """The view's document as `version` shows it: rendered when first asked for, equal ones kept once."""
        posted = self._shown(view)
        if posted is None:
            return self._render(view.document, version, iso_dates=iso_dates)
        body = posted.bodies.get((version, iso_dates))
        if body is None:
            fresh = self._render(view.document, version, iso_dates=iso_dates)
            body = next((equal for equal in posted.bodies.values() if equal == fresh), fresh)
            posted.bodies[version, iso_dates] = body
        return body

    def hold(self, scope_id: str, waiter: Waiter) -> None:
        """Wake the waiter once, at the scope's next change."""
        self._posted[scope_id].waiters[waiter] = None

    def release(self, scope_id: str, waiter: Waiter) -> None:
        posted = self._posted.get(scope_id)
        if posted is not None:
            posted.waiters.pop(waiter, None)

    def _shown(self, view: View) -> _Posted | None:
        """What is posted, if that is what the view shows: it may be older."""
        posted = self._posted.get(view.scope_id)
        if posted is None or posted.scope.document is not view.document or posted.scope.epoch != view.epoch:
            return None
        return posted

    def _answers_from(self, before: _Posted | None, scope: ScopeView) -> float:
        if before is None:
            return 0.0
        if self._delay_s and scope.enabled and not before.scope.enabled:
            return asyncio.get_running_loop().time() + self._delay_s
        return before.answers_from

    def _move_in(self, scope: ScopeView) -> None:
        for vm in scope.vms:
            self._scope_of[vm] = scope.scope_id

    def _move_out(self, scope: ScopeView, *, staying: Iterable[str]) -> None:
        for vm in scope.vms.keys() - set(staying):
            # Unless another scope has taken it in already.
            if self._scope_of.get(vm) == scope.scope_id:
                del self._scope_of[vm]

    def _changed(self, scope: ScopeView) -> None:
        for tell in self._tell:
            tell(scope.vms)

    def _wake(self, waiters: Iterable[Waiter]) -> None:
        idle = not self._woken
        self._woken.extend(waiters)
        if idle and self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(len(self._woken), _WAKES_PER_TURN)):
            self._woken.popleft().wake()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)


def _view(vm: str, posted: _Posted) -> View:
    scope = posted.scope
    return View(
        vm=vm,
        scope_id=scope.scope_id,
        enabled=scope.enabled,
        epoch=scope.epoch,
        document=scope.document,
        facts=scope.vms[vm],
        instead=scope.instead,
        answers_from=posted.answers_from,
    )


def _reads_alike(before: ScopeView, after: ScopeView) -> bool:
    """Whether a poll of any VM gets the same answer as before: same incarnation, same content (spec §4.2)."""
    same_words = before.document == after.document and before.instead == after.instead
    return before.epoch == after.epoch and same_words and before.vms.keys() == after.vms.keys()
