"""Pure translation of what libvirt reports: domain XML, and states and lifecycle events by their numbers.

The numbers are libvirt's stable interface (virDomainState, virDomainEventType and their reasons).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from enum import IntEnum, StrEnum

import msgspec

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.errors import Rejected
from forewarn.machines.driver import MachineMark, MachineState

# Pure functions over domain XML: what a VM consists of, and forewarn's own metadata elements in it.
#
# The elements are `mark` (the act that was last begun), `move` (how far a live migration has come) and `disks`, by
# which the operator says which disks are ephemeral. Each has an XML namespace of its own, because libvirt replaces the
# metadata of a namespace as a whole.

MARK_NAMESPACE = "urn:forewarn:mark:1"
MOVE_NAMESPACE = "urn:forewarn:move:1"
DISKS_NAMESPACE = "urn:forewarn:disks:1"
METADATA_PREFIX = "forewarn"
_LIBOSINFO_NAMESPACE = "http://libosinfo.org/xmlns/libvirt/domain/1.0"
_MAX_XML_CHARACTERS = 4 * 1024 * 1024
_MIB_PER_UNIT = {  # as libvirt writes memory; others are not in its output
    **dict.fromkeys(("b", "bytes"), 1 / 2**20),
    **dict.fromkeys(("KiB", "k"), 1 / 1024),
    **dict.fromkeys(("MiB", "M"), 1.0),
    **dict.fromkeys(("GiB", "G"), 1024.0),
}

for _prefix, _uri in (
    ("qemu", "http://libvirt.org/schemas/domain/qemu/1.0"),
    ("libosinfo", _LIBOSINFO_NAMESPACE),
):
    ET.register_namespace(_prefix, _uri)  # so that a copied definition keeps the prefixes that people know


class MovedDomain(msgspec.Struct, frozen=True, array_like=True):
    """What the driver of another host needs to define a domain; encoded as JSON between drivers."""

    xml: str  # the domain's stored XML
    volumes: dict[str, str] = {}  # XML of the volumes of its ephemeral disks, by path


class MoveMark(StrEnum):
    """How far a live migration has come; stored in a VM's definition, because libvirt forgets parts of it."""

    RECEIVING = "receiving"  # on the destination, in its stored definition: prepared
    RECEIVED = "received"  # on the destination, in its running definition; complete once no migration to it is active
    SENT = "sent"  # on the source: its migration has completed
    ENDED = "ended"  # on the source: the VM that was sent is off here, for good


class DomainDisk(msgspec.Struct, frozen=True, kw_only=True):
    target: str  # its name in the definition, such as vda
    source: str  # path on the host, POOL/VOLUME, or a name in network storage; "": an empty drive
    device: str = "disk"  # or cdrom, floppy, lun
    is_owned: bool = True  # False: no `disk`, read-only or shared with other VMs, so never deleted with this one
    is_ephemeral: bool = False  # the operator marked it so


class DomainInterface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface of a VM, as its domain XML describes it."""

    mac: str = ""  # "": not given
    tap: str = ""  # the device on the host; "": libvirt chooses one at each start
    network: str = ""  # the bridge, libvirt network or device of the host; "": not given


class DomainDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What a VM's domain XML says about it."""

    name: str  # "": the XML has none; the same for the UUID
    uuid: str  # "": the XML has none
    memory_mib: int  # in MiB; 0 if the XML does not say it
    cpus: int  # virtual ones; 1 if the XML does not say it
    cpu_model: str = ""  # or a mode such as host-passthrough; "": not named
    is_windows: bool = False  # as libosinfo's metadata says
    disks: tuple[DomainDisk, ...] = ()  # in the order of the XML
    interfaces: tuple[DomainInterface, ...] = ()  # in the order of the XML


def parse_domain(xml: str) -> DomainDefinition:
    """Return what this domain XML says about the VM."""
    root = parse_xml(xml)
    ephemeral = _ephemeral_targets(root)
    return DomainDefinition(
        name=root.findtext("name", ""),
        uuid=root.findtext("uuid", ""),
        memory_mib=_memory_mib(root),
        cpus=int(root.findtext("vcpu", "1") or 1),
        cpu_model=_cpu_model(root),
        is_windows=any("microsoft.com" in os.get("id", "") for os in root.iter(f"{{{_LIBOSINFO_NAMESPACE}}}os")),
        disks=tuple(_disk(disk, ephemeral) for disk in root.findall("devices/disk")),
        interfaces=tuple(_interface(interface) for interface in root.findall("devices/interface")),
    )


def _cpu_model(root: ET.Element) -> str:
    """The CPU model's name, or a mode such as host-passthrough, which stands for the host's own."""
    cpu = root.find("cpu")
    return "" if cpu is None else cpu.findtext("model", "") or cpu.get("mode", "")


def _memory_mib(root: ET.Element) -> int:
    memory = root.find("memory")
    if memory is None:
        return 0
    return round(int(memory.text or 0) * _MIB_PER_UNIT.get(memory.get("unit", "KiB"), 1 / 1024))


def _ephemeral_targets(root: ET.Element) -> frozenset[str]:
    disks = root.find(f"metadata/{{{DISKS_NAMESPACE}}}disks")
    return frozenset(disks.get("ephemeral", "").replace(",", " ").split()) if disks is not None else frozenset()


def _disk(disk: ET.Element, ephemeral: frozenset[str]) -> DomainDisk:
    source, target = disk.find("source"), disk.find("target")
    name = target.get("dev", "") if target is not None else ""
    path = ""
    if source is not None:
        path = source.get("file") or source.get("dev") or source.get("name") or ""
        if source.get("pool"):
            path = f"{source.get('pool')}/{source.get('volume', '')}"
    device = disk.get("device", "disk")
    return DomainDisk(
        target=name,
        source=path,
        device=device,
        is_owned=device == "disk" and disk.find("readonly") is None and disk.find("shareable") is None,
        is_ephemeral=name in ephemeral,
    )


def _interface(interface: ET.Element) -> DomainInterface:
    mac, target, source = interface.find("mac"), interface.find("target"), interface.find("source")
    return DomainInterface(
        mac=mac.get("address", "") if mac is not None else "",
        tap=target.get("dev", "") if target is not None else "",
        network=(source.get("bridge") or source.get("network") or source.get("dev") or "")
        if source is not None
        else "",
    )


def mark_element(mark: MachineMark) -> str:
    """Return the XML element that stores this mark in a domain's metadata, for `parse_mark`."""
    return _element_text("mark", {"act": mark.act_id, "step": mark.step})


def parse_mark(element: str | None) -> MachineMark | None:
    if element is None:
        return None
    found = parse_xml(element, root_tag="mark")
    return MachineMark(act_id=found.get("act", ""), step=found.get("step", ""))


def move_element(move: MoveMark) -> str:
    """Return the XML element that stores this mark of a live migration in a domain's metadata."""
    return _element_text("move", {"state": move.value})


def parse_move(element: str | None) -> MoveMark | None:
    """Return the mark of a live migration in this metadata element."""
    state = parse_xml(element, root_tag="move").get("state") if element is not None else None
    return MoveMark(state) if state in list(MoveMark) else None


def with_own_metadata(xml: str, *, mark: MachineMark | None, move: MoveMark | None) -> str:
    """Return the domain XML with exactly these two marks of forewarn's in its metadata."""
    root = parse_xml(xml)
    metadata = root.find("metadata")
    if metadata is None:
        metadata = ET.SubElement(root, "metadata")
    for child in list(metadata):
        if child.tag.startswith((f"{{{MARK_NAMESPACE}}}", f"{{{MOVE_NAMESPACE}}}")):
            metadata.remove(child)
    if mark is not None:
        metadata.append(ET.Element(f"{{{MARK_NAMESPACE}}}mark", {"act": mark.act_id, "step": mark.step}))
    if move is not None:
        metadata.append(ET.Element(f"{{{MOVE_NAMESPACE}}}move", {"state": move.value}))
    return ET.tostring(root, encoding="unicode")


def pool_directory(pool: str) -> str:
    return parse_xml(pool, root_tag="pool").findtext("target/path", "")


def backing_image(volume: str) -> str:
    """Return the path of the image that a volume is a copy of (its backing file); "" if it has none."""
    return parse_xml(volume, root_tag="volume").findtext("backingStore/path", "")


def new_volume(volume: str, *, keep_backing: bool) -> str:
    """Return the XML that creates a volume like this one, empty or as a new copy of its image."""
    root = parse_xml(volume, root_tag="volume")
    for tag in ("key", "allocation", "physical", "source", *(() if keep_backing else ("backingStore",))):
        for child in root.findall(tag):
            root.remove(child)
    target = root.find("target")
    for child in list(target) if target is not None else []:
        if child.tag in ("path", "timestamps"):
            assert target is not None
            target.remove(child)
    return ET.tostring(root, encoding="unicode")


def _element_text(tag: str, attributes: dict[str, str]) -> str:
    return ET.tostring(ET.Element(tag, attributes), encoding="unicode")


def parse_xml(text: str, *, root_tag: str = "domain") -> ET.Element:
    # Document types are not allowed, because their entities could fill the memory.
    if len(text) > _MAX_XML_CHARACTERS or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Rejected(f"the XML of a {root_tag} is longer than 4 MiB or has a document type: it is not read")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise Rejected(f"the XML of a {root_tag} cannot be read: {error}") from error
    if root.tag.rpartition("}")[2] != root_tag:
        raise Rejected(f"this XML has <{root.tag}> where <{root_tag}> is expected")
    return root


class DomainState(IntEnum):
    """The states of a libvirt domain that matter here, by libvirt's numbers; others count as RUNNING."""

    RUNNING = 1
    PAUSED = 3
    OFF = 5
    CRASHED = 6


PAUSED_FOR_MIGRATION = 2  # reason of DomainState.PAUSED
PAUSED_BY_DISK = 5  # reason of DomainState.PAUSED
HALTED_REASONS = {  # of DomainState.PAUSED, which mean that the platform has stopped the guest
    PAUSED_BY_DISK: "a disk cannot be read or written",
    6: "the guest's watchdog has expired",
    10: "the guest's kernel has crashed",
}
OFF_BY_MIGRATION = 4  # reason of DomainState.OFF: libvirtd forgets it when it restarts


class DomainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What libvirt reports about one domain, and forewarn's marks of live migrations in its definitions."""

    state: int  # libvirt's number (virDomainState), see `DomainState`
    reason: int = 0  # libvirt's number; its meaning depends on the state
    has_job: bool = False  # a migration from here, or another long operation, is active
    is_incoming: bool = False  # it is the destination of an active migration
    live_move: MoveMark | None = None  # the mark in its running definition; None: there is none
    stored_move: MoveMark | None = None  # the mark in its stored definition; None: there is none


class ListedDomain(msgspec.Struct, frozen=True, kw_only=True):
    """A domain as a list of all domains of a host has it: its state, and nothing else."""

    name: str  # the name of the domain, which is that of the VM
    number: int  # libvirt's id, which is new at each start; -1: it is off
    state: int  # libvirt's number (virDomainState), see `DomainState`
    reason: int = 0  # libvirt's number; its meaning depends on the state


_PAUSES = {  # by the reason of DomainState.PAUSED; None: a step of something that is not over
    PAUSED_FOR_MIGRATION: None,
    3: None,  # being saved
    4: None,  # being dumped
    PAUSED_BY_DISK: StateCause.DISK_ERROR,
    6: StateCause.WATCHDOG,
    8: None,  # shutting down
    9: None,  # being snapshotted
    10: StateCause.CRASH,  # the guest's kernel has crashed
    11: None,  # starting
    12: None,  # in the last phase of a post-copy migration
}
_OFF_CAUSES = {  # by the reason of DomainState.OFF
    1: StateCause.GUEST,
    2: StateCause.OPERATOR,  # destroyed
    3: StateCause.CRASH,
    OFF_BY_MIGRATION: StateCause.MIGRATED,
    5: StateCause.OPERATOR,  # saved to a file
    6: StateCause.CRASH,  # it could not be started
}


def observed_machine(domain: ListedDomain) -> ObservedMachine:
    """Return what a domain's state and reason in a list of domains say about the VM."""
    instance = str(domain.number) if domain.number >= 0 else ""
    match domain.state:
        case DomainState.PAUSED:
            cause = _PAUSES.get(domain.reason, StateCause.OPERATOR)
            if cause is None:
                return ObservedMachine(state=ObservedState.CHANGING, instance=instance)
            return ObservedMachine(state=ObservedState.PAUSED, cause=cause, instance=instance)
        case DomainState.OFF:
            return ObservedMachine(state=ObservedState.OFF, cause=_OFF_CAUSES.get(domain.reason, StateCause.UNKNOWN))
        case DomainState.CRASHED:  # its process may be kept, for a look at its memory
            state = ObservedState.PAUSED if instance else ObservedState.OFF
            return ObservedMachine(state=state, cause=StateCause.CRASH, instance=instance)
        case _:
            return ObservedMachine(state=ObservedState.RUNNING, instance=instance)


def machine_state(status: DomainStatus) -> MachineState:
    """Return the state of a VM, from libvirt's report and forewarn's marks of live migrations."""
    # A VM that is being sent counts as running until its migration is over, although libvirt pauses it at the end.
    match status.state:
        case DomainState.PAUSED:
            return _paused_state(status)
        case DomainState.OFF | DomainState.CRASHED:
            return _off_state(status)
        case _:
            return MachineState.RECEIVING if status.is_incoming else MachineState.RUNNING


def _paused_state(status: DomainStatus) -> MachineState:
    if status.is_incoming:
        return MachineState.RECEIVING
    if status.reason == PAUSED_FOR_MIGRATION:  # after the job: nobody learned whether the destination has it
        return MachineState.RUNNING if status.has_job else MachineState.SENT
    if status.reason in HALTED_REASONS:
        return MachineState.HALTED
    return MachineState.RECEIVED if status.live_move is MoveMark.RECEIVED else MachineState.PAUSED


def _off_state(status: DomainStatus) -> MachineState:
    if status.stored_move is MoveMark.RECEIVING:
        return MachineState.RECEIVING
    is_sent = status.reason == OFF_BY_MIGRATION or status.stored_move is MoveMark.SENT
    return MachineState.SENT if is_sent and status.stored_move is not MoveMark.ENDED else MachineState.OFF


class ChangeKind(StrEnum):
    """What a host reported about one of its VMs, or about itself."""

    STARTED = "started"
    STOPPED = "stopped"  # shut down by the guest
    POWERED_OFF = "powered off"  # ended by somebody without asking the guest, or saved to a file
    CRASHED = "crashed"  # or could not be started
    PAUSED = "paused"
    RESUMED = "resumed"
    ARRIVED = "arrived"  # by a migration
    LEFT = "left"  # by a migration
    DEFINED = "defined"
    UNDEFINED = "undefined"
    HOST_LOST = "host lost"  # the connection to its libvirtd ended
    HOST_FOUND = "host found"  # the connection was opened again


_STOPPED = {2: ChangeKind.CRASHED, 3: ChangeKind.LEFT, 5: ChangeKind.CRASHED, 0: ChangeKind.STOPPED}
_KINDS = {0: ChangeKind.DEFINED, 1: ChangeKind.UNDEFINED, 8: ChangeKind.CRASHED}


def change_kind(event: int, detail: int) -> ChangeKind | None:
    match event:
        case 2:
            return ChangeKind.ARRIVED if detail == 1 else ChangeKind.STARTED
        case 3 | 4 if detail == 1:  # a step of a migration
            return None
        case 3:
            return ChangeKind.PAUSED
        case 4:
            return ChangeKind.RESUMED
        case 5:
            return _STOPPED.get(detail, ChangeKind.POWERED_OFF)
        case _:
            return _KINDS.get(event)
