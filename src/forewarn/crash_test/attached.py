"""Observes a handler that runs elsewhere already: its cases run one after the other, on one address."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from forewarn.crash_test.case import Case, Layout, Need
from forewarn.crash_test.claims import HandlerClaims
from forewarn.crash_test.handler_machine import AttachedMachine
from forewarn.crash_test.live_stage import StageSetup, open_live_stage
from forewarn.crash_test.preflight import declare_case_fleet
from forewarn.crash_test.run_case import RawCaseResult, play_case
from forewarn.crash_test.timeline import Polled, Probe, Timeline
from forewarn.errors import Rejected

_BACKLOG = 1024
_LONGEST_PAUSE_S = 60.0  # that a handler may make after the errors of the case before
_RECOVERY_S = 20.0  # within which a handler should have recovered from the case before
_MAX_INCARNATION = 2**31  # beyond, a case has made it up


def listen_for_handler(address: str) -> socket.socket:
    """Return a new socket that listens on `address`, written ADDRESS:PORT; port 0 means any free port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise Rejected(f"--attach {address!r} is not an address and a port: write it like 127.0.0.1:8080")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        problem = error.strerror or str(error)
        raise Rejected(f"cannot listen on {address!r} ({problem}): give another address or port") from error


def endpoint_url(listener: socket.socket) -> str:
    """Return the URL `http://HOST:PORT` of a listening socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def why_not_attachable(case: Case) -> str:
    """Return why a case cannot run with a handler that runs elsewhere, as a clause; "" if it can."""
    if case.needs & {Need.CONTROL, Need.NAMESPACES}:
        return "it starts, kills or reboots the handler, which runs elsewhere"
    if Need.SEVERAL_VMS in case.needs:
        return "it needs copies of the handler on several VMs, and one is attached"
    if case.layout is Layout.SCALE_SET:
        return "it needs a VM whose host name differs from its VM name, and the handler runs elsewhere"
    if all(demand.watches_process for demand in case.demands):
        return "it watches the handler's process, which runs elsewhere"
    return ""


class AttachedHandler:
    """A handler that runs elsewhere and calls a listening socket; runs its cases one after the other.

    Documents call its VM `vm` in every case, and their incarnation grows from case to case: the handler knows nothing
    of cases, and sees one VM with one event after the other.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        vm: str,
        claims: HandlerClaims,
        probes: Mapping[Probe, str],
        speed: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._listener = listener
        self._vm = vm
        self._claims = claims
        self._probes = probes
        self._speed = speed
        self._seed = seed
        self._incarnation = 1

    async def wait_for_first_poll(self, within_s: float) -> bool:
        """Wait until the handler polls, and return whether it did within `within_s` seconds of real time."""
        async with open_live_stage(self._setup(Layout.SINGLE)) as stage:
            return await stage.until_polled(within_s=within_s * self._speed)

    async def run(self, case: Case) -> RawCaseResult:
        """Run a case once the handler polls, and return what was observed, not judged.

        First the handler must poll twice. With the probe `prepared`, waits up to 20 s more for it to say no. The case
        must be attachable.
        """
        random.seed(f"{self._seed}/{case.id}")
        async with open_live_stage(self._setup(case.layout, case.clock_offset_s)) as stage:
            within_s = (_LONGEST_PAUSE_S + 2 * self._claims.polls_every_s) * self._speed
            settles_within_s = _RECOVERY_S * self._speed if Probe.PREPARED in self._probes else 0.0
            if not await stage.until_at_rest(within_s=within_s, settles_within_s=settles_within_s):
                return RawCaseResult(problem=f"the handler did not poll in the {within_s:.0f} s before this case")
            raw = await play_case(case, stage)
        self._incarnation = 1 + _highest_incarnation(raw.timeline, self._incarnation)
        return raw

    def _setup(self, layout: Layout, clock_offset_s: float = 0.0) -> StageSetup:
        return StageSetup(
            fleet=declare_case_fleet(layout, self._vm),
            machines={self._vm: AttachedMachine(self._listener)},
            probes=self._probes,
            speed=self._speed,
            clock_offset_s=clock_offset_s,
            first_incarnation=self._incarnation,
        )


def _highest_incarnation(timeline: Timeline, first: int) -> int:
    seen = [poll.incarnation for poll in timeline.of(Polled) if poll.incarnation is not None]
    return max([first, *(number for number in seen if number < _MAX_INCARNATION)])
