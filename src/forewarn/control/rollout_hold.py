"""Holds all rollouts of the fleet, and lifts the hold (spec §13.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import EventState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import ROLLOUT_CAUSES, RolloutHold
from forewarn.errors import Refused, Rejected
from forewarn.store.interface import ROLLOUT_HOLD_NAME, AppliedCommit


class RolloutHoldService:
    """Sets and lifts the hold on all rollouts; there is at most one.

    `hold` is the hold in force; None if there is none or it is being lifted. `is_lifting` says whether a hold was
    lifted but `finish_lifting` has not yet checked everything that it held. Every change sets
    `transactions.hold_reason`, for decisions.
    """

    def __init__(
        self, transactions: ScopeTransactions, *, on_lifted: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._on_lifted = on_lifted
        self._wake = wake
        self._lock = asyncio.Lock()  # a new hold waits until the last one is lifted completely
        self.hold: RolloutHold | None = None
        self.is_lifting = False
        self._follow(self._stored())

    def on_commit(self, applied: AppliedCommit) -> None:
        """Take over the hold that a commit has stored, if any. Called for every commit with `saved`, in order."""
        # So the reconciler, which that commit wakes, knows the hold, even if the task that commits it was cancelled.
        for saved in applied.commit.saved:
            if saved.name == ROLLOUT_HOLD_NAME:
                self._follow(_decode(saved.value))

    async def set_hold(self, reason: str, *, who: str) -> RolloutHold:
        """Hold all rollouts, durably, and return the hold. Finishes lifting an earlier hold first.

        Rollouts publish nothing, and none of their events starts without an approval, except behind a gate that is
        released already; Freezes that faults made also wait.
        """
        reason = " ".join(reason.split())
        if not reason:
            raise Rejected("a hold needs a reason, which everybody sees: give one")
        async with self._lock:
            await self._finish_lifting()
            # One reason for all: a second hold would hide why the first was set.
            if self.hold is not None:
                raise Refused(f"all rollouts are on hold already ({self.hold.reason}): lift that hold first")
            hold = RolloutHold(reason=reason, set_by=who, set_at=self._transactions.clock.now())
            # The store writes in order: what was decided before this line is stored before the hold, and every later
            # decision knows the hold. So nothing is published or started after the caller has its answer.
            self._transactions.hold_reason = reason
            try:
                await self._commit_hold(hold, EntryKind.PAUSED, f"all rollouts are on hold: {reason}", who)
            except BaseException:
                if self.hold is None:  # decide again what was held meanwhile
                    self._transactions.hold_reason = ""
                    self.is_lifting = True
                    self._wake()
                raise
        return hold

    async def lift_hold(self, *, who: str) -> RolloutHold:
        """Lift the hold on all rollouts, durably, and return it; the reconciler starts what is due by then."""
        async with self._lock:
            hold = self.hold
            if hold is None:
                raise Refused("rollouts are not on hold: there is nothing to lift")
            text = f"the hold on all rollouts is lifted ({hold.reason})"
            # Not removed yet: who dies before everything is decided again must find it.
            await self._commit_hold(replace(hold, is_lifted=True), EntryKind.RESUMED, text, who)
        return hold

    async def finish_lifting(self) -> bool:
        """Decide all scheduled events of rollouts again after a hold was lifted; return whether one was."""
        # The hold is removed from the store only afterwards, so a crash in between repeats this.
        async with self._lock:
            return await self._finish_lifting()

    async def _finish_lifting(self) -> bool:
        if not self.is_lifting:
            return False
        held = [e for e in self._store.events(statuses=(EventState.SCHEDULED,)) if e.cause in ROLLOUT_CAUSES]
        # Also those that were due all along: no time wakes what waited without an end.
        await self._transactions.reconcile_scopes_of(held)
        self._on_lifted()
        stored = self._stored()
        if stored is not None and stored.is_lifted:  # not if it could not be stored, or is stored only now
            await self._store.save(ROLLOUT_HOLD_NAME, msgspec.json.encode(None))
            stored = None
        self._follow(stored)
        return True

    def _stored(self) -> RolloutHold | None:
        raw = self._store.load(ROLLOUT_HOLD_NAME)
        return _decode(raw) if raw is not None else None

    def _follow(self, stored: RolloutHold | None) -> None:
        self.is_lifting = stored is not None and stored.is_lifted
        self.hold = None if self.is_lifting else stored
        self._transactions.hold_reason = self.hold.reason if self.hold is not None else ""

    async def _commit_hold(self, hold: RolloutHold, kind: EntryKind, text: str, who: str) -> None:
        entry = HistoryEntry(at=self._transactions.clock.now(), kind=kind, actor=who, text=text)
        saved = SavedValue(ROLLOUT_HOLD_NAME, msgspec.json.encode(hold))
        await self._store.commit(Commit(saved=(saved,), entries=(entry,)))


def _decode(raw: bytes) -> RolloutHold | None:
    return msgspec.json.decode(raw, type=RolloutHold | None)
