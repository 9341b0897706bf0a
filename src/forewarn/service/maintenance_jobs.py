"""Periodic jobs beside the reconciler: write observations and fault effects, save the clock, prune.

A job that fails because the store is unavailable keeps its data and tries again.
"""

from __future__ import annotations

import asyncio
import logging

from forewarn.clock import Clock
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
    while True:
        await asyncio.sleep(every_s)
        while await write_observation_batch(observations, store, rest_s=REPORT_INTERVAL_S):
            await asyncio.sleep(every_s / BATCHES_PER_SECOND)


async def write_observation_batches(observations: GuestObservations, store: Store) -> None:
    """As many as are written down in a second: most fleets have no more."""
    for _ in range(BATCHES_PER_SECOND):
        if not await write_observation_batch(observations, store):
            return


async def write_all_observations(observations: GuestObservations, store: Store) -> None:
    """What cannot be written is lost with us."""
    while await write_observation_batch(observations, store):
        pass


async def write_observation_batch(observations: GuestObservations, store: Store, *, rest_s: float = 0.0) -> bool:
    """Write down what is new, or of many VMs a part of it; whether there may be more, and it can be written."""
    polls, sightings = observations.take_batch(rest_s)
    if not polls and not sightings:
        return False
    try:
        await store.record_observations(polls, sightings)
    except ForewarnError as error:
        log.warning("what VMs asked could not be written down, keeping it: %s", error)
        observations.return_batch(polls, sightings)
        return False
    observations.notify_written(sightings)
    return len(polls) == BATCH_SIZE


async def record_fault_effects_forever(table: FaultTable, faults: FaultService, *, every_s: float = 1.0) -> None:
    """Write down what faults have touched; those that have run out in real time are told in the history."""
    while True:
        await asyncio.sleep(every_s)
        await record_fault_effects(table, faults)


async def record_fault_effects(table: FaultTable, faults: FaultService) -> None:
    touches = table.take_hits()
    try:
        await faults.record_hits(touches)
    except ForewarnError as error:
        log.warning("what faults have touched could not be written down, keeping it: %s", error)
        table.add_hits(touches)
        return
    try:
        await faults.expire()
    except ForewarnError as error:
        log.warning("faults that have run out could not be dropped, trying again: %s", error)


async def save_clock_forever(labtime: LabClockService, *, every_s: float = 60.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        await save_clock(labtime)


async def save_clock(labtime: LabClockService) -> None:
    try:
        await labtime.save_position()
    except ForewarnError as error:
        log.warning("where the clock stands could not be written down, trying again later: %s", error)


async def prune_history_forever(store: Store, clock: Clock, *, days: float, every_s: float = 3600.0) -> None:
    while days:
        try:
            await store.prune(clock.now() - days * _DAY_S)
        except ForewarnError as error:
            log.warning("old history could not be pruned, trying again later: %s", error)
        await asyncio.sleep(every_s)
