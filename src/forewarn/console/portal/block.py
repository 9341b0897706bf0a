"""Which VMs stand together when people look at a fleet: a scope of several, or the standalone ones of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forewarn.core.fleet import group_of_scope
from forewarn.core.resource import group_resource
from forewarn.core.vmstate import VmState

_STANDALONE = "vms"


class Block:
    """Keys only: what a page shows of a VM it reads when it shows it."""

    __slots__ = ("_group", "_keys", "id", "size")

    def __init__(self, block_id: str, group: Group) -> None:
        self.id = block_id
        self.size = 0
        self._group = group
        self._keys: list[str] = []  # in the order they came; some may have left

    @property
    def is_of_standalone(self) -> bool:
        return self.id.startswith(f"{_STANDALONE}:")

    @property
    def keys(self) -> Sequence[str]:
        if len(self._keys) != self.size:
            self._sweep()
        return self._keys

    def add(self, key: str) -> None:
        if len(self._keys) > 2 * self.size + 16:
            self._sweep()
        self._keys.append(key)
        self.size += 1

    def _sweep(self) -> None:
        self._keys = [key for key in dict.fromkeys(self._keys) if self._group.block_of(key) is self]


class Group:
    """A resource group: its blocks, and the states of its VMs."""

    __slots__ = ("_members", "blocks", "id", "resource", "unusual")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.resource = group_resource(*group_id.split("/"))
        self.blocks: dict[str, Block] = {}
        self.unusual: dict[str, VmState] = {}  # of the VMs that are not simply running
        self._members: dict[str, Block] = {}

    @property
    def size(self) -> int:
        return len(self._members)

    def block_of(self, key: str) -> Block | None:
        return self._members.get(key)

    def state_of(self, key: str) -> VmState:
        return self.unusual.get(key, VmState.RUNNING) if key in self._members else VmState.GONE

    def counts(self, part: frozenset[str] | None) -> Counter[VmState]:
        """How many of these VMs are in which state; None: of all."""
        told = Counter(state for key, state in self.unusual.items() if part is None or key in part)
        told[VmState.RUNNING] = (self.size if part is None else len(part)) - told.total()
        return told

    def join(self, key: str, block_id: str) -> bool:
        """Whether that is new."""
        block = self._members.get(key)
        if block is not None and block.id == block_id:
            return False
        self.leave(key)
        if (block := self.blocks.get(block_id)) is None:
            block = self.blocks[block_id] = Block(block_id, self)
        block.add(key)
        self._members[key] = block
        return True

    def leave(self, key: str) -> bool:
        block = self._members.pop(key, None)
        self.unusual.pop(key, None)
        if block is None:
            return False
        block.size -= 1
        if not block.size:
            del self.blocks[block.id]
        return True

    def mark(self, key: str, state: VmState) -> None:
        if state is VmState.RUNNING:
            self.unusual.pop(key, None)
        else:
            self.unusual[key] = state


def block_id_for(scope_id: str) -> str:
    return f"{_STANDALONE}:{group_of_scope(scope_id)}" if scope_id.startswith("vm:") else scope_id
