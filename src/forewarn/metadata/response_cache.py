"""Requests remembered with their answers, so that one which comes again is looked up instead of read.

Per VM a small table: the bytes of a request → the answer that is right until something changes. Whatever changes
empties it, and whatever is special (a fault, a limit, a scope that is not enabled) is never put there; so a request
that is found needs no further test. What repeats would have put down is worked out afterwards, from their counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from forewarn.metadata.observation import PORTION, Observations
from forewarn.metadata.reply import Dated, Writer
from forewarn.metadata.seam import View
from forewarn.metadata.sort import Sort

if TYPE_CHECKING:
    from forewarn.metadata.identity import Caller

MOST_BYTES = 1024  # of a request that is remembered
_MOST_PER_VM = 16  # requests: so a VM that never asks the same twice makes only itself slow
_MOST_VMS = 200_000

Answers = dict[bytes, "Remembered"]


class Remembered:
    """One request's answer, as long as it is right."""

    __slots__ = ("agent", "count", "dated", "keep_alive", "shelf", "sort", "status", "version")

    def __init__(
        self, *, shelf: Shelf, dated: Dated, keep_alive: bool, status: int, version: str, sort: Sort, agent: str
    ) -> None:
        self.shelf, self.dated, self.keep_alive = shelf, dated, keep_alive
        self.status, self.version, self.sort, self.agent = status, version, sort, agent
        self.count = 0  # repeats that are not settled yet


class Shelf:
    """What one VM is told while it may be told the same; another view of it begins another shelf."""

    __slots__ = ("answers", "at", "last", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.answers: dict[tuple[bool, bool], Answers] = {}  # by what sets callers of one VM apart
        self.last: Remembered | None = None  # repeated since the last settling
        self.at = 0.0


class Memory:
    def __init__(
        self,
        *,
        writer: Writer,
        observations: Observations,
        now: Callable[[], float],
        count: Callable[[Sort, int, int], None],
        is_on: bool = True,
    ) -> None:
        self._writer, self._observations, self._now, self._count = writer, observations, now, count
        self._is_on = is_on
        self._shelves: dict[str, Shelf] = {}
        self._repeated: dict[Shelf, None] = {}
        self._date = writer.date_at(now())
        observations.settle_with(self.settle_some, self.settle_for)

    def answers_for(self, vm: str | None, is_loopback: bool, is_local: bool) -> Answers | None:
        """What is remembered for the VM's callers of this kind; None: nothing."""
        shelf = self._shelves.get(vm) if vm is not None else None
        return None if shelf is None else shelf.answers.get((is_loopback, is_local))

    def repeat(self, answer: Remembered) -> bytes:
        """The answer once more, dated and counted: this is what a poll costs."""
        now = self._now()
        date = self._date
        if not date.since <= now < date.until:
            date = self._date = self._writer.date_at(now)
        shelf = answer.shelf
        if shelf.last is None:
            self._repeated[shelf] = None
        shelf.last, shelf.at = answer, now
        answer.count += 1
        dated = answer.dated
        return dated.raw if dated.date is date else dated.at(date)

    def remember(
        self,
        raw: bytes,
        caller: Caller,
        view: View,
        *,
        version: str,
        dated: Dated,
        keep_alive: bool,
        status: int,
        sort: Sort,
        agent: str,
    ) -> Answers:
        """Give this answer to these bytes from now on; gives all that this caller may be answered with."""
        if not self._is_on:
            return {}
        shelf = self._shelf_for(view)
        answers = shelf.answers.setdefault((caller.is_loopback, caller.is_local), {})
        if raw in answers:
            return answers
        if len(answers) >= _MOST_PER_VM:
            self._settle(shelf)
            del answers[next(iter(answers))]
        answers[raw] = Remembered(
            shelf=shelf, dated=dated, keep_alive=keep_alive, status=status, version=version, sort=sort, agent=agent
        )
        return answers

    def forget(self, vms: Iterable[str]) -> None:
        """Something about these VMs has changed: their next requests are read anew."""
        for vm in vms:
            shelf = self._shelves.pop(vm, None)
            if shelf is not None:
                self._empty(shelf)

    def forget_all(self) -> None:
        self.forget(tuple(self._shelves))

    def close(self) -> None:
        """Remember nothing any more."""
        self._is_on = False
        self.forget_all()

    def settle_some(self) -> None:
        """Put down what repeats would have put down one by one; of many VMs those that wait longest."""
        for shelf in tuple(islice(self._repeated, PORTION)):
            self._settle(shelf)

    def settle_for(self, vm: str) -> None:
        """As `settle_some`, for one VM, whose next request is to come after those."""
        shelf = self._shelves.get(vm)
        if shelf is not None:
            self._settle(shelf)

    def _settle(self, shelf: Shelf) -> None:
        last, shelf.last = shelf.last, None
        if last is None:
            return
        del self._repeated[shelf]
        total = 0
        for answers in shelf.answers.values():
            for answer in answers.values():
                if answer.count:
                    self._count(answer.sort, answer.status, answer.count)
                    total += answer.count
                    answer.count = 0
        self._observations.asked(shelf.view, last.version, shelf.at, count=total, agent=last.agent)

    def _empty(self, shelf: Shelf) -> None:
        self._settle(shelf)
        # Connections may hold these tables: they must find nothing there.
        for answers in shelf.answers.values():
            answers.clear()
        shelf.answers.clear()

    def _shelf_for(self, view: View) -> Shelf:
        shelf = self._shelves.get(view.vm)
        if shelf is not None and shelf.view is view:
            return shelf
        self.forget([view.vm])
        if len(self._shelves) >= _MOST_VMS:
            self.forget([next(iter(self._shelves))])
        shelf = self._shelves[view.vm] = Shelf(view)
        return shelf
