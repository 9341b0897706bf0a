"""Parses `--listen` and the `[[listeners]]` tables of the settings file into listener definitions.

Each listener says how the VM that calls there is identified: by device, namespace, mark or source address.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from string import ascii_letters, digits
from typing import Any

from forewarn.errors import Rejected
from forewarn.metadata import (
    DeviceIdentity,
    IdentifyBy,
    ListenerSpec,
    MarkIdentity,
    SourceAddressIdentity,
    dedicated_attachment,
)
from forewarn.metadata.listeners import METADATA_ADDRESS, METADATA_PORT

_REQUIRED_KEYS = {
    IdentifyBy.DEVICE: ("device", "vm"),
    IdentifyBy.NAMESPACE: ("namespace", "vm"),
    IdentifyBy.MARK: ("device", "marks"),
    IdentifyBy.SOURCE: (),
}
_OPTIONAL_KEYS = {
    IdentifyBy.DEVICE: ("namespace",),
    IdentifyBy.NAMESPACE: (),
    IdentifyBy.MARK: ("namespace",),
    IdentifyBy.SOURCE: ("namespace", "device", "network", "vms"),
}
_COMMON_KEYS = ("by", "address", "port")
_MAX_DEVICE_NAME_BYTES = 15  # IFNAMSIZ, less the 0 at its end
_NETWORK_CHARACTERS = frozenset(ascii_letters + digits + "-_.")
_MAX_MARK = 0xFFFFFFFF


def parse_listeners(tables: Sequence[Mapping[str, Any]]) -> tuple[ListenerSpec, ...]:
    """Return the listeners that the `[[listeners]]` tables of the settings define, in the same order. Opens nothing."""
    specs = []
    for number, table in enumerate(tables, 1):
        try:
            specs.append(_parse_listener(table))
        except Rejected as error:
            raise Rejected(f"[[listeners]] number {number}: {error}") from error
    _check_conflicts(specs)
    return tuple(specs)


def parse_listen_address(text: str) -> ListenerSpec:
    """Return the listener for the ADDRESS:PORT of --listen; an IPv6 address is in brackets."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not is_ip_address(address) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Rejected(f"cannot listen on {text!r}: write ADDRESS:PORT in numbers, such as 169.254.169.254:80")
    return ListenerSpec(identify_by=IdentifyBy.SOURCE, address=address, port=int(port), wait_until_available=False)


def _parse_listener(table: Mapping[str, Any]) -> ListenerSpec:
    by = _parse_by(table)
    _check_keys(by, table)
    spec = ListenerSpec(
        identify_by=by,
        address=_get_text(table, "address", METADATA_ADDRESS),
        port=_parse_port(table),
        device=_get_text(table, "device"),
        namespace=_get_text(table, "namespace"),
        network=_get_text(table, "network"),
    )
    _check_values(spec)
    return replace(spec, assignments=tuple(_read_assignments(spec, table)))


def _parse_by(table: Mapping[str, Any]) -> IdentifyBy:
    if "by" not in table:
        raise Rejected(f"'by', how VMs are identified, is missing: write by = {_quoted_alternatives(IdentifyBy)}")
    try:
        return IdentifyBy(table["by"])
    except ValueError:
        raise Rejected(f"by = {table['by']!r} is not supported: write {_quoted_alternatives(IdentifyBy)}") from None


def _check_keys(by: IdentifyBy, table: Mapping[str, Any]) -> None:
    known = (*_COMMON_KEYS, *_REQUIRED_KEYS[by], *_OPTIONAL_KEYS[by])
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(known)}"
            raise Rejected(f"a listener by {by} has no key {key!r}: {remedy}")
    for key in _REQUIRED_KEYS[by]:
        if not table.get(key):
            raise Rejected(f"a listener by {by} needs {key!r}: {_example_for(by)}")
    if bool(table.get("network")) != bool(table.get("vms")):
        raise Rejected(f"'network' and 'vms' belong together: {_example_for(IdentifyBy.SOURCE)}")


def _check_values(spec: ListenerSpec) -> None:
    if not is_ip_address(spec.address):
        raise Rejected(f"address {spec.address!r} is not an IP address: write one such as '169.254.169.254'")
    if len(spec.device.encode()) > _MAX_DEVICE_NAME_BYTES or "/" in spec.device:
        raise Rejected(f"device {spec.device!r} is not a valid name: use at most 15 characters, and no '/'")
    if not set(spec.network) <= _NETWORK_CHARACTERS:
        raise Rejected(f"network {spec.network!r} is not a valid name: use letters, digits, '-', '_' and '.'")


def _read_assignments(spec: ListenerSpec, table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield (attachment, VM name) for each VM that the table names."""
    match spec.identify_by:
        case IdentifyBy.DEVICE:
            yield DeviceIdentity(spec.namespace).attachment_of(spec.device), _get_text(table, "vm")
        case IdentifyBy.NAMESPACE:
            yield dedicated_attachment(spec.namespace), _get_text(table, "vm")
        case IdentifyBy.MARK:
            for key, vm in _vm_table(table, "marks"):
                yield MarkIdentity(spec.device, spec.namespace).attachment_of(_parse_mark(key)), vm
        case IdentifyBy.SOURCE:
            for key, vm in _vm_table(table, "vms"):
                yield SourceAddressIdentity(spec.network).attachment_of(_parse_caller_address(key)), vm


def _vm_table(table: Mapping[str, Any], key: str) -> list[tuple[str, str]]:
    pairs = table.get(key, {})
    if not isinstance(pairs, Mapping) or not all(isinstance(vm, str) and vm for vm in pairs.values()):
        raise Rejected(f"{key!r} is not a table of VM names: {_example_for(IdentifyBy(table['by']))}")
    return [(str(name), vm) for name, vm in pairs.items()]


def _parse_mark(text: str) -> int:
    try:
        mark = int(text, 0)
    except ValueError:
        mark = 0
    if not 0 < mark <= _MAX_MARK:
        raise Rejected(f"mark {text!r} is not valid: write a number from 1 to {_MAX_MARK}; 0 means unmarked")
    return mark


def _parse_caller_address(text: str) -> str:
    if not is_ip_address(text):
        raise Rejected(f"{text!r} in 'vms' is not an IP address: {_example_for(IdentifyBy.SOURCE)}")
    return str(ip_address(text))


def _parse_port(table: Mapping[str, Any]) -> int:
    port = table.get("port", METADATA_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise Rejected(f"port {port!r} is not valid: give a number from 1 to 65535")
    return port


def _get_text(table: Mapping[str, Any], key: str, default: str = "") -> str:
    text = table.get(key, default)
    if not isinstance(text, str):
        raise Rejected(f"{key} = {text!r} is not text: write it in quotes")
    return text


def _check_conflicts(specs: Sequence[ListenerSpec]) -> None:
    numbers: dict[tuple[str, str, str, int], int] = {}
    owners: dict[str, str] = {}
    for number, spec in enumerate(specs, 1):
        endpoint = (spec.namespace, spec.device, spec.address, spec.port)
        if (other := numbers.setdefault(endpoint, number)) != number:
            raise Rejected(f"[[listeners]] numbers {other} and {number} listen on the same address: remove one of them")
        for attachment, vm in spec.assignments:
            if (owner := owners.setdefault(attachment, vm)) != vm:
                raise Rejected(
                    f"[[listeners]] number {number}: the same callers are VM {owner!r} and VM {vm!r}: name only one"
                )


def _example_for(by: IdentifyBy) -> str:
    return {
        IdentifyBy.DEVICE: 'write device = "tap-web0" and vm = "web-0"',
        IdentifyBy.NAMESPACE: 'write namespace = "web-0" and vm = "web-0"',
        IdentifyBy.MARK: 'write device = "br0" and marks = {1 = "web-0", 2 = "web-1"}',
        IdentifyBy.SOURCE: 'write network = "blue" and vms = {"10.0.0.4" = "web-0"}',
    }[by]


def _quoted_alternatives(values: Iterable[str]) -> str:
    return " or ".join(f'"{value}"' for value in values)


def is_ip_address(text: str) -> bool:
    """Return whether the text is an IPv4 or IPv6 address, without brackets and without a port."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
