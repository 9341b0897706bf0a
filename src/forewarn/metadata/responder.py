"""Who gets which answer: what `protocol.exchange` reads out of a request, answered from the board or by the house.

An answer is a response at once, a `Hold` (it waits, and keeps nobody else waiting), or a coroutine (the house must
write something down first) that gives what to call for the rest. Nothing is decided before the call: the board may
have changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from forewarn.clock import read_real_time
from forewarn.errors import Conflict, NotFound, Unavailable
from forewarn.metadata.approval import Approvals
from forewarn.metadata.board import Board
from forewarn.metadata.identity import Caller, Callers
from forewarn.metadata.memory import Memory
from forewarn.metadata.observation import Observations
from forewarn.metadata.seam import Backend, Reset, View
from forewarn.metadata.sort import agent_of
from forewarn.metadata.throttle import Throttle
from forewarn.protocol.answer import not_found
from forewarn.protocol.exchange import (
    Approve,
    GetToken,
    Poll,
    ReadInstance,
    Request,
    Response,
    Rules,
    answer_poll,
    applied_wait,
    approved,
    has_document,
    read,
    throttled,
    unavailable,
    unknown_event,
)
from forewarn.protocol.identity import ManagedIdentity, Token, WrongResource, answer_token, identity_not_found
from forewarn.protocol.instance import answer_instance

if TYPE_CHECKING:
    from forewarn.metadata.fault import FaultTable, Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An answer that waits until a moment, or until the document of a scope changes.

    `resume(over)` gives it, or another hold; `over`: the moment has come, or there is no more time to wait.
    """

    until: float  # loop time
    resume: Callable[[bool], Answer]
    scope_id: str = ""  # "": only time ends this hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip:
    """A response whose body takes its time."""

    response: Response
    take_s: float


Answer: TypeAlias = "Response | Reset | Hold | Drip | Work"
Rest: TypeAlias = Callable[[], "Answer"]
Work: TypeAlias = Coroutine[Any, Any, Rest]


class Reception:
    """Answers the requests of all connections."""

    def __init__(
        self,
        *,
        board: Board,
        backend: Backend,
        callers: Callers,
        rules_for: Callable[[str], Rules],
        throttle: Throttle,
        observations: Observations,
        faults: FaultTable,
        memory: Memory,
    ) -> None:
        self._board = board
        self._backend = backend
        self._callers = callers
        self._rules_for = rules_for
        self._throttle = throttle
        self._observations = observations
        self._faults = faults
        self._memory = memory
        self._approvals = Approvals()
        self._enabling: dict[str, asyncio.Task[None]] = {}

    def knows(self, caller: Caller) -> bool:
        return self._view(caller) is not None

    def answer(self, caller: Caller, request: Request) -> Answer:
        view = self._view(caller)
        if view is None:
            refusal = read(request, known=False, rules=Rules())
            assert isinstance(refusal, Response)
            return refusal
        if not self._throttle.admits(view.vm, _real_time()):
            return throttled()

        trouble = self._faults.trouble_of(view)
        rules = self._rules(caller, view)
        asked = read(request, known=True, rules=rules if trouble is None else trouble.rules(rules))
        if isinstance(asked, Response) and trouble is not None and not trouble.stands(asked):
            asked = read(request, known=True, rules=rules)
        if isinstance(asked, Response):
            return asked
        if isinstance(asked, ReadInstance):
            return answer_instance(asked, view.facts)
        if isinstance(asked, GetToken):
            return self._token(caller, asked, view)
        spoiled = None if trouble is None else trouble.refusal()
        if spoiled is not None:
            return spoiled
        if not view.enabled:
            return self._enable_first(caller, asked, agent_of(request), view, trouble)
        return self._serve(caller, asked, agent_of(request), trouble)

    def lasting(self, caller: Caller, request: Request) -> tuple[View, str] | None:
        """The view and version of a request that was just answered at once and would be answered alike until the view
        changes: a poll, or an approval that changes nothing, as clients send that approve whatever is listed.
        None: of any other request. Whatever else an answer depends on keeps a request from lasting.
        """
        view = self._view(caller)
        if view is None or self._throttle.is_on or self._faults.trouble_of(view) is not None:
            return None
        asked = read(request, known=True, rules=self._rules(caller, view))
        if isinstance(asked, Approve):
            return (view, asked.version) if self._approvals.cover(view, asked.event_ids) else None
        return (view, asked.version) if isinstance(asked, Poll) else None

    def _token(self, caller: Caller, ask: GetToken, view: View) -> Answer:
        identity = _identity_of(view)
        return self._issue(caller, ask, identity) if identity.is_meant(ask) else identity_not_found()

    async def _issue(self, caller: Caller, ask: GetToken, identity: ManagedIdentity) -> Rest:
        try:
            given = await self._backend.token(identity, ask.resource)
        except (Unavailable, Conflict):
            return unavailable
        return partial(self._hand_over, caller, ask, identity, given)

    def _hand_over(
        self, caller: Caller, ask: GetToken, identity: ManagedIdentity, given: Token | WrongResource
    ) -> Response:
        """Unless the VM went meanwhile, or one that came back under its name is there instead."""
        view = self._view(caller)
        if view is None or _identity_of(view) != identity:
            return not_found()
        return answer_token(given, ask=ask, identity=identity, now=read_real_time())

    async def _enable_first(
        self, caller: Caller, asked: Poll | Approve, agent: str, view: View, trouble: Trouble | None
    ) -> Rest:
        try:
            await self._enable(view)
        except NotFound:  # removed in the same moment
            return not_found
        except (Unavailable, Conflict):
            return unavailable
        return partial(self._serve, caller, asked, agent, trouble)

    async def _enable(self, view: View) -> None:
        """First requests that come together share one enabling, and no caller who hangs up undoes it."""
        enabling = self._enabling.get(view.scope_id)
        if enabling is None:
            enabling = asyncio.get_running_loop().create_task(self._ask_to_enable(view.vm))
            self._enabling[view.scope_id] = enabling
            enabling.add_done_callback(partial(self._enabled, view.scope_id))
        await asyncio.shield(enabling)

    async def _ask_to_enable(self, vm: str) -> None:
        await self._backend.enable(vm)

    def _enabled(self, scope_id: str, enabling: asyncio.Task[None]) -> None:
        del self._enabling[scope_id]
        if not enabling.cancelled():
            enabling.exception()  # those who wait are told; with nobody left it is of no interest

    def _serve(self, caller: Caller, asked: Poll | Approve, agent: str, trouble: Trouble | None) -> Answer:
        view = self._view(caller)
        if view is None:
            return not_found()
        self._memory.settle_for(view.vm)
        wait_s = _will_wait_s(asked, view)
        self._observations.asked(view, asked.version, self._backend.now(), agent=agent, wait_s=wait_s)
        serve = self._serve_now if trouble is None else partial(self._serve_in_trouble, trouble)
        if view.answers_from > _real_time():
            return Hold(until=view.answers_from, resume=lambda over: serve(caller, asked))
        return serve(caller, asked)

    def _serve_in_trouble(self, trouble: Trouble, caller: Caller, asked: Poll | Approve) -> Answer:
        view = self._view(caller)
        if view is None:
            return not_found()
        return trouble.serve(asked, view, partial(self._serve_now, caller), partial(self._document, caller))

    def _serve_now(self, caller: Caller, asked: Poll | Approve) -> Answer:
        if isinstance(asked, Poll):
            return self._poll(caller, asked, None, False)
        view = self._view(caller)
        if view is None:
            return not_found()
        if self._approvals.cover(view, asked.event_ids):
            return approved()
        return self._approve(caller, asked.event_ids)

    async def _approve(self, caller: Caller, event_ids: tuple[str, ...]) -> Rest:
        view = self._view(caller)
        if view is None:
            return not_found
        try:
            unknown = await self._backend.approve(view.vm, event_ids)
        except NotFound:
            return not_found
        except (Unavailable, Conflict):
            return unavailable
        if unknown is not None:
            return partial(unknown_event, unknown)
        after = self._view(caller)
        if after is not None and after.scope_id == view.scope_id:
            self._approvals.keep(view.scope_id, event_ids)
        return approved

    def _poll(self, caller: Caller, poll: Poll, until: float | None, over: bool) -> Answer:
        view = self._view(caller)
        if view is None:
            return not_found()
        if view.instead is not None:
            return view.instead
        given = self._given(caller, poll, view)
        if given is not None:
            return given
        has_it = has_document(poll, view.tag)
        if poll.wait_s is not None and has_it and not over:
            until = until or _real_time() + poll.wait_s
            again = partial(self._poll, caller, poll, until)
            return Hold(until=until, resume=again, scope_id=view.scope_id)
        return self._document(caller, poll, view)

    def _given(self, caller: Caller, poll: Poll, view: View) -> Response | None:
        """What somebody was given who asked the same, and so had another document, as this caller has."""
        given = self._board.answer(view, poll, iso_dates=self._rules(caller, view).iso_dates)
        if given is not None:
            self._observations.given(view, poll.version, self._backend.now())
        return given

    def _document(self, caller: Caller, poll: Poll, view: View) -> Response:
        rules = self._rules(caller, view)
        if has_document(poll, view.tag):
            return _applied(poll, answer_poll(poll, tag=view.tag, document=view.document, rules=rules))
        self._observations.given(view, poll.version, self._backend.now())
        body = self._board.body(view, poll.version, iso_dates=rules.iso_dates)
        answer = _applied(poll, answer_poll(poll, tag=view.tag, document=view.document, rules=rules, body=body))
        self._board.keep(view, poll, answer, iso_dates=rules.iso_dates)
        return answer

    def _view(self, caller: Caller) -> View | None:
        if caller.vm is None or self._callers.vm_at(caller.place) != caller.vm:
            return None
        return self._board.view(caller.vm)

    def _rules(self, caller: Caller, view: View) -> Rules:
        rules = self._rules_for(view.location)
        return rules if caller.is_loopback else _on_a_network(rules, caller.is_local)


@lru_cache(maxsize=64)
def _on_a_network(rules: Rules, is_local: bool) -> Rules:
    """The header is always required there (spec §2.2), and who calls is certain enough for tokens (spec §2.8)."""
    return replace(rules, header_always=True, gives_tokens=rules.gives_tokens or not is_local)


def _will_wait_s(asked: Poll | Approve, view: View) -> int:
    """How long the answer may be held: not at all, if there is one already."""
    if not isinstance(asked, Poll) or asked.wait_s is None or view.instead is not None:
        return 0
    return asked.wait_s if has_document(asked, view.tag) else 0


def _applied(poll: Poll, answer: Response) -> Response:
    return answer if poll.wait_s is None else applied_wait(answer, poll.wait_s)


def _identity_of(view: View) -> ManagedIdentity:
    facts = view.facts
    return ManagedIdentity(vm=view.vm, vm_id=facts.vm_id, name=facts.name, resource_id=facts.resource_id)


def _real_time() -> float:
    return asyncio.get_running_loop().time()
