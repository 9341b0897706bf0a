"""How long a group of writes to a record waits for more writes.

A commit to a record takes nearly as long for one write as for many: the time of its round trips, and of the disks of
two servers. Callers that were just answered often write again: VMs that approve one after the other, a reconciler that
starts their events. If the next group does not wait for them, those that were queued meanwhile commit first, and each
group has only a part of the callers.
"""

from __future__ import annotations

_FROM_CALLERS = 8  # fewer are never waited for
_MAX_WAIT_S = 0.1  # also after a commit that took longer, such as one that waited for a server
_MAX_PAUSE = 16  # groups


class GroupGathering:
    """Decides how long a group of writes waits, before its commit, for the callers of the group before it.

    A group waits until it has 7/8 of the writes that were under way when the group before was answered, at most as long
    as the commit of that group took, and never longer than 0.1 s. Fewer than 8 writes are never waited for. If the
    callers did not come back, the next group does not wait; if that happens again and again, the next 2, 4, 8 and at
    most 16 groups do not wait. It only computes. Times are monotonic.
    """

    def __init__(self) -> None:
        self._last_size = 0  # writes in the last group
        self._wait_until = 0.0
        self._expected: int | None = None  # writes that were under way when it was answered; None: not known yet
        self._has_waited = False  # the group that is next
        self._pause = 0  # groups that do not wait
        self._next_pause = 1

    def wait_s(self, queued: int, now: float) -> float:
        """Return how many seconds a group of `queued` writes should wait for another write; 0.0 for none."""
        if self._expected is None:
            self._expected = self._last_size + queued
        if self._pause or self._expected < _FROM_CALLERS or self._has_enough(queued):
            return 0.0
        wait_s = max(0.0, self._wait_until - now)
        self._has_waited |= wait_s > 0
        return wait_s

    def answered(self, size: int, began_at: float, now: float) -> None:
        """Note that a group of `size` writes was answered now; the next group waits for its callers."""
        if self._pause:
            self._pause -= 1
        elif self._has_waited and self._has_enough(size):
            self._next_pause = 1
        elif self._has_waited:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _MAX_PAUSE)
        self._last_size, self._expected, self._has_waited = size, None, False
        self._wait_until = now + min(now - began_at, _MAX_WAIT_S)

    def _has_enough(self, size: int) -> bool:
        """Whether most of the expected writes are there: some callers always end."""
        return self._expected is not None and size >= self._expected - self._expected // 8
