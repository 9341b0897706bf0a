"""Applies a plan again when devices come and go, until the process is stopped.

A device that is created again has lost its routes and settings. The kernel reports such changes by netlink; every few
seconds the host is compared with the plan anyway, because other programs may reload the whole firewall.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from forewarn.base.link_monitor import LinkMonitor
from forewarn.errors import ForewarnError
from forewarn.machines.guest_network.apply import ApplyOutcome, apply_plan
from forewarn.machines.guest_network.machine import read_links
from forewarn.machines.guest_network.sources import NamedInterfaces

_CHECK_INTERVAL_S = 5.0
_RETRY_S = 1.0  # after a failure, such as a device that was removed while it was being set up
_DEBOUNCE_S = 0.02  # a new device causes several netlink messages
_SETTLING_S = 30.0  # libvirt lists a domain only some time after it has created its devices

ReadInterfaces = Callable[[bool], NamedInterfaces]  # True: what libvirt said last may be used again


def follow_devices(
    read: ReadInterfaces,
    state_file: Path,
    *,
    replace_earlier: bool,
    on_change: Callable[[ApplyOutcome], None],
    on_error: Callable[[ForewarnError], None],
) -> None:
    """Apply the plan for what `read` returns, now and repeatedly, until SIGINT or SIGTERM.

    Blocks, in the main thread; call it as root, within `exclusive_access`. A pass follows each change of network
    devices, and 5 s after the last pass anyway. Errors of the first pass are raised; later ones go to `on_error`, and
    the pass is repeated.
    """
    asyncio.run(_follow_until_signal(read, state_file, replace_earlier, on_change, on_error))


async def _follow_until_signal(
    read: ReadInterfaces,
    state_file: Path,
    replace_earlier: bool,
    on_change: Callable[[ApplyOutcome], None],
    on_error: Callable[[ForewarnError], None],
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    monitor = LinkMonitor()
    try:
        outcome = apply_plan(read(False), state_file, replace_earlier=replace_earlier, wait_for_devices=True)
        on_change(outcome)
        known, changed_at, wait_s, reported = _device_set(), loop.time(), _CHECK_INTERVAL_S, ""
        while await _wait(stop, monitor, wait_s):
            wait_s = _CHECK_INTERVAL_S
            try:
                devices = _device_set()
                if devices != known:
                    known, changed_at = devices, loop.time()
                is_settled = loop.time() - changed_at > _SETTLING_S
                latest = apply_plan(read(is_settled), state_file, replace_earlier=True, wait_for_devices=True)
            except ForewarnError as error:
                if str(error) != reported:
                    on_error(error)
                wait_s, reported = _RETRY_S, str(error)
                continue
            reported = ""
            if latest.differences or latest.plan.missing != outcome.plan.missing:
                on_change(latest)
            outcome = latest
    finally:
        monitor.close()


async def _wait(stop: asyncio.Event, monitor: LinkMonitor, timeout_s: float) -> bool:
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(monitor.wait_for_change(timeout_s))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if not stop.is_set():
        await asyncio.sleep(_DEBOUNCE_S)
    return not stop.is_set()


def _device_set() -> frozenset[tuple[str, int]]:
    return frozenset((link.name, link.index) for link in read_links().values())
