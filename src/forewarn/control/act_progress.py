"""What the hypervisor last reported about acts that are under way: a note, and an unreachable host.

Kept in memory only: after a restart of the service, the next attempt at each act reports it again.
"""

from __future__ import annotations

from collections.abc import Callable

from forewarn.core.event import Act
from forewarn.machines.interface import ActUnderWay

ProgressListener = Callable[[Act], None]  # called with an act whose report changed


class ActProgress:
    """What the hypervisor last reported about each act that is under way: a note, and a host it waits for."""

    def __init__(self) -> None:
        self._reports: dict[str, ActUnderWay] = {}  # by act id
        self._listeners: list[ProgressListener] = []

    def record(self, act: Act, report: ActUnderWay) -> None:
        """Keep what the hypervisor reported about this act, in place of what it reported before."""
        before = self._reports.pop(act.id, None)
        if report.note or report.waits_for_host:
            self._reports[act.id] = report
        if _content(before) != _content(report):
            self._notify(act)

    def forget(self, act: Act) -> None:
        """Drop the report about an act that has ended; does nothing without one. Calls no listener."""
        self._reports.pop(act.id, None)

    def note(self, act_id: str) -> str:
        """Return how the act is going, for people; "" if no hypervisor has said it or the act has ended."""
        report = self._reports.get(act_id)
        return report.note if report is not None else ""

    def notes(self) -> dict[str, str]:
        return {act_id: report.note for act_id, report in self._reports.items() if report.note}

    def awaited_hosts(self) -> dict[str, str]:
        """Return, by act id, the name of the host that each act waits for until it answers the hypervisor."""
        return {act_id: report.waits_for_host for act_id, report in self._reports.items() if report.waits_for_host}

    def unreachable_hosts(self) -> frozenset[str]:
        """Return the names of the hosts that do not answer the hypervisor, as far as acts wait for them."""
        return frozenset(self.awaited_hosts().values()) if self._reports else frozenset()

    def subscribe(self, listener: ProgressListener) -> Callable[[], None]:
        """Call `listener` with the act after each change of its report; return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self, act: Act) -> None:
        for listener in tuple(self._listeners):
            listener(act)


def _content(report: ActUnderWay | None) -> tuple[str, str]:
    return (report.note, report.waits_for_host) if report is not None else ("", "")
