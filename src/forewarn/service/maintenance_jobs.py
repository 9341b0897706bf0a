"""Periodic jobs beside the reconciler: write observations and fault effects, save the clock, prune.

Those named `…_forever` run until cancelled; `every_s` is in real time. A job that fails because the store is
unavailable keeps its data and tries again.
"""

from __future__ import annotations

import asyncio
import logging

from forewarn.base.clock import Clock
from forewarn.control.faults import FaultService
from forewarn.control.lab_clock import LabClockService
from forewarn.errors import ForewarnError
from forewarn.metadata import GuestObservations
from forewarn.metadata.observations import BATCH_SIZE, BATCHES_PER_SECOND, REPORT_INTERVAL_S
from forewarn.metadata.transport_faults import FaultTable
from forewarn.store.interface import Store

log = logging.getLogger(__name__)
_DAY_S = 24 * 3600.0


async def write_observations_forever(observations: GuestObservations, store: Store, *, every_s: float = 1.0) -> None:
    """Write VMs' polls and deliveries to the store every `every_s` seconds (real time), until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        while await _write_observation_batch(observations, store, min_interval_s=REPORT_INTERVAL_S):
            await asyncio.sleep(every_s / BATCHES_PER_SECOND)


async def write_observation_batches(observations: GuestObservations, store: Store) -> None:
    """Write up to ten batches of VMs' polls and deliveries to the store now: all of them, for most fleets."""
    for _ in range(BATCHES_PER_SECOND):
        if not await _write_observation_batch(observations, store):
            return


async def write_all_observations(observations: GuestObservations, store: Store) -> None:
    """Write all polls and deliveries of VMs to the store, when the service stops."""
    while await _write_observation_batch(observations, store):
        pass


async def _write_observation_batch(
    observations: GuestObservations, store: Store, *, min_interval_s: float = 0.0
) -> bool:
    polls, deliveries = observations.take_batch(min_interval_s)
    if not polls and not deliveries:
        return False
    try:
        await store.record_observations(polls, deliveries)
    except ForewarnError as error:
        log.warning("observations of VMs could not be written, will retry: %s", error)
        observations.return_batch(polls, deliveries)
        return False
    observations.notify_written(deliveries)
    return len(polls) == BATCH_SIZE


async def record_fault_effects_forever(table: FaultTable, faults: FaultService, *, every_s: float = 1.0) -> None:
    """Write fault hits and remove expired faults every `every_s` seconds (real time), until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await record_fault_effects(table, faults)


async def record_fault_effects(table: FaultTable, faults: FaultService) -> None:
    """Write the table's new fault hits to the store, and remove faults whose count or duration is used up."""
    hits = table.take_hits()
    try:
        await faults.record_hits(hits)
    except ForewarnError as error:
        log.warning("effects of faults could not be written, will retry: %s", error)
        table.add_hits(hits)
        return
    try:
        await faults.expire()
    except ForewarnError as error:
        log.warning("expired faults could not be removed, will retry: %s", error)


async def save_clock_forever(lab_clock: LabClockService, *, every_s: float = 60.0) -> None:
    """Save the position of the lab's clock every `every_s` seconds (real time), until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await save_clock(lab_clock)


async def save_clock(lab_clock: LabClockService) -> None:
    """Save the present lab time and the clock's speed durably, for the next start of a lab."""
    try:
        await lab_clock.save_position()
    except ForewarnError as error:
        log.warning("the position of the clock could not be saved, will retry: %s", error)


async def prune_history_forever(store: Store, clock: Clock, *, days: float, every_s: float = 3600.0) -> None:
    """Delete from the store what ended or was removed more than `days` ago, until cancelled."""
    while days:
        try:
            await store.prune(clock.now() - days * _DAY_S)
        except ForewarnError as error:
            log.warning("old history could not be deleted, will retry: %s", error)
        await asyncio.sleep(every_s)
