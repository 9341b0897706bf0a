"""libvirt's Python module with one domain whose state changes between any two calls, for `LibvirtSession`.

A plan says how far the domain's life goes on before each call: so a test can look at it in every way that a real one
could be caught in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DOMAIN = "web-1"
DEFINITION = "<domain><name>web-1</name><memory unit='MiB'>512</memory></domain>"
NO_METADATA = 80
OPERATION_INVALID = 55
OPERATION_UNSUPPORTED = 84


class libvirtError(Exception):
    """An error of libvirt with its number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self._code = code

    def get_error_code(self) -> int:
        return self._code

    def get_error_message(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A domain as libvirt reports it at one moment."""

    state: int
    reason: int = 0
    job: int = 0  # its type; 0: none
    is_incoming: bool = False  # then it has no numbers about its job
    live_move: str = ""  # of our metadata in the running definition
    stored_move: str = ""


class FakeDomain:
    """A domain that goes through these moments, as far as the plan says before each call; it never goes back."""

    def __init__(self, moments: Sequence[Moment], plan: Sequence[int]) -> None:
        self._moments = moments
        self._plan = plan
        self._at = 0
        self.calls = 0

    @property
    def moment(self) -> Moment:
        return self._moments[self._at]

    def _next_call(self) -> Moment:
        steps = self._plan[self.calls] if self.calls < len(self._plan) else 0
        self._at = min(self._at + steps, len(self._moments) - 1)
        self.calls += 1
        return self.moment

    def state(self) -> list[int]:
        moment = self._next_call()
        return [moment.state, moment.reason]

    def isActive(self) -> int:
        return int(self._next_call().state != 5)

    def isPersistent(self) -> int:
        self._next_call()
        return 1

    def jobInfo(self) -> list[int]:
        moment = self._next_call()
        if moment.state == 5:
            raise libvirtError(OPERATION_INVALID)
        if moment.is_incoming:
            raise libvirtError(OPERATION_UNSUPPORTED)
        return [moment.job]

    def name(self) -> str:
        return DOMAIN

    def XMLDesc(self, _flags: int) -> str:
        return DEFINITION

    def metadata(self, _kind: int, _namespace: str, which: int) -> str:
        moment = self._next_call()
        move = moment.live_move if which == 1 else moment.stored_move
        if not move:
            raise libvirtError(NO_METADATA)
        return f'<move state="{move}"/>'


class FakeConnection:
    """A connection to a host that has one domain; `is_closed` says whether it was closed."""

    def __init__(self, domain: FakeDomain) -> None:
        self._domain = domain
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def domainEventRegisterAny(self, _domain: None, _event: int, _callback: object, _opaque: None) -> None:
        """Report no changes."""

    def registerCloseCallback(self, _callback: object, _opaque: None) -> None:
        """Never end by itself."""

    def listAllDomains(self) -> list[FakeDomain]:
        return [self._domain]

    def lookupByName(self, name: str) -> FakeDomain:
        assert name == DOMAIN
        return self._domain

    def isAlive(self) -> int:
        return 1


class FakeLibvirt:
    """The module."""

    libvirtError = libvirtError
    VIR_DOMAIN_EVENT_ID_LIFECYCLE = 0
    VIR_DOMAIN_XML_SECURE = 1
    VIR_DOMAIN_XML_INACTIVE = 2
