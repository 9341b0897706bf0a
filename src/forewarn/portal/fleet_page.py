"""Which VMs a fleet page is about, and which of them are in view: the rest is not even read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forewarn.console.outlook import Outlook
from forewarn.console.portal.block import Block, Group
from forewarn.console.portal.overview import Overview, Part
from forewarn.core.vmstate import VmState

MOST_VMS = 200  # on a page
MOST_BLOCKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Whoever is called so, or is on a host that is; and is in this state."""

    text: str = ""  # without case; "" everybody
    on_hosts: frozenset[str] = frozenset()  # keys of the VMs on hosts that are called so
    state: VmState | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some VMs of a block."""

    group: Group
    block: Block
    keys: Sequence[str]


def chosen(overview: Overview, sees: Outlook, wish: Wish) -> list[Chosen]:
    return [one for group, part in overview.groups(sees) for one in _in_group(group, part, wish) if one.keys]


def _in_group(group: Group, part: Part, wish: Wish) -> Iterator[Chosen]:
    if wish.state in (None, VmState.RUNNING):
        for block in group.blocks.values():
            yield Chosen(group, block, _narrowed(group, block, block.keys, part, wish))
        return
    # Few are otherwise: only where one is, all are looked at, so that they keep their order.
    there = {group.block_of(key) for key, state in group.unusual.items() if state is wish.state}
    for block in filter(there.__contains__, group.blocks.values()):
        keys = [key for key in block.keys if group.state_of(key) is wish.state]
        yield Chosen(group, block, _narrowed(group, block, keys, part, wish))


def _narrowed(group: Group, block: Block, keys: Sequence[str], part: Part, wish: Wish) -> Sequence[str]:
    if part is not None:
        keys = [key for key in keys if key in part]
    if wish.state is VmState.RUNNING:
        keys = [key for key in keys if key not in group.unusual]
    if wish.text and wish.text not in _without_subscription(block.id.partition(":")[2]):
        start = group.id.index("/") + 1  # what people search for is no part of a subscription's id
        keys = [key for key in keys if wish.text in key[start:] or key in wish.on_hosts]
    return keys


def _without_subscription(path: str) -> str:
    return path.partition("/")[2]


Start = tuple[int, int]  # the number of a block, and of the first VM of it


@dataclass(frozen=True, slots=True)
class Layout:
    """What was chosen, cut into pages."""

    blocks: Sequence[Chosen]
    starts: Sequence[Start]  # one for each page
    size: int  # VMs

    @property
    def pages(self) -> int:
        return max(1, len(self.starts))

    def page(self, number: int) -> list[Chosen]:
        """Counted from 1."""
        if not self.starts:
            return []
        first, start = self.starts[number - 1]
        last, end = self.starts[number] if number < len(self.starts) else (len(self.blocks), 0)
        shown = []
        for at, one in enumerate(self.blocks[first : last + 1], first):
            keys = one.keys[start if at == first else 0 : end if at == last else None]
            shown.append(Chosen(one.group, one.block, keys))
        return [one for one in shown if one.keys]

    def whole(self, most: int) -> list[Chosen]:
        """The first so many VMs; standalone ones in pieces, so that none is long."""
        shown: list[Chosen] = []
        left = most
        for one in self.blocks:
            keys = one.keys[:left]
            left -= len(keys)
            step = MOST_VMS if one.block.is_of_standalone else max(1, len(keys))
            pieces = (keys[start : start + step] for start in range(0, len(keys), step))
            shown += [Chosen(one.group, one.block, piece) for piece in pieces]
        return shown


def layout_for(overview: Overview, sees: Outlook, wish: Wish) -> Layout:
    """Most people look at everything: that is cut into pages once, until VMs come or go."""
    if sees.sees_all and wish == Wish():
        return overview.once(_whole)
    return _cut(chosen(overview, sees, wish))


def _whole(overview: Overview) -> Layout:
    groups = overview.every_group()
    return _cut([Chosen(group, block, block.keys) for group in groups for block in group.blocks.values()])


def _cut(blocks: Sequence[Chosen]) -> Layout:
    """A scope stays whole where a page can hold it; standalone VMs fill what is left."""
    starts: list[Start] = []
    vms, told = MOST_VMS, 0  # on the page that is being filled: the first block begins one
    for number, one in enumerate(blocks):
        size, start = len(one.keys), 0
        is_whole = size <= MOST_VMS and not one.block.is_of_standalone
        while start < size:
            if told == MOST_BLOCKS or vms == MOST_VMS or (is_whole and vms + size > MOST_VMS):
                starts.append((number, start))
                vms, told = 0, 0
            taken = min(size - start, MOST_VMS - vms)
            vms, told, start = vms + taken, told + 1, start + taken
    return Layout(blocks, starts, sum(len(one.keys) for one in blocks))
