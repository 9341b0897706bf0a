"""Faults of transport (spec §11): which are on for a VM, and what they make of its requests.

They touch sound polls and approvals only. One that refuses goes before one that spoils, and of several the one that
was set first. While none is on, a poll costs one test for None; while some are, one lookup more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forewarn.clock import read_real_time
from forewarn.core.fault import Fault, FaultKind, Sphere, Touch
from forewarn.metadata.allowance import Allowance, OwnAllowance
from forewarn.metadata.answer import Answer, Drip, Hold
from forewarn.metadata.past import Past
from forewarn.metadata.reply import BROKEN
from forewarn.metadata.seam import Reset, View
from forewarn.protocol.answer import throttled, version_not_found
from forewarn.protocol.exchange import Approve, Poll, Response, Rules, UnknownVersion
from forewarn.protocol.message import JSON

GONE = Response(status=410, headers=(JSON,), body=b'{ "error": "Gone" }')
EMPTY = Response(status=200, headers=(JSON,))

Go = Callable[[Poll | Approve], Answer]  # serve this as if nothing were wrong
Give = Callable[[Poll, View], Response]  # the document of this view


class FaultTable:
    """Swapped whole when faults change; counts what they touch until somebody takes the counts."""

    def __init__(
        self,
        past: Past,
        *,
        now: Callable[[], float],
        real_time: Callable[[], float] = read_real_time,
        allowance: Allowance | None = None,
    ) -> None:
        self.past = past
        self._now, self._real_time = now, real_time
        self._allowance = allowance or OwnAllowance()
        self._armed: tuple[Fault, ...] | None = None
        self._troubles: dict[str, tuple[str, Trouble | None]] = {}  # VM → its scope, and what is on for it
        self._armed_at: dict[str, float] = {}  # fault → loop time
        self._first_asked_at: dict[tuple[str, str], float] = {}  # fault and VM; loop time
        self._untold: dict[tuple[str, str], Touch] = {}
        self._tell: list[Callable[[Sequence[str] | None], None]] = []
        self._tell_touched: list[Callable[[], None]] = []

    def follow(self, tell: Callable[[Sequence[str] | None], None]) -> None:
        """Tell this for which VMs other faults may be on than before; None: for any."""
        self._tell.append(tell)

    def follow_touches(self, tell: Callable[[], None]) -> None:
        """Tell this when there is something to `take`."""
        self._tell_touched.append(tell)

    def arm(self, faults: Sequence[Fault]) -> None:
        """From now on these, and no others, are on."""
        armed = tuple(fault for fault in faults if fault.sphere is Sphere.TRANSPORT)
        at = asyncio.get_running_loop().time()
        changed = _changed_between(self._armed or (), armed)
        self._armed = armed or None
        self._allowance.begin(armed)
        self._armed_at = {fault.id: self._armed_at.get(fault.id, at) for fault in armed}
        self._first_asked_at = {key: at for key, at in self._first_asked_at.items() if key[0] in self._armed_at}
        self.past.watch(any(fault.kind is FaultKind.STALE for fault in armed))
        if changed:
            self._look_again(changed)

    def trouble_of(self, view: View) -> Trouble | None:
        """What is wrong with this VM's transport; None: nothing."""
        if self._armed is None:
            return None
        scope_id, trouble = self._troubles.get(view.vm, ("", None))
        if scope_id != view.scope_id:
            trouble = self._look(self._armed, view)
            self._troubles[view.vm] = (view.scope_id, trouble)
        return trouble

    def take(self) -> list[Touch]:
        """What was touched since the last time."""
        touches, self._untold = list(self._untold.values()), {}
        return touches

    def put_back(self, touches: Sequence[Touch]) -> None:
        for touch in touches:
            self._count(touch)

    def is_on(self, fault: Fault) -> bool:
        if fault.id not in self._armed_at or not self._allowance.is_left(fault):
            return False
        return fault.until is None or self._real_time() < fault.until

    def touch(self, fault: Fault, vm: str) -> bool:
        """One request of the VM; False: another one was the last."""
        if not self._allowance.take(fault):
            return False
        self._count(Touch(fault_id=fault.id, vm=vm, count=1, at=self._now()))
        for tell in self._tell_touched:
            tell()
        return True

    def late_until(self, fault: Fault, vm: str) -> float:
        """Loop time before which this VM is not answered: counted from its first request."""
        first = self._first_asked_at.setdefault((fault.id, vm), asyncio.get_running_loop().time())
        return first + fault.value("delay_s")

    def stale_view(self, fault: Fault, view: View) -> View:
        """What was shown `age` ago, though nothing from before the fault was set."""
        at = asyncio.get_running_loop().time() - fault.value("age_s")
        return self.past.view(view, max(at, self._armed_at.get(fault.id, at)))

    def _look_again(self, changed: Sequence[Fault]) -> None:
        vms = [fault.vm for fault in changed] if all(fault.vm for fault in changed) else None
        if vms is None:
            self._troubles = {}
        else:
            for vm in vms:
                self._troubles.pop(vm, None)
        for tell in self._tell:
            tell(vms)

    def _look(self, armed: Sequence[Fault], view: View) -> Trouble | None:
        faults = tuple(fault for fault in armed if fault.covers(scope_id=view.scope_id, vm=view.vm))
        return Trouble(table=self, vm=view.vm, faults=faults) if faults else None

    def _count(self, touch: Touch) -> None:
        key = (touch.fault_id, touch.vm)
        known = self._untold.get(key)
        both = touch if known is None else replace(known, count=known.count + touch.count, at=max(known.at, touch.at))
        self._untold[key] = both


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The faults that are on for one VM."""

    table: FaultTable
    vm: str
    faults: tuple[Fault, ...]

    def rules(self, rules: Rules) -> Rules:
        if self._first(FaultKind.UNKNOWN_VERSION_404) is None:
            return rules
        return replace(rules, unknown_version=UnknownVersion.NOT_FOUND)

    def stands(self, refusal: Response) -> bool:
        """Whether a request that was refused by `rules` is: not if a fault would have been needed, and is spent."""
        if refusal != version_not_found():
            return True
        fault = self._first(FaultKind.UNKNOWN_VERSION_404)
        return fault is not None and self.touch(fault)

    def refusal(self) -> Response | Reset | None:
        """The answer of a service that is not itself: nothing of the request takes effect."""
        for fault in self._on(*_REFUSALS):
            if self.touch(fault):
                return _REFUSALS[fault.kind](fault)
        return None

    def serve(self, asked: Poll | Approve, view: View, go: Go, give: Give) -> Answer:
        """The answer, spoiled by the first fault that fits the request; else as it would be anyway."""
        for fault in self.faults:
            spoil = _SPOILS.get(fault.kind)
            if spoil is not None and self.table.is_on(fault):
                answer = spoil(self, fault, asked, view, go, give)
                if answer is not None:
                    return answer
        return go(asked)

    def touch(self, fault: Fault) -> bool:
        return self.table.touch(fault, self.vm)

    def _first(self, *kinds: FaultKind) -> Fault | None:
        return next(self._on(*kinds), None)

    def _on(self, *kinds: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.kind in kinds and self.table.is_on(fault))


def _changed_between(before: Sequence[Fault], after: Sequence[Fault]) -> list[Fault]:
    """Faults that came or went. What one has touched is written down every second and makes it no other."""
    known, new = [fault.untouched for fault in before], [fault.untouched for fault in after]
    return [fault for fault in (*known, *new) if fault not in known or fault not in new]


def _throttled(fault: Fault) -> Response:
    wait_s = math.ceil(fault.value("retry_after_s"))
    refusal = throttled()
    return replace(refusal, headers=(*refusal.headers, ("Retry-After", str(wait_s)))) if wait_s else refusal


_REFUSALS: dict[FaultKind, Callable[[Fault], Response | Reset]] = {
    FaultKind.GONE: lambda fault: GONE,
    FaultKind.THROTTLED: _throttled,
    FaultKind.INTERNAL_ERROR: lambda fault: BROKEN,
    FaultKind.RESET: lambda fault: Reset(),
}


def _late(trouble: Trouble, fault: Fault, asked: Poll | Approve, view: View, go: Go, give: Give) -> Answer | None:
    until = trouble.table.late_until(fault, trouble.vm)
    if asyncio.get_running_loop().time() >= until or not trouble.touch(fault):
        return None
    return Hold(until=until, resume=lambda over: go(asked))


def _empty(trouble: Trouble, fault: Fault, asked: Poll | Approve, view: View, go: Go, give: Give) -> Answer | None:
    if isinstance(asked, Approve):
        return None  # its answer has no body anyway
    return EMPTY if trouble.touch(fault) else None


def _slow(trouble: Trouble, fault: Fault, asked: Poll | Approve, view: View, go: Go, give: Give) -> Answer | None:
    def drip(response: Response) -> Answer:
        if not response.body or not trouble.table.is_on(fault) or not trouble.touch(fault):
            return response
        return Drip(response=response, take_s=fault.value("take_s"))

    return _changed(go(asked), drip) if isinstance(asked, Poll) else None


def _stale(trouble: Trouble, fault: Fault, asked: Poll | Approve, view: View, go: Go, give: Give) -> Answer | None:
    if isinstance(asked, Approve):
        return None
    at_once = replace(asked, wait_s=None)  # whoever waited would be given what is new
    then = trouble.table.stale_view(fault, view)
    if then is view:
        return go(at_once)
    return give(at_once, then) if trouble.touch(fault) else None


_Spoil = Callable[[Trouble, Fault, Poll | Approve, View, Go, Give], "Answer | None"]
_SPOILS: dict[FaultKind, _Spoil] = {
    FaultKind.LATE_FIRST_ANSWER: _late,
    FaultKind.EMPTY_BODY: _empty,
    FaultKind.SLOW_BODY: _slow,
    FaultKind.STALE: _stale,
}


def _changed(answer: Answer, change: Callable[[Response], Answer]) -> Answer:
    """The answer with its response changed, whenever that comes."""
    if isinstance(answer, Response):
        return change(answer)
    if isinstance(answer, Hold):
        resume = answer.resume
        return replace(answer, resume=lambda over: _changed(resume(over), change))
    return answer
