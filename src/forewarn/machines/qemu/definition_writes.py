"""Definitions that are being written into hosts' directories while QEMU starts there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from forewarn.machines.qemu.definition import VmDefinition
from forewarn.machines.qemu.processes import QemuInstance, write_durably


@dataclass(frozen=True, slots=True)
class _Write:
    definition: VmDefinition
    task: asyncio.Task[None]


class DefinitionWrites:
    """Writes definition files durably in the background, so that fsync delays no guest."""

    # A VM whose definition is being written counts as defined. If the process is killed meanwhile, the file is complete
    # or does not exist. Without it, the next look at the VM ends a QEMU that was started meanwhile
    # (`QemuDriver.state`), so that the move which wanted it writes the definition again before it starts another one.

    def __init__(self) -> None:
        self._writes: dict[QemuInstance, _Write] = {}

    def begin(self, instance: QemuInstance, definition: VmDefinition, data: bytes) -> None:
        """Begin to write the VM's definition file, in a thread; `finish` must follow."""
        task = asyncio.create_task(asyncio.to_thread(write_durably, instance.definition_file, data))
        self._writes[instance] = _Write(definition, task)

    def definition(self, instance: QemuInstance) -> VmDefinition | None:
        """Return the definition that is being written for this VM on its host; None if none is being written."""
        write = self._writes.get(instance)
        return write.definition if write is not None else None

    async def finish(self, instance: QemuInstance) -> None:
        """Wait until the definition that is being written for this VM on its host is durable."""
        if (write := self._writes.get(instance)) is not None:
            try:
                await asyncio.shield(write.task)
            finally:
                if write.task.done():
                    self._writes.pop(instance, None)

    async def close(self) -> None:
        """Wait until all files that are being written are complete, or could not be written; raises nothing."""
        await asyncio.gather(*(write.task for write in self._writes.values()), return_exceptions=True)
        self._writes.clear()
