"""Runs the user's probes beside a handler, and records when their answers change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from forewarn.crash_test.case_recorder import CaseRecorder
from forewarn.crash_test.handler_process import HandlerProcess
from forewarn.crash_test.timeline import Probe, ProbeAnswered

PROBE_INTERVAL_S = 0.5  # real time from the end of one round to the next
PROBE_TIMEOUT_S = 5.0  # real time; a probe that takes longer gives no answer
_LAST_LOOK_TIMEOUT_S = 3.0
_APPROVAL_TIMEOUT_S = 1.0  # real time that an approval is held for the probe: less than handlers wait for an answer
_CANNOT_RUN = {126: "is not executable", 127: "was not found"}  # exit statuses of shells


class ProbeRunner:
    """The probes of one VM: shell commands that say yes with exit status 0, and no with any other.

    The recorder gets an answer if it is the first one or differs from the last; its time is when that run of the probe
    began, or when the approval arrived for which the probe was run. A probe that a signal ended gives no answer; one
    that the shell cannot run is a problem of the case.
    """

    def __init__(
        self, handler: HandlerProcess, commands: Mapping[Probe, str], *, vm: str, recorder: CaseRecorder
    ) -> None:
        self._handler = handler
        self._commands = commands
        self._vm = vm
        self._recorder = recorder
        self._last: dict[Probe, bool] = {}

    async def run_forever(self) -> None:
        """Run all probes, one after the other, again and again until cancelled; return at once without probes."""
        while self._commands:
            await self.run_once(PROBE_TIMEOUT_S)
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def look_before_impact(self) -> None:
        """Run all probes once more and record changed answers, because the platform is about to act on the VM."""
        await self.run_once(_LAST_LOOK_TIMEOUT_S)

    async def ask_prepared(self, at: float) -> bool | None:
        """Run the probe `prepared` because an approval arrived at this time, and return whether it says yes.

        The approval is held meanwhile, so this is the state in which the handler approved.
        """
        command = self._commands.get(Probe.PREPARED)
        if command is None:
            return None
        status = await self._handler.run_command(command, _APPROVAL_TIMEOUT_S)
        if status is None or status in _CANNOT_RUN:
            return None
        self._take_answer(Probe.PREPARED, status, at)
        return status == 0

    async def run_once(self, timeout_s: float) -> None:
        """Run each probe once and record changed answers."""
        for probe, command in self._commands.items():
            at = self._recorder.now()
            status = await self._handler.run_command(command, timeout_s)
            if status is not None:
                self._take_answer(probe, status, at)

    def _take_answer(self, probe: Probe, status: int, at: float) -> None:
        if status in _CANNOT_RUN:
            command = self._commands[probe]
            self._recorder.report_problem(
                f"the command of --{probe} {_CANNOT_RUN[status]} (exit status {status}): correct {command!r}"
            )
            return
        is_yes = status == 0
        if self._last.get(probe) is not is_yes:
            self._last[probe] = is_yes
            self._recorder.record(ProbeAnswered(at=at, vm=self._vm, probe=probe, is_yes=is_yes))
