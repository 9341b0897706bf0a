"""Members of a JSON object that somebody sent, held against those that a GET shows. Pure.

What is sent back as it was shown is fine, and so is what says nothing: clients send whole objects.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forewarn.console.arm.refusal import Coded
from forewarn.console.arm.shape import Json

Path = tuple[str, ...]
_LONGEST_SHOWN = 80
# What only the service writes: a client that sends an older one back means nothing by it.
_TOLD_ONLY = frozenset({"properties.instanceView", "properties.provisioningState", "etag", "systemData"})


class Missing:
    """No such member was sent: another thing than null."""


MISSING: Final = Missing()


def member(sent: Json, path: Path) -> Any:
    """What was sent under this path, else MISSING. Nothing is under something that is null."""
    value: Any = sent
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def merged(old: Any, sent: Any) -> Any:
    """`old` with what was sent: members left out stay, and null takes one away (RFC 7396)."""
    if not isinstance(sent, dict):
        return sent
    kept = old if isinstance(old, dict) else {}
    named = {name: merged(kept.get(name), value) for name, value in sent.items() if value is not None}
    return {name: value for name, value in kept.items() if name not in sent} | named


def says_nothing(value: Any) -> bool:
    """Null, and whatever holds nothing else."""
    if isinstance(value, dict):
        return all(map(says_nothing, value.values()))
    return value is None or value == []


def must_be_as_shown(sent: Json, shown: Json, changeable: frozenset[Path], above: Path = ()) -> None:
    """Everything that was sent, except what can change, which is read elsewhere."""
    for name, value in sent.items():
        path = (*above, name)
        if path in changeable or value is None or ".".join(path) in _TOLD_ONLY:
            continue
        if name not in shown and says_nothing(value):
            continue
        if name not in shown:
            raise invalid(path, "is nothing that can be set here: leave it out")
        old = shown[name]
        if isinstance(old, dict):
            must_be_as_shown(as_object(value, path), old, changeable, path)
        elif not _alike(value, old, name):
            raise _unchangeable(path, value, old)


def as_object(value: Any, path: Path) -> Json:
    if isinstance(value, dict):
        return value
    raise invalid(path, f"is {text_of(value)}: send an object")


def invalid(path: Path, what: str) -> Coded:
    where = where_is(path)
    return Coded(400, "InvalidParameter", f"{where} {what}", target=where)


def where_is(path: Path) -> str:
    return short(".".join(path))


def text_of(value: Any) -> str:
    """As it was written, cut short."""
    return short(msgspec.json.encode(value).decode())


def _alike(sent: Any, shown: Any, name: str) -> bool:
    """Azure compares names without case, and locations without spaces too."""
    if isinstance(sent, list) and isinstance(shown, list):
        return len(sent) == len(shown) and all(_alike(*pair, name) for pair in zip(sent, shown, strict=True))
    if isinstance(sent, dict) and isinstance(shown, dict):
        return all(key in shown and _alike(value, shown[key], key) for key, value in sent.items() if value is not None)
    if isinstance(sent, str) and isinstance(shown, str):
        return _plain(sent, name) == _plain(shown, name)
    return isinstance(sent, bool) == isinstance(shown, bool) and bool(sent == shown)


def _plain(text: str, name: str) -> str:
    return (text.replace(" ", "") if name == "location" else text).casefold()


def _unchangeable(path: Path, sent: Any, shown: Any) -> Coded:
    where = where_is(path)
    message = f"{where} is {text_of(shown)} and cannot become {text_of(sent)}: {_instead(path, sent, shown)}"
    return Coded(409, "PropertyChangeNotAllowed", message, target=where)


def _instead(path: Path, sent: Any, shown: Any) -> str:
    if path != ("sku", "capacity") or not isinstance(sent, int | float):
        return "leave it, or change it in the fleet file (`forewarn fleet apply`)"
    if sent > shown:
        return "add instances to the fleet file, or with `forewarn fleet add`"
    return "delete the instances that shall go (`az vmss delete-instances`, `forewarn delete --scale-in`)"


def short(text: str) -> str:
    """What a stranger wrote, cut."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
