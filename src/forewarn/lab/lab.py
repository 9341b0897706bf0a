"""A lab for tests of handlers: a whole service in this process, on loopback, in virtual time.

    with Lab(vms=["web-0", "web-1"]) as lab:
        event = lab.reboot("web-0")
        run_my_handler(lab.vm("web-0").endpoint)
        lab.advance("1m")
        assert event.approved_by == "web-0"
        assert event.finished

Every call may come from any thread, and returns when everything that is due because of it has happened.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from forewarn.base.clock import read_real_time
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import ForewarnError, Refused, Rejected, Unavailable, full_message
from forewarn.lab import requests as request
from forewarn.lab.arguments import DurationLike, duration_seconds, fleet_file_text, load_fleet, utc_datetime
from forewarn.lab.requests import RequestedNotice, find_vm
from forewarn.lab.service import TEST_ACTOR, LabService, open_lab_service
from forewarn.lab.values import LabEvent, LabFault, LabVm, full_report, history_lines
from forewarn.machines.simulated import SimulatedBehaviour

S = TypeVar("S")
T = TypeVar("T")


# Runs an async service on an event loop in its own thread; other threads submit work and wait.

TIMEOUT_S = 60.0  # real time, for opening, each piece of work, and closing; a lab answers within milliseconds


class LoopThread(Generic[S]):
    """Runs an async context manager on an event loop in its own thread, from `open` to `close`.

    Use the service only on that loop: `run` sends work there from other threads. It can be opened only once.
    """

    def __init__(self, open_service: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._open_service = open_service
        self._opened: Future[S] = Future()
        self._stop = asyncio.Event()
        self._lock = threading.Lock()  # held while work is submitted, so that the loop runs all of it
        self._loop: asyncio.AbstractEventLoop | None = None  # None: work is refused
        self._failure: BaseException | None = None
        # A daemon, so that a test run ends even if it forgot to close a lab.
        self._thread = threading.Thread(target=self._run, name="forewarn lab", daemon=True)

    def open(self) -> S:
        """Start the thread, enter the context manager there, and return the service that it yields."""
        self._thread.start()
        try:
            return self._opened.result(TIMEOUT_S)
        except BaseException:
            self._stop_thread()
            raise

    def run(self, work: Callable[[S], Coroutine[Any, Any, T]], timeout_s: float = TIMEOUT_S) -> T:
        """Run `work(service)` on the loop, wait for it, and return its result or raise its error.

        Do not call it in the loop's own thread, which would wait for itself.
        """
        future = self._submit(work)
        try:
            return future.result(timeout_s)
        except (CancelledError, Unavailable):
            if self._loop is not None:
                raise
            raise Refused("the lab was closed meanwhile: use it inside its `with` block") from None
        except TimeoutError:
            if future.done():  # the work's own
                raise
            future.cancel()
            raise Unavailable(f"the lab did not answer within {timeout_s:g} s: close it and open another") from None

    def _submit(self, work: Callable[[S], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                raise Refused("the lab is closed: use it inside its `with` block")
            return asyncio.run_coroutine_threadsafe(work(self._opened.result()), self._loop)

    def close(self, timeout_s: float = TIMEOUT_S) -> None:
        """Leave the context manager and wait for the thread to end, up to `timeout_s`. May be repeated."""
        self._stop_thread(timeout_s)
        if self._thread.is_alive():
            raise Unavailable(
                f"the lab did not stop within {timeout_s:g} s and is still running: close it again, or end this process"
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stop_thread(self, timeout_s: float = TIMEOUT_S) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._loop = None
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._keep_failure(error)

    async def _serve(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            async with self._open_service() as service:
                self._opened.set_result(service)
                await self._stop.wait()
        finally:
            with self._lock:
                self._loop = None

    def _keep_failure(self, error: BaseException) -> None:
        """Keep the error for `open` or `close` to raise."""
        if self._opened.done():
            self._failure = error
        else:
            self._opened.set_exception(error)


__tracebackhide__ = True  # pytest shows the line of the test, not ours
_MAX_STEPS = 100_000  # advances within one run_until
_CONDITION_INTERVAL_S = 0.01  # real time


class Lab:
    """A lab for tests of handlers: a whole service in this process, on loopback, in virtual time.

    Use it in a `with` block, or call `open` and `close`; any thread may call it. Time stands still except in `advance`
    and `run_until`, and acts on VMs take lab time. A VM is given as NAME, RESOURCE_GROUP/NAME or its key, ignoring
    letter case, an event as the LabEvent that a request returned. `notice` replaces the usual notice, and may be below
    the platform's minimum; None and 0 mean the usual one. Calls return when everything that is due has happened. They
    raise NotFound, Rejected or Refused for what the service would refuse, Refused if the lab is not open, and
    Unavailable if it does not answer within 60 s of real time; only reading also works after `close`.

    The fleet has `vms`, in `availability_set` if that is not "", and the Spot VMs `spot`, each on its own host; or it
    comes from the fleet file `fleet` (a path); with neither, it is the VM `vm-0`. The clock starts at the time `at`
    (with a time zone; None: the current second). `enablement` is "always" or "on-request"; with the latter, operations
    of users in a scope that has not polled for a day happen at once, without notice. `simulate` has rules that make
    acts slow or fail, as in the setting of that name. The constructor starts nothing, and raises Rejected for arguments
    that cannot be used.
    """

    def __init__(
        self,
        vms: Sequence[str] = (),
        *,
        spot: Sequence[str] = (),
        availability_set: str = "",
        fleet: str | Path | None = None,
        at: datetime | None = None,
        enablement: str = "always",
        simulate: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Describe the lab; nothing runs before `open`."""
        if fleet is not None and (vms or spot or availability_set):
            raise Rejected("a lab takes a fleet file or names of VMs, not both: leave one out")
        if fleet is None:
            named = vms or (() if spot else ("vm-0",))
            self._proposal = read_fleet_file(
                fleet_file_text(named, spot=spot, availability_set=availability_set), source="the names of its VMs"
            )
        else:
            self._proposal = load_fleet(fleet)
        self._started_at = _start_time(at)
        self._enablement = _parse_enablement(enablement)
        self._behaviour = SimulatedBehaviour.from_rules(simulate)
        self._loop_thread: LoopThread[LabService] | None = None
        self._service: LabService | None = None
        self._is_open = False

    @classmethod
    def from_text(
        cls,
        text: str,
        *,
        at: datetime | None = None,
        enablement: str = "always",
        simulate: Sequence[Mapping[str, object]] = (),
    ) -> Self:
        """Make a lab, not open yet, with the fleet that this text of a fleet file (TOML) declares."""
        lab = cls(at=at, enablement=enablement, simulate=simulate)
        lab._proposal = read_fleet_file(text, source="the text")
        return lab

    def open(self) -> Self:
        """Start the service on loopback, in a thread of its own, and return this lab; a lab opens only once."""
        if self._loop_thread is not None:
            raise Refused("the lab was opened before and cannot be reopened: create another")
        policy = Policy(enablement=self._enablement)
        serve = partial(open_lab_service, self._proposal, at=self._started_at, policy=policy, behaviour=self._behaviour)
        self._loop_thread = LoopThread(serve)
        self._service = self._loop_thread.open()
        self._is_open = True
        return self

    def close(self) -> None:
        """Stop the lab's service; events and history can still be read. Closing again is harmless.

        Raises the error with which the service failed in the background, if it did.
        """
        try:
            if self._loop_thread is not None:
                self._loop_thread.close()
        finally:
            self._is_open = False  # only now: until then the loop thread may still write what `read` would read

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None and self.report not in str(error):
            error.add_note(f"what happened in the lab:\n{self.report}")

    @property
    def now(self) -> datetime:
        """The lab's time, with the time zone UTC; stays the same until `advance` or `run_until`."""
        return utc_datetime(self.read(LabService.now))

    def advance(self, by: DurationLike, *, without_polls: bool = False) -> tuple[str, ...]:
        """Move the clock ahead, doing everything that becomes due on the way; return the new history lines.

        VMs that polled within the last 330 seconds count as polling throughout, unless `without_polls`: then, with the
        enablement "on-request", their scopes are disabled after a day. `by` ("15m", seconds or a timedelta) is at most
        366 days.
        """
        return self._advance(duration_seconds(by), without_polls=without_polls)

    def run_until(self, condition: Callable[[], T], *, within: DurationLike = "30d") -> T:
        """Move the clock ahead, from one due time to the next, until `condition` holds; return its value.

        Raises AssertionError with `report`, the report of the lab, if it does not hold within `within` of lab time.
        """
        end = self.read(LabService.now) + duration_seconds(within)
        for _ in range(_MAX_STEPS):
            if value := condition():
                return value
            now, wake = self.read(lambda service: (service.now(), service.control.reconciler.next_wake_at()))
            if now >= end:
                break
            self._advance(max(min(end if wake is None else wake, end) - now, 1e-6))
        raise AssertionError(f"it did not happen within {within} of lab time:\n{self.report}")

    def wait_for(self, condition: Callable[[], T], *, within: DurationLike = "60s") -> T:
        """Wait in real time, with the lab's clock stopped, until `condition` holds; return its value.

        For a handler that runs beside the test. Raises AssertionError with `report` after `within` of real time.
        """
        deadline = time.monotonic() + duration_seconds(within)
        while not (value := condition()):
            if time.monotonic() >= deadline:
                raise AssertionError(f"it did not happen within {within} of real time:\n{self.report}")
            time.sleep(_CONDITION_INTERVAL_S)
        return value

    def reboot(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Request a restart by the VM's user, and return its event: a Reboot with 15 minutes of notice.

        `notice` ("20m", seconds or a timedelta) replaces the 15 minutes, and may be shorter. The event starts at once
        if the VM's policy approves restarts.
        """
        return self._request(RequestedOperation.RESTART, vm, notice)

    def redeploy(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Request a redeploy by the VM's user, and return its event: a Redeploy with 10 minutes of notice.

        `notice` replaces the 10 minutes. A scheduled restart is replaced. The event starts at once if the VM's policy
        approves redeploys.
        """
        return self._request(RequestedOperation.REDEPLOY, vm, notice)

    def evict(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Evict a Spot VM, and return its event: a Preempt with 30 seconds of notice, or with `notice`."""
        return self._request(RequestedOperation.EVICT, vm, notice)

    def terminate(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Request a deletion by the VM's user, and return its event: a Terminate with the VM's own notice.

        A Spot VM, or one without terminate notification, is deleted without notice, with an event that documents never
        show. A pending restart or redeploy is replaced.
        """
        return self._request(RequestedOperation.DELETE, vm, notice)

    delete = terminate

    def freeze(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Update the host of this VM: a Freeze of nine seconds for every VM on it, with 15 minutes of notice.

        Returns the event of this VM. Refused if this call has published no event of it: because another update domain
        on the host comes first (then it follows later), or an earlier update of the host serves it.
        """
        return self._request_host_maintenance(RolloutImpact.UPDATE, vm, notice)

    def migrate(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Live-migrate every VM of the VM's host: a Freeze of five seconds with 15 minutes of notice.

        Returns the event of this VM; refused as `freeze` is, and if no other healthy host can take the VMs.
        """
        return self._request_host_maintenance(RolloutImpact.MIGRATE, vm, notice)

    def reboot_host(self, vm: str, *, notice: DurationLike | None = None) -> LabEvent:
        """Reboot the VM's host: a platform Reboot event for every VM on it, with 15 minutes of notice.

        Update domains of a scope come one after the other, so some events follow later. Returns the event of this VM;
        refused as `freeze` is.
        """
        return self._request_host_maintenance(RolloutImpact.REBOOT, vm, notice)

    def roll_out(self, vm: str, *, impact: str = "update", notice: DurationLike | None = None) -> tuple[LabEvent, ...]:
        """Start a rollout over this VM's scope, one update domain at a time; return the first events.

        The impact is `update` or `migrate` (a Freeze), or `reboot`. Later events are in `events` once the clock has
        moved.
        """
        rollout = Rollout(impact=request.parse_impact(impact), scope_id=self._scope_id(vm))
        return self._lab_events(
            self._run_and_settle(lambda service: request.start_rollout(service, rollout, RequestedNotice(notice)))
        )

    def degrade(self, host: str, *, in_: DurationLike = "7d") -> tuple[LabEvent, ...]:
        """Predict that a host fails after `in_`, which is the notice: a Redeploy event for each of its VMs.

        Deallocated VMs have none, VMs being moved to the host have one.
        """
        return self._lab_events(
            self._run_and_settle(lambda service: request.degrade_host(service, host, RequestedNotice(in_)))
        )

    def fail_host(self, host: str) -> tuple[LabEvent, ...]:
        """Make a host fail now: its VMs are redeployed to other hosts without notice; return their events.

        VMs that were being redeployed to the host are among them, deallocated ones are not.
        """
        return self._lab_events(self._run_and_settle(lambda service: request.fail_host(service, host)))

    def power_off(self, vm: str) -> LabEvent:
        """Power a VM off without notice; returns an event that documents never show.

        The act takes lab time: the VM is `stopped` once the clock has moved.
        """
        return self._request(RequestedOperation.POWER_OFF, vm, None)

    def start(self, vm: str) -> LabEvent:
        """Start a stopped or deallocated VM without notice; return an event that documents never show.

        The act takes lab time: the VM is `running` once the clock has moved.
        """
        return self._request(RequestedOperation.START, vm, None)

    def approve(self, event: LabEvent) -> None:
        """Approve an event as an operator, not as a VM; without effect if it is approved or has started.

        The event starts before this returns, unless it waits for other events too.
        """
        self._run_and_settle(lambda service: service.control.requests.approve(event.id, who=TEST_ACTOR))

    def withdraw(self, event: LabEvent) -> None:
        """Withdraw an event that has not started: documents no longer show it."""
        self._run_and_settle(lambda service: service.control.requests.withdraw(event.id, who=TEST_ACTOR))

    def fault(
        self,
        kind: str,
        *,
        vm: str | None = None,
        times: int | None = None,
        lasts: DurationLike | None = None,
        **parameters: DurationLike,
    ) -> LabFault:
        """Inject a fault for one VM, or for all, and return it; docs/reference/faults.md lists the kinds.

        A parameter in seconds is given with or without `_s`, such as `notice="8s"`. The fault affects at most `times`
        requests or events in total, and ends after `lasts`: real time for faults of requests, lab time for faults of
        events. Without either it stays until `clear_faults`, unless its kind has a longest duration.
        """
        spec = self.read(lambda service: request.fault_request(service, kind, vm, times, lasts, parameters))
        fault = self._run_and_settle(lambda service: service.control.faults.set(spec, who=TEST_ACTOR))
        return LabFault(self, fault.id, str(fault.kind))

    def fail_next_polls(self, times: int, *, vm: str | None = None) -> LabFault:
        """Answer the next `times` polls and approvals, of one VM or of all VMs in total, with status 500.

        The fault's `applied` counts the requests.
        """
        return self.fault("internal-error", vm=vm, times=times)

    def clear_faults(self) -> None:
        """End all active faults; what they did to events stays."""
        self._run_and_settle(lambda service: service.control.faults.clear(lambda fault: True, who=TEST_ACTOR))

    @property
    def vms(self) -> tuple[LabVm, ...]:
        """All VMs of the lab in the order of the fleet, including deleted ones; works on a closed lab."""
        return self.read(lambda service: tuple(self._lab_vm(service, vm) for vm in service.store.vms(removed=True)))

    def vm(self, name: str) -> LabVm:
        """Return the VM with this NAME or RESOURCE_GROUP/NAME, even a deleted one."""
        return self.read(lambda service: self._lab_vm(service, find_vm(service, name)))

    @property
    def events(self) -> tuple[LabEvent, ...]:
        """All events of the lab, even ended and unlisted ones, oldest first; works on a closed lab."""
        return self._lab_events(self.read(lambda service: service.store.events()))

    @property
    def history(self) -> tuple[str, ...]:
        """All history entries of the lab, oldest first, one line each; works on a closed lab."""
        return self.read(history_lines)

    @property
    def report(self) -> str:
        """The lab's report as text: the history, then the explanations of the ten newest events, oldest first.

        A test that fails inside of the `with` block shows it.
        """
        return self.read(full_report)

    def explain(self, thing: LabEvent | LabVm | str) -> str:
        """Return several lines about what happened to an event or VM, why, and what it waits for."""
        return str(self.vm(thing) if isinstance(thing, str) else thing)

    def __repr__(self) -> str:
        names = ", ".join(vm.name for vm in self._proposal.vms)
        return f"<lab of {names}, {'open' if self._is_open else 'not open'}>"

    def read(self, query: Callable[[LabService], T]) -> T:
        """Do everything that is due, then call `query` with the lab's service and return the result.

        `query` runs on the service's thread, where it must not wait.
        """
        if not self._is_open and self._service is not None:
            return query(self._service)

        async def settle_and_query(service: LabService) -> T:
            await service.settle()
            return query(service)

        return self._run_on_loop(settle_and_query)

    def _lab_vm(self, service: LabService, vm: Vm) -> LabVm:
        return LabVm(self, vm.key, vm.name, service.publisher.lab_endpoint(vm))

    def _scope_id(self, vm: str) -> str:
        return self.read(lambda service: find_vm(service, vm).scope_id)

    def _request(self, what: RequestedOperation, vm: str, notice: DurationLike | None) -> LabEvent:
        return self._lab_event(
            self._run_and_settle(lambda service: request.request_for_vm(service, what, vm, RequestedNotice(notice)))
        )

    def _request_host_maintenance(self, impact: RolloutImpact, vm: str, notice: DurationLike | None) -> LabEvent:
        return self._lab_event(
            self._run_and_settle(
                lambda service: request.request_host_maintenance(service, impact, vm, RequestedNotice(notice))
            )
        )

    def _lab_event(self, event: Event) -> LabEvent:
        return LabEvent(self, event.id)

    def _lab_events(self, events: Sequence[Event]) -> tuple[LabEvent, ...]:
        return tuple(map(self._lab_event, events))

    def _advance(self, by_s: float, *, without_polls: bool = False) -> tuple[str, ...]:
        before = self.read(lambda service: service.store.last_seq())
        self._run_and_settle(lambda service: service.control.lab_clock.advance(by_s, without_polls=without_polls))
        return self.read(lambda service: history_lines(service, after=before))

    def _run_and_settle(self, work: Callable[[LabService], Coroutine[Any, Any, T]]) -> T:
        """Run the work on the loop thread, then everything that is due because of it."""

        async def work_and_settle(service: LabService) -> T:
            result = await work(service)
            await service.settle()
            return result

        return self._run_on_loop(work_and_settle)

    def _run_on_loop(self, work: Callable[[LabService], Coroutine[Any, Any, T]]) -> T:
        if self._loop_thread is None:
            raise Refused("the lab is not open: use it in a `with` block, or call open() first")
        try:
            return self._loop_thread.run(work)
        except ForewarnError as error:
            error.args = (full_message(error),)
            error.remedy_code = None  # the message contains it
            raise error.with_traceback(None) from None  # the test's mistake: frames of the service would not help


def _start_time(at: object) -> float:
    """The given time, or the current one as a whole second, because documents show whole seconds."""
    if at is None:
        return float(int(read_real_time()))
    if not isinstance(at, datetime):
        raise Rejected(f"at is {at!r}: give a time, as in datetime(2026, 1, 5, 12, tzinfo=UTC)")
    if at.tzinfo is None:
        raise Rejected(f"{at.isoformat()} has no time zone: give one, as in datetime(2026, 1, 5, 12, tzinfo=UTC)")
    return at.timestamp()


def _parse_enablement(name: str) -> EnablementMode:
    try:
        return EnablementMode(name)
    except ValueError:
        raise Rejected(f"enablement {name!r} does not exist: choose from {', '.join(EnablementMode)}") from None
