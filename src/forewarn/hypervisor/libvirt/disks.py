"""Deletes the disks of a VM, empties them, or creates them again from their image.

libvirt can do that only to volumes of its storage pools. The functions block.
"""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.errors import Refused
from forewarn.hypervisor.libvirt.definition_copies import DefinitionCopies
from forewarn.hypervisor.libvirt.domain_xml import DomainDisk, backing_image, new_volume, parse_domain
from forewarn.hypervisor.libvirt.session import LibvirtSession


def owned_disks(definition: str) -> list[str]:
    """Return where the disks are that belong to this VM (its domain XML) alone."""
    return [disk.source for disk in parse_domain(definition).disks if disk.is_owned and disk.source]


def delete_disks(session: LibvirtSession, host: str, vm: str, paths: Sequence[str]) -> None:
    """Delete these disks of a VM; skips those that are gone. Refused if one is in no storage pool."""
    _require_pools(session, host, vm, paths)
    for path in paths:
        session.delete_volume(path)


def empty_ephemeral_disks(session: LibvirtSession, copies: DefinitionCopies, host: str, vm: str) -> None:
    """Replace the VM's ephemeral disks with empty ones. Refused if one is in no storage pool."""
    disks = [disk for disk in parse_domain(session.stored_xml(vm)).disks if disk.is_ephemeral]
    _require_pools(session, host, vm, [disk.source for disk in disks])
    for disk in disks:
        _renew(session, copies, host, disk.source, keep_backing=False)


def renew_os_disk(session: LibvirtSession, copies: DefinitionCopies, host: str, vm: str) -> None:
    """Replace the VM's first disk with a new copy of its image. Refused without an image or a pool."""
    disk = _os_disk(session, host, vm)
    _require_pools(session, host, vm, [disk.source])
    volume = session.volume_xml(disk.source) or copies.load(host, disk.source)
    if volume is None or not backing_image(volume):
        raise Refused(
            f"disk {disk.source} of VM {vm!r} on host {host} is not a copy of an image, so it cannot be recreated: "
            "create it with a backing file"
        )
    _renew(session, copies, host, disk.source, keep_backing=True)


def _os_disk(session: LibvirtSession, host: str, vm: str) -> DomainDisk:
    for disk in parse_domain(session.stored_xml(vm)).disks:
        if disk.is_owned and disk.source and not disk.is_ephemeral:
            return disk
    raise Refused(f"VM {vm!r} on host {host} has no disk of its own that could be recreated")


def _renew(session: LibvirtSession, copies: DefinitionCopies, host: str, path: str, *, keep_backing: bool) -> None:
    """Delete the volume and create it again; a copy of its XML lets a repeated call finish that."""
    if (volume := session.volume_xml(path)) is not None:
        copies.save(host, path, volume)
        session.delete_volume(path)
    if (kept := copies.load(host, path) or volume) is None:
        raise Refused(f"disk {path} does not exist on host {host}: create it")
    session.create_volume(path, new_volume(kept, keep_backing=keep_backing))
    copies.delete(host, path)


def _require_pools(session: LibvirtSession, host: str, vm: str, paths: Sequence[str]) -> None:
    for path in paths:
        if not session.has_pool_for(path):
            raise Refused(
                f"disk {path} of VM {vm!r} is in no storage pool of host {host}, so libvirt cannot replace or delete "
                "it: define a pool for its directory with `virsh pool-define-as`"
            )
