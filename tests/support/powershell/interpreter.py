"""What runs: variables, what cmdlets do, and how values turn into text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from forewarn.testing.powershell.cmdlet import VALUES

Do = Callable[["Shell"], Any]
Cmdlet = Callable[[dict[str, Any], Any], Any]  # its parameters and what is piped into it → what comes out

_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_USUAL_DEPTH = 2


class NotPowerShell(Exception):
    """What is written cannot be run."""


class Thrown(Exception):
    """The script itself says no."""


class Break(Exception):
    pass


class Shell:
    """Variables, and what cmdlets do. Names are compared without case."""

    def __init__(self, cmdlets: Mapping[str, Cmdlet]) -> None:
        self._cmdlets = {"ConvertTo-Json": _to_json, **cmdlets}
        self._variables: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        self._variables[name.lower()] = value

    def get(self, name: str) -> Any:
        if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        if name.lower() not in self._variables:
            raise NotPowerShell(f"${name} was set nowhere")
        return self._variables[name.lower()]

    def call(self, name: str, given: dict[str, Any], piped: Any) -> Any:
        for parameter, value in given.items():
            allowed = VALUES.get((name, parameter))
            if allowed is not None and str(value).lower() not in allowed:
                raise NotPowerShell(f"{name} -{parameter} takes no {value!r}")
        if name not in self._cmdlets:
            raise NotPowerShell(f"{name} cannot be run here")
        return self._cmdlets[name](given, piped)


def _to_json(given: dict[str, Any], piped: Any) -> str:
    """What lies deeper than `-Depth` PowerShell would turn into words."""
    if _nesting(piped) > given.get("Depth", _USUAL_DEPTH):
        raise NotPowerShell("what is converted is deeper than -Depth says")
    return json.dumps(piped)


def _nesting(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return -1 if inner is None else 1 + max((_nesting(one) for one in inner), default=-1)


def member_of(value: Any, name: str) -> Any:
    """What has no such member has `$null` there."""
    if not isinstance(value, dict):
        return None
    return next((held for key, held in value.items() if key.lower() == name.lower()), None)


def text_of(value: Any) -> str:
    if isinstance(value, dict | list):
        raise NotPowerShell("a string would say of which type this is, and not what it holds")
    return "" if value is None else str(value)


def always(value: Any) -> Do:
    return lambda shell: value


def member(value: Do, name: str) -> Do:
    return lambda shell: member_of(value(shell), name)


def indexed(value: Do, index: Do) -> Do:
    def held(shell: Shell) -> Any:
        inside, wanted = value(shell), index(shell)
        return inside[wanted] if isinstance(inside, list) else member_of(inside, wanted)

    return held


def assignment(name: str, members: list[str], value: Do) -> Do:
    def assign(shell: Shell) -> None:
        if not members:
            shell.set(name, value(shell))
            return
        inside = shell.get(name)
        for member in members[:-1]:
            inside = member_of(inside, member)
        if not isinstance(inside, dict) or members[-1] not in inside:
            raise NotPowerShell(f"${name} has no member {'.'.join(members)!r} that could be set")
        inside[members[-1]] = value(shell)

    return assign


def run_all(body: list[Do], shell: Shell) -> None:
    for do in body:
        do(shell)


def stop(shell: Shell) -> None:
    raise Break


def throw(told: str) -> None:
    raise Thrown(told)
