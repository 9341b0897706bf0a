"""Makes a failing schedule small: removes operations and VMs, and simplifies numbers, while it still fails.

The method is delta debugging: it removes ever smaller runs of operations. It gives up after a number of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from tests.simulation.schedule import Operation, Schedule, SimulationSettings, Wait

MAX_RUNS = 600


class _NoRunsLeft(Exception):
    """The limit of runs is reached."""


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool], *, max_runs: int = MAX_RUNS) -> Schedule:
    """Return a smaller schedule for which `fails` is true, as it is for the given one; at best a minimal one."""
    return _Shrinker(schedule, fails, max_runs).shrink()


class _Shrinker:
    def __init__(self, schedule: Schedule, fails: Callable[[Schedule], bool], runs_left: int) -> None:
        self._best, self._fails, self._runs_left = schedule, fails, runs_left

    def shrink(self) -> Schedule:
        try:
            before = None
            while before != self._best:
                before = self._best
                self._remove_operations()
                self._remove_vms()
                self._simplify()
        except _NoRunsLeft:
            pass
        return self._best

    def _try(self, candidate: Schedule) -> bool:
        """Keep the candidate if it still fails."""
        if candidate == self._best:
            return False
        if self._runs_left <= 0:
            raise _NoRunsLeft
        self._runs_left -= 1
        if not self._fails(candidate):
            return False
        self._best = candidate
        return True

    def _remove_operations(self) -> None:
        size = len(self._best.operations)
        while size:
            at = 0
            while at < len(self._best.operations):
                left = self._best.operations[:at] + self._best.operations[at + size :]
                if not self._try(replace(self._best, operations=left)):
                    at += size
            size //= 2

    def _remove_vms(self) -> None:
        for vm in self._best.vms:
            self._try(replace(self._best, vms=tuple(each for each in self._best.vms if each != vm)))
        for host in self._best.hosts:
            if all(vm.host != host.name for vm in self._best.vms):
                self._try(replace(self._best, hosts=tuple(each for each in self._best.hosts if each != host)))

    def _simplify(self) -> None:
        self._try(replace(self._best, settings=SimulationSettings()))
        for name in SimulationSettings.__struct_fields__:
            default = getattr(SimulationSettings(), name)
            self._try(replace(self._best, settings=replace(self._best.settings, **{name: default})))
        for at in range(len(self._best.operations)):
            for simpler in _simpler_operations(self._best.operations[at]):
                operations = self._best.operations
                if self._try(replace(self._best, operations=(*operations[:at], simpler, *operations[at + 1 :]))):
                    break


def _simpler_operations(operation: Operation) -> Iterator[Operation]:
    """Yield variants with one field simplified, the simplest first."""
    if isinstance(operation, Wait):
        yield from (Wait(seconds=seconds) for seconds in (0.1, 1.0) if seconds < operation.seconds)
        return
    for name in operation.__struct_fields__:
        value = getattr(operation, name)
        if isinstance(value, tuple) and len(value) > 1:
            yield from (replace(operation, **{name: (each,)}) for each in value)
        elif isinstance(value, bool):
            if value:
                yield replace(operation, **{name: False})
        elif isinstance(value, int) and value > 0:
            yield from (replace(operation, **{name: number}) for number in range(min(value, 3)))
