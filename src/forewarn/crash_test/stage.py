"""The stage of a case: what its script can do with VMs, events, answers and the handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forewarn.crash_test.answers import SpoiledAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent:
    """An event that the script of a case published, as `Stage.publish` and `Stage.fail_host` return it."""

    id: str  # a GUID in upper case, as documents show it
    kind: str  # as documents show it, such as Reboot
    vms: tuple[str, ...]  # names of the VMs that it is for


class Stage(Protocol):
    """What the script of a case works with: it publishes events, spoils answers, and disturbs the handler.

    Times are seconds of the service's clock; a VM that is not given is `vm`. Waiting methods return whether the thing
    happened within `within_s`, and never raise because it did not: the demands judge that. Methods that disturb the
    handler raise Refused if none runs on that VM, and those that end it even if it runs elsewhere. A case whose VM is
    down when its script disturbs the handler is not judged.
    """

    vm: str  # the name of the VM whose handler is judged
    neighbours: tuple[str, ...]  # the names of the other VMs of its scope

    async def publish(self, kind: str, *, vm: str | None = None, notice_s: float | None = None) -> StageEvent:
        """Publish a Freeze, Reboot, Redeploy, Preempt or Terminate of a VM, and return the event.

        `vm` is a name; None: the judged VM. `notice_s` is in seconds of the service's clock; None or 0 is the usual
        notice of this kind. The notice may be below the platform's minimum. A Freeze concerns all VMs on the VM's host.
        """

    async def fail_host(self, *, vm: str | None = None) -> StageEvent:
        """Fail the host of a VM and return the VM's event: a Redeploy that is Started when it first appears.

        `vm` is a name; None: the judged VM. The host stays failed, and its other VMs get such an event too.
        """

    async def withdraw(self, event: StageEvent) -> None:
        """Withdraw an event that has not started; it disappears from documents.

        An event that has started goes on; neither this nor an event that is over is an error.
        """

    async def until_polled(self, *, vm: str | None = None, times: int = 1, within_s: float = 30.0) -> bool:
        """Wait until the handler on this VM has polled `times` times from now on, with any answer or none.

        `vm` is a name; None: the judged VM. Returns True then, and False after `within_s` seconds of the service's
        clock, even for a VM without a handler.
        """

    async def until_delivered(self, event: StageEvent, *, vm: str | None = None, within_s: float = 30.0) -> bool:
        """Wait until a poll of the handler on this VM got a whole document with this event.

        `vm` is a name; None: the judged VM. A poll before this call counts. Returns True then, and False after
        `within_s` seconds of the service's clock.
        """

    async def until_approved(self, event: StageEvent, *, within_s: float) -> bool:
        """Wait until a handler on any VM has approved this event and got a 2xx; earlier approvals count.

        Returns True then, and False after `within_s` seconds of the service's clock.
        """

    async def until_started(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        """Wait until the platform has started this event; True at once if it has.

        Returns False after `within_s` seconds of the service's clock, even if the event was withdrawn.
        """

    async def until_over(self, event: StageEvent, *, within_s: float = 60.0) -> bool:
        """Wait until this event is over, carried out or withdrawn, and therefore in no document any more.

        Returns True then, at once if it is over already, and False after `within_s` seconds of the service's clock.
        """

    async def wait(self, seconds: float) -> None:
        """Wait for this many seconds of the service's clock; returns at once for 0 or less."""

    def substitute(self, answer: SpoiledAnswer | None, *, vm: str | None = None, times: int | None = None) -> None:
        """Answer the handler on this VM with `answer` from now on; None: with the service's own answers.

        It is given at most `times` times (None: without a limit). The fields of `answer` say which requests get it;
        where it leaves the service's answer as it is, that does not count. If it refuses connections, it lasts until
        the next call, ignoring `times`. It takes the place of an earlier substitute. `vm` is a name; None: the judged
        VM.
        """

    async def kill_handler(self, *, vm: str | None = None, restart_after_s: float | None = 1.0) -> None:
        """Kill all processes of the handler with SIGKILL, and start it again after `restart_after_s`.

        `restart_after_s` is in seconds of the service's clock; None: it is not started again. Returns when the
        processes have ended, before the restart. Waits first for a freeze or reboot under way. Files stay. If the VM is
        down, nothing happens, and the case is not judged. `vm` is a name; None: the judged VM.
        """

    async def reboot_vm(self, *, vm: str | None = None) -> None:
        """Reboot a VM without any event: all its processes are killed, and the handler starts as at a boot.

        Returns when the handler has been started, about two seconds of the service's clock later. Its /tmp is empty
        then; its other files stay. If the VM is down, nothing happens, and the case is not judged. `vm` is a name;
        None: the judged VM.
        """

    async def fill_disk(self, *, vm: str | None = None) -> None:
        """Fill the file system on which the handler may write, until `free_disk`; returns when it is full.

        Takes up to 20 s of real time; if it is not full then, or the VM is down or frozen, the case is not judged. `vm`
        is a name; None: the judged VM.
        """

    async def free_disk(self, *, vm: str | None = None) -> None:
        """Undo `fill_disk`: the file system has space again.

        `vm` is a name; None: the judged VM. Waits for a freeze or reboot under way; does nothing if the VM is down.
        """
