"""Entrances as the settings file tells them, `[[listeners]]`: each says what tells which VM calls there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from string import ascii_letters, digits
from typing import Any

from forewarn.errors import Rejected
from forewarn.metadata import BoundDevice, By, Entrance, Mark, SourceAddress, place_within
from forewarn.metadata.entrance import METADATA_ADDRESS, METADATA_PORT

_NEEDED = {
    By.DEVICE: ("device", "vm"),
    By.NAMESPACE: ("namespace", "vm"),
    By.MARK: ("device", "marks"),
    By.SOURCE: (),
}
_ALLOWED = {
    By.DEVICE: ("namespace",),
    By.NAMESPACE: (),
    By.MARK: ("namespace",),
    By.SOURCE: ("namespace", "device", "network", "vms"),
}
_ALWAYS = ("by", "address", "port")
_DEVICE_CHARACTERS = 15  # IFNAMSIZ, less the 0 at its end
_NETWORK_CHARACTERS = frozenset(ascii_letters + digits + "-_.")
_MOST_MARK = 0xFFFFFFFF


def read_entrances(tables: Sequence[Mapping[str, Any]]) -> tuple[Entrance, ...]:
    """What `[[listeners]]` says; Rejected names the listener by its number, from 1."""
    entrances = []
    for number, table in enumerate(tables, 1):
        try:
            entrances.append(_read(table))
        except Rejected as error:
            raise Rejected(f"[[listeners]] number {number}: {error}") from error
    _check_together(entrances)
    return tuple(entrances)


def read_address(text: str) -> Entrance:
    """What --listen says: an address whose callers are known by the addresses that the fleet gives them."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not is_address(address) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Rejected(f"cannot listen on {text!r}: write ADDRESS:PORT in numbers, such as 169.254.169.254:80")
    return Entrance(by=By.SOURCE, address=address, port=int(port), waits=False)


def _read(table: Mapping[str, Any]) -> Entrance:
    by = _by(table)
    _check_keys(by, table)
    entrance = Entrance(
        by=by,
        address=_text(table, "address", METADATA_ADDRESS),
        port=_port(table),
        device=_text(table, "device"),
        namespace=_text(table, "namespace"),
        network=_text(table, "network"),
    )
    _check(entrance)
    return replace(entrance, residents=tuple(_residents(entrance, table)))


def _by(table: Mapping[str, Any]) -> By:
    if "by" not in table:
        raise Rejected(f"it does not say by what a VM is known: write by = {_either(By)}")
    try:
        return By(table["by"])
    except ValueError:
        raise Rejected(f"by = {table['by']!r} is no way to know a VM: write {_either(By)}") from None


def _check_keys(by: By, table: Mapping[str, Any]) -> None:
    known = (*_ALWAYS, *_NEEDED[by], *_ALLOWED[by])
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"it may have {', '.join(known)}"
            raise Rejected(f"a listener by {by} has no key {key!r}: {remedy}")
    for key in _NEEDED[by]:
        if not table.get(key):
            raise Rejected(f"a listener by {by} needs {key!r}: {_example(by)}")
    if bool(table.get("network")) != bool(table.get("vms")):
        raise Rejected(f"'network' and 'vms' belong together: {_example(By.SOURCE)}")


def _check(entrance: Entrance) -> None:
    if not is_address(entrance.address):
        raise Rejected(f"address {entrance.address!r} is no IP address: write one such as '169.254.169.254'")
    if len(entrance.device.encode()) > _DEVICE_CHARACTERS or "/" in entrance.device:
        raise Rejected(f"device {entrance.device!r} cannot exist: names have 15 characters at most, and no '/'")
    if not set(entrance.network) <= _NETWORK_CHARACTERS:
        raise Rejected(f"network {entrance.network!r} is no name: use letters, digits, '-', '_' and '.'")


def _residents(entrance: Entrance, table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    match entrance.by:
        case By.DEVICE:
            yield BoundDevice(entrance.namespace).at(entrance.device), _text(table, "vm")
        case By.NAMESPACE:
            yield place_within(entrance.namespace), _text(table, "vm")
        case By.MARK:
            for key, vm in _pairs(table, "marks"):
                yield Mark(entrance.device, entrance.namespace).at(_mark(key)), vm
        case By.SOURCE:
            for key, vm in _pairs(table, "vms"):
                yield SourceAddress(entrance.network).at(_caller(key)), vm


def _pairs(table: Mapping[str, Any], key: str) -> list[tuple[str, str]]:
    pairs = table.get(key, {})
    if not isinstance(pairs, Mapping) or not all(isinstance(vm, str) and vm for vm in pairs.values()):
        raise Rejected(f"{key!r} is no table of VM names: {_example(By(table['by']))}")
    return [(str(name), vm) for name, vm in pairs.items()]


def _mark(text: str) -> int:
    try:
        mark = int(text, 0)
    except ValueError:
        mark = 0
    if not 0 < mark <= _MOST_MARK:
        raise Rejected(f"mark {text!r} is none: write a number from 1 to {_MOST_MARK}, since 0 is what nobody marked")
    return mark


def _caller(text: str) -> str:
    if not is_address(text):
        raise Rejected(f"{text!r} in 'vms' is no IP address: {_example(By.SOURCE)}")
    return str(ip_address(text))


def _port(table: Mapping[str, Any]) -> int:
    port = table.get("port", METADATA_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise Rejected(f"port {port!r} is none: give a number from 1 to 65535")
    return port


def _text(table: Mapping[str, Any], key: str, default: str = "") -> str:
    text = table.get(key, default)
    if not isinstance(text, str):
        raise Rejected(f"{key} = {text!r} is no text: write it in quotes")
    return text


def _check_together(entrances: Sequence[Entrance]) -> None:
    numbers: dict[tuple[str, str, str, int], int] = {}
    owners: dict[str, str] = {}
    for number, entrance in enumerate(entrances, 1):
        spot = (entrance.namespace, entrance.device, entrance.address, entrance.port)
        if (other := numbers.setdefault(spot, number)) != number:
            raise Rejected(f"[[listeners]] numbers {other} and {number} listen on the same: leave one of them out")
        for place, vm in entrance.residents:
            if (owner := owners.setdefault(place, vm)) != vm:
                raise Rejected(f"[[listeners]] number {number}: it is VM {owner!r} already, and cannot be {vm!r} too")


def _example(by: By) -> str:
    return {
        By.DEVICE: 'write device = "tap-web0" and vm = "web-0"',
        By.NAMESPACE: 'write namespace = "web-0" and vm = "web-0"',
        By.MARK: 'write device = "br0" and marks = {1 = "web-0", 2 = "web-1"}',
        By.SOURCE: 'write network = "blue" and vms = {"10.0.0.4" = "web-0"}',
    }[by]


def _either(words: Iterable[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
