"""Which VMs a fleet page is about, and which of them are in view: the rest is not even read."""

from __future__ import annotations

from collections import defaultdict
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
    if wish.state is not None and wish.state is not VmState.RUNNING:
        # Few are: they are not looked for among all.
        by_block: dict[str, list[str]] = defaultdict(list)
        for key, state in group.unusual.items():
            if state is wish.state and (block := group.block_of(key)) is not None:
                by_block[block.id].append(key)
        blocks = ((group.blocks[block_id], keys) for block_id, keys in by_block.items())
        yield from (Chosen(group, block, _narrowed(group, block, keys, part, wish)) for block, keys in blocks)
        return
    for block in group.blocks.values():
        yield Chosen(group, block, _narrowed(group, block, block.keys, part, wish))


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


def in_view(blocks: Sequence[Chosen], number: int) -> tuple[list[Chosen], int]:
    """The blocks of one page, counted from 1, and how many pages there are.

    A scope stays whole where a page can hold it; standalone VMs fill what is left.
    """
    shown: list[Chosen] = []
    page, vms, told = 1, 0, 0
    for one in blocks:
        size, start = len(one.keys), 0
        is_whole = size <= MOST_VMS and not one.block.is_of_standalone
        while start < size:
            if told == MOST_BLOCKS or vms == MOST_VMS or (is_whole and vms + size > MOST_VMS):
                page, vms, told = page + 1, 0, 0
            end = min(size, start + MOST_VMS - vms)
            if page == number:
                shown.append(Chosen(one.group, one.block, one.keys[start:end]))
            vms, told, start = vms + end - start, told + 1, end
    return shown, page
