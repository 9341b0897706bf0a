"""What a page of the portal is: one line of the table, a view to show, and its table for those who take it away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from forewarn.console.over import Over, listing
from forewarn.console.signature import Handler, Signature, signature_of
from forewarn.core.access import Right

PREFIX = "/portal"
MOST_TAKEN = 100_000  # VMs or entries in a file that is taken away


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A view as rows, for CSV."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""  # below them


def cut_note(is_cut: bool, told: int, found: int | None = None) -> str:
    """What a file says that does not hold everything."""
    return f"cut after {told}{f' of {found}' if found else ''}: search for less" if is_cut else ""


@runtime_checkable
class Tabular(Protocol):
    """A view that can be taken away as CSV."""

    def table(self) -> Table: ...


@runtime_checkable
class Drawn(Protocol):
    """A view that can be taken away as a drawing."""

    def svg(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PageLine:
    """A handler shows a msgspec Struct, which the template is given as `page`; `?as=json` sends it as it is."""

    path: str
    handler: Handler
    template: str
    right: Right = Right.READ
    over: Over = listing

    @property
    def signature(self) -> Signature:
        return signature_of(self.handler)
