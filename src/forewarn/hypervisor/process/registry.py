"""Who keeps which VM: the keepers that are connected, and those that should be back in a moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from forewarn.errors import Refused, Unavailable
from forewarn.hypervisor.line import Hello
from forewarn.hypervisor.link import Link
from forewarn.hypervisor.roster import Kept, Roster

GRACE_S = 5.0  # real time: a keeper tries five times a second
_NAP_S = 0.1


class Keepers:
    """VMs are known by their keys. Waiting is in real time: a keeper reconnects in real time, however lab time runs."""

    def __init__(self, roster: Roster, *, grace_s: float = GRACE_S) -> None:
        self._roster = roster
        self._grace_s = grace_s
        self._links: dict[str, Link] = {}
        self._arrived = asyncio.Event()

    def directory_of(self, vm: str) -> Path:
        return self._roster.directory_of(vm)

    @property
    def links(self) -> dict[str, Link]:
        """Of the keepers that are connected, by the VM's key."""
        return dict(self._links)

    def link_of(self, vm: str) -> Link | None:
        return self._links.get(vm)

    def is_kept(self, vm: str) -> bool:
        """Whether a keeper is connected, or its process lives and will be."""
        kept = self._roster.find(vm)
        return vm in self._links or (kept is not None and kept.is_alive)

    def has_ended(self, vm: str) -> bool:
        """Whether the program ended by itself."""
        kept = self._roster.find(vm)
        return kept is not None and kept.ended

    def must_be_free(self, vm: str, hello: Hello) -> None:
        """One keeper per VM; the same one may come again before we know that it was gone."""
        kept = self._roster.find(vm)
        if kept is not None and (kept.pid, kept.started) != hello.birth and kept.is_alive:
            raise Refused(f"VM {hello.vm!r} is kept by process {kept.pid} already: end that one first")

    def is_known(self, vm: str, hello: Hello) -> bool:
        """Whether this keeper had the VM before, or was started for it by us."""
        kept = self._roster.find(vm)
        return kept is not None and (kept.pid, kept.started) == hello.birth

    def arrive(self, vm: str, link: Link) -> bool:
        """Take the link as the VM's; whether its keeper is one that was not known before."""
        self.must_be_free(vm, link.hello)
        if (old := self._links.get(vm)) is not None:
            old.close()
        is_new = not self.is_known(vm, link.hello)
        self.expect(vm, *link.hello.birth)
        self._links[vm] = link
        self._arrived.set()
        self._arrived = asyncio.Event()
        return is_new

    def expect(self, vm: str, pid: int, started: str) -> None:
        """This process keeps the VM, or will in a moment."""
        self._roster.write(Kept(vm=vm, pid=pid, started=started))

    def leave(self, vm: str, link: Link) -> bool:
        """Whether it was the VM's link still: its keeper may have come back on another before we knew it was gone."""
        was_its = self._links.get(vm) is link
        if was_its:
            del self._links[vm]
        return was_its

    def end(self, vm: str) -> None:
        """The program ended by itself: nobody is missing when its keeper goes."""
        if (kept := self._roster.find(vm)) is not None:
            self._roster.write(replace(kept, ended=True))

    def strike(self, vm: str) -> None:
        """Nobody is missing, and how the last program ended is forgotten; a keeper that lives stays known."""
        kept = self._roster.find(vm)
        if kept is not None and self.is_kept(vm):
            self._roster.write(replace(kept, ended=False))
        else:
            self._roster.strike(vm)

    async def find(self, vm: str) -> Link | None:
        """The link of the VM's keeper, waited for if it is away for a moment; None: the VM has no keeper.

        Raises Unavailable for one that lives and does not come.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while self.is_kept(vm):
                    if (link := self._links.get(vm)) is not None and not link.is_closed:
                        return link
                    await self._until_something_changes()
                return None
        kept = self._roster.find(vm)
        raise Unavailable(f"the keeper of VM {vm!r} (process {kept.pid if kept else 0}) lives but does not answer")

    def lost(self, vm: str) -> str:
        """Who should be there and is gone for good, as a sentence; "" if nobody is missing."""
        kept = self._roster.find(vm)
        if kept is None or kept.ended or self.is_kept(vm):
            return ""
        return f"its keeper (process {kept.pid}) is gone, and its program with it"

    async def _until_something_changes(self) -> None:
        """That a process has gone nobody tells us, so we look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NAP_S):
                await self._arrived.wait()
