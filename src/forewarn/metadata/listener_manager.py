"""Opens the configured listeners when their device, address or namespace exists, and reopens them.

A socket stays with the device it was bound to, so a device that is created again under the same name needs a new
socket. A netlink socket reports changes in this network namespace; other namespaces are checked every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forewarn.base.link_monitor import LinkMonitor
from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.listeners import ListenerSpec, OpenListener, VmListener, open_listener

_log = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 1.0  # netlink does not report changes in other namespaces
_DEBOUNCE_S = 0.02  # a new device causes several netlink messages


@dataclass(frozen=True, slots=True)
class ListenerChange:
    """A configured listener that was opened, closed or opened again; `ListenerManager` makes it."""

    spec: ListenerSpec  # which listener
    listener: VmListener | None  # the open one; None: it is closed
    previous: VmListener | None = None  # was open, no longer works; the receiver closes it. None: it was closed


class ListenerManager:
    """Keeps the configured listeners open: call `open_all` once, then `run` or repeatedly `refresh`.

    It opens sockets, on which connections wait, and accepts none. `shared` opens them with SO_REUSEPORT, so that
    another process can take over.
    """

    def __init__(self, specs: Iterable[ListenerSpec], *, shared: bool = False) -> None:
        self._specs = tuple(specs)
        self._shared = shared
        self._open: dict[ListenerSpec, OpenListener] = {}
        self._waiting: dict[ListenerSpec, str] = {}

    @property
    def waiting(self) -> dict[ListenerSpec, str]:
        """A new dict: listener that could not be opened at the last attempt → the reason in words."""
        return dict(self._waiting)

    def open_all(self) -> list[ListenerChange]:
        """Open all listeners; return one change, without `previous`, for each that is open now.

        One that is unavailable is `waiting`. Rejected if one can never be opened, or is unavailable and has no
        `wait_until_available`; then all are closed.
        """
        for spec in self._specs:
            try:
                self._open_one(spec)
            except (Unavailable, Rejected) as error:
                if spec.wait_until_available and isinstance(error, Unavailable):
                    self._mark_waiting(spec, str(error))
                    continue
                self.close()
                raise Rejected(f"cannot listen on {spec.name}: {error}") from error
        return [ListenerChange(spec, opened.listener) for spec, opened in self._open.items()]

    def close(self) -> None:
        """Close the sockets of all open listeners; call it only if no server was started on them."""
        for opened in self._open.values():
            opened.listener.close()

    def refresh(self) -> list[ListenerChange]:
        """Check every listener, open or reopen what is possible now, and return only those that changed.

        The caller closes the `previous` of each change. A listener that cannot be opened is `waiting`, even one that
        can never be opened.
        """
        changes = (self._refresh_one(spec) for spec in self._specs)
        return [change for change in changes if change is not None]

    async def run(self, on_change: Callable[[ListenerChange], None]) -> None:
        """Call `refresh` until cancelled, after each change that netlink reports and about every second."""
        monitor = LinkMonitor()
        try:
            while True:
                await monitor.wait_for_change(_CHECK_INTERVAL_S)
                await asyncio.sleep(_DEBOUNCE_S)
                for change in self.refresh():
                    on_change(change)
        finally:
            monitor.close()

    def _refresh_one(self, spec: ListenerSpec) -> ListenerChange | None:
        opened = self._open.get(spec)
        if opened is not None and opened.is_current:
            return None
        self._open.pop(spec, None)
        try:
            self._open_one(spec)
        except (Unavailable, Rejected) as error:
            self._mark_waiting(spec, str(error))
        current, previous = self._open.get(spec), opened.listener if opened else None
        if current is None and previous is None:
            return None
        return ListenerChange(spec, current.listener if current else None, previous)

    def _open_one(self, spec: ListenerSpec) -> None:
        self._open[spec] = open_listener(spec, shared=self._shared)
        if self._waiting.pop(spec, None):
            _log.warning("listening on %s now", spec.name)

    def _mark_waiting(self, spec: ListenerSpec, reason: str) -> None:
        if self._waiting.get(spec) != reason:
            _log.warning("not listening on %s yet: %s; waiting for it", spec.name, reason)
        self._waiting[spec] = reason
