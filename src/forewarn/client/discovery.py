"""Finds the endpoint: the well-known address if it answers, else the one DHCP gives (spec §2.5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from forewarn.client import dhcp
from forewarn.client.effects import CallFunction, Flow, IncompleteResponse, Sleep, Unreachable, request_flow
from forewarn.client.endpoint import WELL_KNOWN_URL, Endpoint, parse_endpoint
from forewarn.client.requests import is_transient_status, poll_request
from forewarn.errors import Unavailable
from forewarn.protocol.http_message import HttpResponse

_WELL_KNOWN_ENDPOINT = parse_endpoint(WELL_KNOWN_URL)
PROBE_CONNECT_TIMEOUT_S = 2.0
_DHCP_ENDPOINT_PORTS = (80, 8080)  # known clients disagree about the port at DHCP's address (evidence §9)
_PROBE_TRIES, _PROBE_INTERVAL_S = 3, 1.0
_MAX_INTERFACES = 4  # so that discovery ends soon on hosts with hundreds of interfaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How a client without a configured endpoint searches for it: settings of `discover_endpoint`.

    `dhcp_delays_s` are the delays before each round of DHCP; () disables DHCP. `ask_dhcp` asks on one interface and
    returns the endpoint's IPv4 address, or None; it raises Unavailable if it cannot ask.
    """

    well_known: Endpoint = _WELL_KNOWN_ENDPOINT  # tried first
    connect_timeout_s: float = PROBE_CONNECT_TIMEOUT_S  # longest time to connect to an endpoint that is tried
    answer_timeout_s: float = 150.0  # longest time until it answers: the first answer may take two minutes (spec §8.1)
    dhcp_delays_s: Sequence[float] = dhcp.TRY_DELAYS_S
    interfaces: Callable[[], Sequence[dhcp.EthernetInterface]] = dhcp.ethernet_interfaces
    ask_dhcp: Callable[[dhcp.EthernetInterface], str | None] = dhcp.ask_for_endpoint


def is_scheduled_events_response(response: HttpResponse) -> bool:
    """Return whether a scheduled events endpoint seems to have sent this response.

    Other clouds use the same address.
    """
    if is_transient_status(response.status):
        return True
    try:
        content = json.loads(response.body)
    except (ValueError, RecursionError):
        return response.status == 200 and not response.body.strip()  # real endpoints do that at times (spec §11)
    return isinstance(content, dict) and (
        "Events" in content if response.status == 200 else _is_error_response(response, content)
    )


def _is_error_response(response: HttpResponse, content: dict[str, object]) -> bool:
    return response.status in (400, 404) and isinstance(content.get("error"), str)


def discover_endpoint(discovery: Discovery) -> Flow[Endpoint]:
    """Flow: return the first endpoint that answers, the well-known one or DHCP's. It may take minutes."""
    if (yield from _probe_endpoint(discovery, discovery.well_known)):
        return discovery.well_known
    problem = "no DHCP server names one" if discovery.dhcp_delays_s else "DHCP was not asked"
    for wait_s in discovery.dhcp_delays_s:
        yield Sleep(seconds=wait_s)
        try:
            found = yield from _ask_dhcp(discovery)
        except Unavailable as error:
            problem = str(error).partition(":")[0]
            continue
        if found is not None:
            return found
    raise Unreachable(
        f"no endpoint was found: {discovery.well_known} does not answer, and {problem}: "
        "set FOREWARN_ENDPOINT, or check the network"
    )


def _ask_dhcp(discovery: Discovery) -> Flow[Endpoint | None]:
    """Asks on all interfaces once; raises the last problem if no endpoint was found."""
    problem: Unavailable | None = None
    found: Sequence[dhcp.EthernetInterface] = yield CallFunction(function=discovery.interfaces)
    for interface in found[:_MAX_INTERFACES]:
        try:
            address: str | None = yield CallFunction(function=partial(discovery.ask_dhcp, interface))
        except Unavailable as error:
            problem = error
            continue
        for port in _DHCP_ENDPOINT_PORTS if address else ():
            endpoint = Endpoint(host=str(address), port=port)
            if (yield from _probe_endpoint(discovery, endpoint)):
                return endpoint
    if problem is not None:
        raise problem
    return None


def _probe_endpoint(discovery: Discovery, endpoint: Endpoint) -> Flow[bool]:
    for _ in range(_PROBE_TRIES):
        try:
            response = yield from request_flow(
                endpoint, poll_request(), discovery.answer_timeout_s, connect_timeout_s=discovery.connect_timeout_s
            )
        except Unreachable:
            return False
        except IncompleteResponse:
            yield Sleep(seconds=_PROBE_INTERVAL_S)
        else:
            return is_scheduled_events_response(response)
    return False
