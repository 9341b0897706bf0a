"""What the console is the face of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forewarn.control.control import Control
from forewarn.core.fleet import Vm


def _nowhere(vm: Vm) -> str:
    return ""


async def _nothing_seen() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    control: Control
    info: Callable[[], dict[str, Any]]  # what `GET /service` answers
    doctor: Callable[[], Awaitable[Sequence[Any]]]  # checks, each with name, ok, text and remedy
    who: str  # how the history calls whoever asks here
    endpoint_of: Callable[[Vm], str] = _nowhere  # the base URL under which a lab serves a VM; "" on real networks
    observe: Callable[[], Awaitable[None]] = _nothing_seen  # writes down what VMs were seen to ask until now
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set: held requests are answered now
