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
from forewarn.metadata import BoundDevice, IdentifyBy, ListenerSpec, Mark, SourceAddress, dedicated_attachment
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
    """What `[[listeners]]` says; Rejected names the listener by its number, from 1."""
    entrances = []
    for number, table in enumerate(tables, 1):
        try:
            entrances.append(_parse_listener(table))
        except Rejected as error:
            raise Rejected(f"[[listeners]] number {number}: {error}") from error
    _check_conflicts(entrances)
    return tuple(entrances)


def parse_listen_address(text: str) -> ListenerSpec:
    """What --listen says: an address whose callers are known by the addresses that the fleet gives them."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not is_ip_address(address) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Rejected(f"cannot listen on {text!r}: write ADDRESS:PORT in numbers, such as 169.254.169.254:80")
    return ListenerSpec(identify_by=IdentifyBy.SOURCE, address=address, port=int(port), wait_until_available=False)


def _parse_listener(table: Mapping[str, Any]) -> ListenerSpec:
    by = _parse_by(table)
    _check_keys(by, table)
    entrance = ListenerSpec(
        identify_by=by,
        address=_get_text(table, "address", METADATA_ADDRESS),
        port=_parse_port(table),
        device=_get_text(table, "device"),
        namespace=_get_text(table, "namespace"),
        network=_get_text(table, "network"),
    )
    _check_values(entrance)
    return replace(entrance, assignments=tuple(_vm_places(entrance, table)))


def _parse_by(table: Mapping[str, Any]) -> IdentifyBy:
    if "by" not in table:
        raise Rejected(f"it does not say by what a VM is known: write by = {_quoted_alternatives(IdentifyBy)}")
    try:
        return IdentifyBy(table["by"])
    except ValueError:
        raise Rejected(
            f"by = {table['by']!r} is no way to know a VM: write {_quoted_alternatives(IdentifyBy)}"
        ) from None


def _check_keys(by: IdentifyBy, table: Mapping[str, Any]) -> None:
    known = (*_COMMON_KEYS, *_REQUIRED_KEYS[by], *_OPTIONAL_KEYS[by])
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"it may have {', '.join(known)}"
            raise Rejected(f"a listener by {by} has no key {key!r}: {remedy}")
    for key in _REQUIRED_KEYS[by]:
        if not table.get(key):
            raise Rejected(f"a listener by {by} needs {key!r}: {_example_for(by)}")
    if bool(table.get("network")) != bool(table.get("vms")):
        raise Rejected(f"'network' and 'vms' belong together: {_example_for(IdentifyBy.SOURCE)}")


def _check_values(entrance: ListenerSpec) -> None:
    if not is_ip_address(entrance.address):
        raise Rejected(f"address {entrance.address!r} is no IP address: write one such as '169.254.169.254'")
    if len(entrance.device.encode()) > _MAX_DEVICE_NAME_BYTES or "/" in entrance.device:
        raise Rejected(f"device {entrance.device!r} cannot exist: names have 15 characters at most, and no '/'")
    if not set(entrance.network) <= _NETWORK_CHARACTERS:
        raise Rejected(f"network {entrance.network!r} is no name: use letters, digits, '-', '_' and '.'")


def _vm_places(entrance: ListenerSpec, table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    match entrance.identify_by:
        case IdentifyBy.DEVICE:
            yield BoundDevice(entrance.namespace).attachment_of(entrance.device), _get_text(table, "vm")
        case IdentifyBy.NAMESPACE:
            yield dedicated_attachment(entrance.namespace), _get_text(table, "vm")
        case IdentifyBy.MARK:
            for key, vm in _vm_table(table, "marks"):
                yield Mark(entrance.device, entrance.namespace).attachment_of(_parse_mark(key)), vm
        case IdentifyBy.SOURCE:
            for key, vm in _vm_table(table, "vms"):
                yield SourceAddress(entrance.network).attachment_of(_parse_caller_address(key)), vm


def _vm_table(table: Mapping[str, Any], key: str) -> list[tuple[str, str]]:
    pairs = table.get(key, {})
    if not isinstance(pairs, Mapping) or not all(isinstance(vm, str) and vm for vm in pairs.values()):
        raise Rejected(f"{key!r} is no table of VM names: {_example_for(IdentifyBy(table['by']))}")
    return [(str(name), vm) for name, vm in pairs.items()]


def _parse_mark(text: str) -> int:
    try:
        mark = int(text, 0)
    except ValueError:
        mark = 0
    if not 0 < mark <= _MAX_MARK:
        raise Rejected(f"mark {text!r} is none: write a number from 1 to {_MAX_MARK}, since 0 is what nobody marked")
    return mark


def _parse_caller_address(text: str) -> str:
    if not is_ip_address(text):
        raise Rejected(f"{text!r} in 'vms' is no IP address: {_example_for(IdentifyBy.SOURCE)}")
    return str(ip_address(text))


def _parse_port(table: Mapping[str, Any]) -> int:
    port = table.get("port", METADATA_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise Rejected(f"port {port!r} is none: give a number from 1 to 65535")
    return port


def _get_text(table: Mapping[str, Any], key: str, default: str = "") -> str:
    text = table.get(key, default)
    if not isinstance(text, str):
        raise Rejected(f"{key} = {text!r} is no text: write it in quotes")
    return text


def _check_conflicts(entrances: Sequence[ListenerSpec]) -> None:
    numbers: dict[tuple[str, str, str, int], int] = {}
    owners: dict[str, str] = {}
    for number, entrance in enumerate(entrances, 1):
        spot = (entrance.namespace, entrance.device, entrance.address, entrance.port)
        if (other := numbers.setdefault(spot, number)) != number:
            raise Rejected(f"[[listeners]] numbers {other} and {number} listen on the same: leave one of them out")
        for place, vm in entrance.assignments:
            if (owner := owners.setdefault(place, vm)) != vm:
                raise Rejected(f"[[listeners]] number {number}: it is VM {owner!r} already, and cannot be {vm!r} too")


def _example_for(by: IdentifyBy) -> str:
    return {
        IdentifyBy.DEVICE: 'write device = "tap-web0" and vm = "web-0"',
        IdentifyBy.NAMESPACE: 'write namespace = "web-0" and vm = "web-0"',
        IdentifyBy.MARK: 'write device = "br0" and marks = {1 = "web-0", 2 = "web-1"}',
        IdentifyBy.SOURCE: 'write network = "blue" and vms = {"10.0.0.4" = "web-0"}',
    }[by]


def _quoted_alternatives(words: Iterable[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def is_ip_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
