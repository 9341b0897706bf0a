"""What spans scopes: work on a whole host starts in all of them together (spec §6.2).

A gate is one small row per such work. It is released once, when every event behind it is ready; events start
only through a released gate. Both facts only ever become true, so no transaction spans scopes.
"""

from __future__ import annotations

import msgspec


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    request_id: str
    host: str
    version: int = 0
    released_at: float | None = None
    wakes_at: float | None = 0.0  # when to look at it next; None once there is nothing left to look at
