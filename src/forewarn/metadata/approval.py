"""Approvals that would change nothing, known without asking the house.

An event that was approved or has started stays so until it is over, and over is as good as approved (spec §5.2): what
is known here never has to be taken back. All else goes to the house, which alone can say that an id is unknown.
"""

from __future__ import annotations

from forewarn.metadata.seam import View
from forewarn.protocol.document import Status

_MOST = 10_000  # that are kept; a forgotten one is asked for again


class Approvals:
    def __init__(self, *, most: int = _MOST) -> None:
        self._most = most
        self._durable: dict[tuple[str, str], None] = {}  # scope and event

    def keep(self, scope_id: str, event_ids: tuple[str, ...]) -> None:
        """These are approved, durably, or were over before."""
        for event_id in event_ids:
            if len(self._durable) >= self._most:
                del self._durable[next(iter(self._durable))]
            self._durable[scope_id, event_id] = None

    def cover(self, view: View, event_ids: tuple[str, ...]) -> bool:
        """Whether all of these need no approval any more."""
        return bool(event_ids) and all(self._is_settled(view, event_id) for event_id in event_ids)

    def _is_settled(self, view: View, event_id: str) -> bool:
        if (view.scope_id, event_id) in self._durable:
            return True
        return any(notice.id == event_id and notice.status is Status.STARTED for notice in view.document.notices)
