"""Text that a shell can evaluate: variables with any value, and remarks, as each shell spells them. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

_SINGLE_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")  # all of these end a string in PowerShell


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    quote: Callable[[str], str]
    form: str

    def variable(self, name: str, value: str) -> str:
        return self.form.format(name=name, value=self.quote(value))


def remark(text: str) -> str:
    """In one line whatever it holds: a line break would begin a command."""
    return f"# {''.join(char if char.isprintable() else '?' for char in text)}"


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quote_powershell(text: str) -> str:
    return f"'{_SINGLE_QUOTES.sub(lambda quote: quote[0] * 2, text)}'"


SHELLS = {
    "bash": Shell(quote=shlex.quote, form="export {name}={value}"),
    "fish": Shell(quote=_quote_fish, form="set -gx {name} {value}"),
    "powershell": Shell(quote=_quote_powershell, form="$env:{name} = {value}"),
}
