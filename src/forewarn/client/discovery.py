"""Where the service is, if nobody has said so: the well-known address if it answers like one, else what DHCP names
(spec §2.5). A talk; what counts as an answer is decided purely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from forewarn.client import dhcp
from forewarn.client.endpoint import WELL_KNOWN, Endpoint, read_endpoint
from forewarn.client.exchange import is_passing, poll
from forewarn.client.move import Broken, Do, Pause, Talk, Unreachable, send
from forewarn.errors import Unavailable
from forewarn.protocol.message import Response

_WELL_KNOWN = read_endpoint(WELL_KNOWN)
PROBE_CONNECT_S = 2.0
_PORTS = (80, 8080)  # clients in the wild disagree about the port at the address that DHCP gives (evidence §9)
_TRIES, _BETWEEN_S = 3, 1.0
_MOST_INTERFACES = 4  # so that looking ends, on hosts with hundreds of them too


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How to look. `waits_s` stand before each round of DHCP questions; () asks none."""

    well_known: Endpoint = _WELL_KNOWN
    connect_s: float = PROBE_CONNECT_S
    answer_s: float = 150.0  # it is the first request, whose answer may take two minutes (spec §8.1)
    waits_s: Sequence[float] = dhcp.WAITS_S
    interfaces: Callable[[], Sequence[dhcp.Interface]] = dhcp.interfaces
    ask: Callable[[dhcp.Interface], str | None] = dhcp.ask


def answers_as_ours(response: Response) -> bool:
    """Whether this is what a scheduled events endpoint says, in good days or bad ones. Other clouds have other services
    at the same address.
    """
    if is_passing(response.status):
        return True
    try:
        said = json.loads(response.body)
    except (ValueError, RecursionError):
        return response.status == 200 and not response.body.strip()  # met in the wild (spec §11)
    return isinstance(said, dict) and ("Events" in said if response.status == 200 else _is_refusal(response, said))


def _is_refusal(response: Response, said: dict[str, object]) -> bool:
    return response.status in (400, 404) and isinstance(said.get("error"), str)


def discovered(discovery: Discovery) -> Talk[Endpoint]:
    """Unreachable says what was tried."""
    if (yield from _is_there(discovery, discovery.well_known)):
        return discovery.well_known
    trouble = "nobody names one by DHCP" if discovery.waits_s else "DHCP was not asked"
    for wait_s in discovery.waits_s:
        yield Pause(s=wait_s)
        try:
            found = yield from _asked(discovery)
        except Unavailable as error:
            trouble = str(error).partition(":")[0]
            continue
        if found is not None:
            return found
    raise Unreachable(
        f"no endpoint was found: {discovery.well_known} does not answer, and {trouble}: "
        "set FOREWARN_ENDPOINT, or check the network"
    )


def _asked(discovery: Discovery) -> Talk[Endpoint | None]:
    """One round over all interfaces; the last trouble is raised if there was nothing else."""
    trouble: Unavailable | None = None
    found: Sequence[dhcp.Interface] = yield Do(call=discovery.interfaces)
    for interface in found[:_MOST_INTERFACES]:
        try:
            address: str | None = yield Do(call=partial(discovery.ask, interface))
        except Unavailable as error:
            trouble = error
            continue
        for port in _PORTS if address else ():
            endpoint = Endpoint(host=str(address), port=port)
            if (yield from _is_there(discovery, endpoint)):
                return endpoint
    if trouble is not None:
        raise trouble
    return None


def _is_there(discovery: Discovery, endpoint: Endpoint) -> Talk[bool]:
    for _ in range(_TRIES):
        try:
            response = yield from send(endpoint, poll(), discovery.answer_s, connect_s=discovery.connect_s)
        except Unreachable:
            return False
        except Broken:
            yield Pause(s=_BETWEEN_S)
        else:
            return answers_as_ours(response)
    return False
