"""Documents that are no longer shown, kept for a minute while a fault asks for stale ones (spec §11)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from forewarn.metadata.seam import ScopeView, View

_KEPT_S = 60.0


class Past:
    def __init__(self) -> None:
        self._kept: dict[str, deque[tuple[float, ScopeView]]] | None = None  # scope → until when it was shown, what

    def watch(self, on: bool) -> None:
        """Begin to keep what is replaced; or forget all of it."""
        if not on:
            self._kept = None
        elif self._kept is None:
            self._kept = {}

    def keep(self, replaced: ScopeView) -> None:
        if self._kept is None:
            return
        now = asyncio.get_running_loop().time()
        kept = self._kept.setdefault(replaced.scope_id, deque())
        kept.append((now, replaced))
        while kept[0][0] < now - _KEPT_S:
            kept.popleft()

    def view(self, view: View, at: float) -> View:
        """What this VM was shown at a moment (loop time): the view itself if that has not changed since."""
        kept = self._kept.get(view.scope_id, ()) if self._kept is not None else ()
        then = next((scope for until, scope in kept if until >= at), None)
        if then is None or not then.enabled:
            return view
        return replace(view, epoch=then.epoch, document=then.document)
