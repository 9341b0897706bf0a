"""Estimates the service's time from the Date of its answers and this machine's clock. Pure.

The time left of a notice decides which steps are cut, which rule applies and when an approval may be given, and none of
that can be taken back. One answer with a wrong Date (of a proxy, a cache, one server of several) must therefore change
nothing. A Date that fits the estimate moves it, by at most TOLERANCE_S. Any other Date counts only when
AGREEING_ANSWERS answers in a row give the same time: then the service's clock has jumped, as that of a lab does, or
this machine's clock was stopped, as in a Freeze. The client asks at once for the answers that it needs for that. A
wrong time in which all answers agree is the service's time, by definition (spec §12).
"""

from __future__ import annotations

AGREEING_ANSWERS = 3  # two wrong ones in a row are rare; each costs one request
TOLERANCE_S = 2.0  # a Date has whole seconds, and its answer takes a moment


class ServiceTimeEstimate:
    """Estimates the service's time from the Dates of its answers; instants `at` are of the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s: float | None = None  # the service's time minus ours; None: not known
        self._rival_offset_s: float | None = None  # what the latest answers give instead
        self._rival_answers = 0  # how many in a row agree about it

    @property
    def is_doubtful(self) -> bool:
        """Whether the latest Date does not fit the estimate, so that further answers must decide."""
        return self._rival_offset_s is not None

    def time_at(self, at: float) -> float | None:
        """Return the service's time in POSIX seconds at this instant of the local monotonic clock."""
        return None if self._offset_s is None else self._offset_s + at

    def add_answer(self, date: float | None, at: float, *, trust_first: bool = True) -> None:
        """Take the Date (POSIX seconds) of an answer received `at`; None (no Date) changes nothing.

        The very first Date has no estimate to fit: with `trust_first` it counts at once, else it too needs
        AGREEING_ANSWERS.
        """
        if date is None:
            return
        offset_s = date - at
        if _agree(self._offset_s, offset_s) or (self._offset_s is None and trust_first):
            self._accept(offset_s)
            return
        self._rival_answers = self._rival_answers + 1 if _agree(self._rival_offset_s, offset_s) else 1
        self._rival_offset_s = offset_s
        if self._rival_answers >= AGREEING_ANSWERS:
            self._accept(offset_s)

    def _accept(self, offset_s: float) -> None:
        self._offset_s, self._rival_offset_s, self._rival_answers = offset_s, None, 0


def _agree(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= TOLERANCE_S
