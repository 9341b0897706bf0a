"""Copies of VMs' definitions outside their hosts, for lost hosts and for VMs that are on no host."""

from __future__ import annotations

from pathlib import Path

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.qemu.definition import DEFINITION_SUFFIX, VmDefinition, parse_definition
from forewarn.machines.qemu.instance import QemuInstance, delete_file, file_error, write_durably


class QemuDefinitionCopies:
    """Copies of VMs' latest definitions, in one directory of this machine, created when it is needed."""

    # One copy per VM name, of the host where the VM was last seen: for VMs whose host is lost, and VMs that are on no
    # host.

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def instance(self, vm: str) -> QemuInstance:
        """Return the VM as if it were on a host "" whose directory is that of the copies."""
        return QemuInstance("", vm, self._directory)

    def instances(self) -> list[QemuInstance]:
        """Return all VMs of which there is a copy, as `instance` returns each; sorted by name, may be []."""
        return [self.instance(path.stem) for path in sorted(self._directory.glob(f"*{DEFINITION_SUFFIX}"))]

    def keep(self, instance: QemuInstance) -> None:
        """Copy the definition of a VM from its host's directory, durably, if the copy differs."""
        copy = self.instance(instance.vm).definition_file
        try:
            data = instance.definition_file.read_bytes()
            if copy.exists() and copy.read_bytes() == data:
                return
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise file_error(f"definition {str(instance.definition_file)!r} cannot be copied", error) from error
        write_durably(copy, data)

    def keep_definition(self, vm: str, data: bytes) -> None:
        """Keep this definition, which came from another host, as the copy of the VM's, durably."""
        if not data:
            return
        copy = self.instance(vm).definition_file
        parse_definition(data, copy)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(copy, data)
        except OSError as error:
            raise file_error(f"definition {str(copy)!r} cannot be written", error) from error

    def read(self, instance: QemuInstance) -> tuple[VmDefinition, bytes]:
        """Return the VM's definition and its bytes, from its host or else from the copy."""
        copy = self.instance(instance.vm)
        try:
            if instance.host and instance.is_defined():
                return instance.read_definition()
        except HostUnreachable:
            if not copy.definition_file.exists():
                raise
        if not copy.definition_file.exists():
            where = f"on host {instance.host!r}" if instance.host else "on a host"
            raise Refused(f"VM {instance.vm!r} is not defined {where}, and there is no copy of its definition")
        return copy.read_definition()

    def forget(self, vm: str) -> None:
        """Delete the copy of the VM with this name, if there is one, after its disks were deleted."""
        delete_file(self.instance(vm).definition_file)
