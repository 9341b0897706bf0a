"""What stays known of moves between host nodes that were given up, kept in the active node's store.

The next move of the VM settles them first. It does so once: after it has begun, a restarted active node that asked the
hosts again could complete an old move, and start a second copy of the VM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from forewarn.core.event import Act
from forewarn.store.interface import Store

SETTLED_MOVES_NAME = "settled-moves"  # of the saved value


class _SavedMoves(msgspec.Struct, frozen=True):
    """The saved value, as JSON. Only moves that are under way or have failed are in it."""

    found: dict[str, str] = {}  # act id of a settled move → the host that its VM was on then; "": it did not move
    fenced: tuple[str, ...] = ()  # ids of acts whose destination may have activated the VM without a release
    returning: tuple[str, ...] = ()  # ids of acts whose source takes the VM back, because their destination is down


class MoveSettlements:
    """Remembers in the store what is known of moves that are under way or have failed, by the act's id."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = asyncio.Lock()  # all of it is one saved value

    def found(self, failed: Act) -> str | None:
        """Return the host to which this failed move had brought the VM when it was settled."""
        return self._load().found.get(failed.id)

    def is_fenced(self, failed: Act) -> bool:
        """Return whether this move's destination may have activated the VM without a release by the source."""
        return failed.id in self._load().fenced

    def is_returning(self, failed: Act) -> bool:
        """Return whether the source of this move takes the VM back, or is about to (`keep_returning`)."""
        return failed.id in self._load().returning

    async def keep_found(self, failed: Act, host: str) -> None:
        """Store that this failed move is settled, and to which host it brought the VM; durable on return."""
        async with self._lock:
            saved = self._load()
            await self._save(replace(saved, found=saved.found | {failed.id: host}))

    async def keep_fenced(self, act: Act) -> None:
        """Store that this move continues without a release by its source, which is fenced or down."""
        async with self._lock:
            saved = self._load()
            if act.id not in saved.fenced:
                await self._save(replace(saved, fenced=(*saved.fenced, act.id)))

    async def keep_returning(self, failed: Act) -> None:
        """Store that the source of this move is about to take the VM back; durable on return."""
        async with self._lock:
            saved = self._load()
            if failed.id not in saved.returning:
                await self._save(replace(saved, returning=(*saved.returning, failed.id)))

    def _load(self) -> _SavedMoves:
        saved = self._store().load(SETTLED_MOVES_NAME)
        return msgspec.json.decode(saved, type=_SavedMoves) if saved else _SavedMoves()

    async def _save(self, moves: _SavedMoves) -> None:
        store = self._store()
        kept = _SavedMoves(
            {id: host for id, host in moves.found.items() if _may_matter(store, id)},
            tuple(id for id in moves.fenced if _may_matter(store, id)),
            tuple(id for id in moves.returning if _may_matter(store, id)),
        )
        await store.save(SETTLED_MOVES_NAME, msgspec.json.encode(kept))


def _may_matter(store: Store, act_id: str) -> bool:
    """Whether a later move may have to settle this act: it is stored, and has not succeeded."""
    event = store.event(act_id.partition(":")[0])
    acts = event.acts if event is not None else ()
    return any(act.id == act_id and not (act.outcome is not None and act.outcome.ok) for act in acts)
