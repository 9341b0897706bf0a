"""Begins a new epoch of every scope, because a store may lack writes that VMs have seen.

A restored backup, commits that PostgreSQL lost and a damaged log of SQLite leave the same danger: the store counts on
from an older number, and soon shows another document under a number that a VM has seen already. So every scope gets an
epoch that no ETag had (spec §4.3), and a DocumentIncarnation above all that may have been shown (spec §4.2), for
clients that compare only that. The lost numbers are not known here. But a document changes less than once a second on
average, so a number made of the present time is above all of them, even those of an earlier renewal. A scope that is
disabled begins at 1 when it is enabled, as the contract says.

The renewal is stored with what it changes. The service adds it to the history when it starts, at a time of its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

_LOSS_SHOWN_S = 86400.0  # for how long a loss is reported after the new epoch began
RENEWAL_NAME = "epoch-renewal"  # of the saved value that holds the last `EpochRenewal`
_INCARNATIONS_SINCE = 1_577_836_800  # 2020: so incarnations fit in 32 bits, as clients may need, until 2088
_HIGHEST = "SELECT coalesce(max(epoch), 0), coalesce(max(incarnation), 0) FROM scopes"
_RENEW = """
    UPDATE scopes SET epoch = ?, incarnation = CASE WHEN enabled_at IS NULL THEN incarnation ELSE ? END"""
_SAVE = "INSERT INTO saved (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"

# Runs a statement whose parameters are `?`, and returns its rows; in the transaction of the caller.
Execute = Callable[[str, Sequence[Any]], Any]


class EpochRenewal(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that every scope got a new epoch, and why. Stored as JSON."""

    epoch: int  # the epoch of every scope since then
    at: float  # real time
    reason: str  # a clause for people: "the backup FILE was restored"
    is_loss: bool = False  # confirmed writes were lost by a fault; False: somebody gave them up
    is_in_history: bool = False  # the service has added it to the history

    def is_recent_loss(self, now: float) -> bool:
        """Whether to report it as a problem; `now` is real time."""
        return self.is_loss and now < self.at + _LOSS_SHOWN_S


class HighestNumbers(NamedTuple):
    """The highest epoch and incarnation that some store has shown; a new epoch must be above them."""

    epoch: int = 0
    incarnation: int = 0


def begin_new_epoch(
    execute: Execute, *, now: float, reason: str, is_loss: bool = False, above: HighestNumbers | None = None
) -> EpochRenewal:
    """Give every scope a new epoch and save why; the caller commits, before VMs are served.

    It is above those in the store and in `above`, and above `now` (real time). `execute` is that of a connection to
    SQLite, or does the same in PostgreSQL.
    """
    known, above = highest_numbers(execute), above or HighestNumbers()
    epoch = max(known.epoch, above.epoch, int(now)) + 1
    incarnation = max(known.incarnation, above.incarnation, int(now) - _INCARNATIONS_SINCE) + 1
    renewal = EpochRenewal(epoch=epoch, at=now, reason=reason, is_loss=is_loss)
    execute(_RENEW, (epoch, incarnation))
    execute(_SAVE, (RENEWAL_NAME, msgspec.json.encode(renewal)))
    return renewal


def highest_numbers(execute: Execute) -> HighestNumbers:
    (row,) = execute(_HIGHEST, ()).fetchall()
    return HighestNumbers(*map(int, row))


def read_renewal(saved: bytes | None) -> EpochRenewal | None:
    """Return the renewal in the value that is saved as RENEWAL_NAME; None if there is none."""
    return None if saved is None else msgspec.json.decode(saved, type=EpochRenewal)
