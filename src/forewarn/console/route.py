"""What a route of `/forewarn/v1` is: one line of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.console.over import Over, everything
from forewarn.console.signature import Handler, Signature, signature_of
from forewarn.core.access import Right

PREFIX = "/forewarn/v1"


@dataclass(frozen=True, slots=True)
class RouteLine:
    method: str
    path: str
    handler: Handler
    right: Right
    status: int = 200
    over: Over = everything

    @property
    def signature(self) -> Signature:
        return signature_of(self.handler)


RouteTable = Mapping[tuple[str, str], RouteLine]  # by method and path
