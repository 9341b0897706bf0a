"""What a service does beside its loop: write down what VMs were seen to ask, and prune old history."""

from __future__ import annotations

import asyncio
import logging

from forewarn.clock import Clock
from forewarn.control.faults import Faults
from forewarn.control.labtime import LabTime
from forewarn.errors import ForewarnError
from forewarn.metadata import Observations
from forewarn.metadata.fault import FaultTable
from forewarn.metadata.observation import PORTION, PORTIONS, REST_S
from forewarn.store.seam import Store

log = logging.getLogger(__name__)
_DAY_S = 24 * 3600.0


async def write_observations(observations: Observations, store: Store, *, every_s: float = 1.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        while await write_some(observations, store, rest_s=REST_S):
            await asyncio.sleep(every_s / PORTIONS)


async def write_many(observations: Observations, store: Store) -> None:
    """As many as are written down in a second: most fleets have no more."""
    for _ in range(PORTIONS):
        if not await write_some(observations, store):
            return


async def write_all(observations: Observations, store: Store) -> None:
    """What cannot be written is lost with us."""
    while await write_some(observations, store):
        pass


async def write_some(observations: Observations, store: Store, *, rest_s: float = 0.0) -> bool:
    """Write down what is new, or of many VMs a part of it; whether there may be more, and it can be written."""
    polls, sightings = observations.take(rest_s)
    if not polls and not sightings:
        return False
    try:
        await store.observe(polls, sightings)
    except ForewarnError as error:
        log.warning("what VMs asked could not be written down, keeping it: %s", error)
        observations.put_back(polls, sightings)
        return False
    observations.written(sightings)
    return len(polls) == PORTION


async def tend_faults(table: FaultTable, faults: Faults, *, every_s: float = 1.0) -> None:
    """Write down what faults have touched; those that have run out in real time are told in the history."""
    while True:
        await asyncio.sleep(every_s)
        await note_faults(table, faults)


async def note_faults(table: FaultTable, faults: Faults) -> None:
    touches = table.take()
    try:
        await faults.note(touches)
    except ForewarnError as error:
        log.warning("what faults have touched could not be written down, keeping it: %s", error)
        table.put_back(touches)
        return
    try:
        await faults.expire()
    except ForewarnError as error:
        log.warning("faults that have run out could not be dropped, trying again: %s", error)


async def keep_time(labtime: LabTime, *, every_s: float = 60.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        await anchor(labtime)


async def anchor(labtime: LabTime) -> None:
    try:
        await labtime.anchor()
    except ForewarnError as error:
        log.warning("where the clock stands could not be written down, trying again later: %s", error)


async def prune_history(store: Store, clock: Clock, *, days: float, every_s: float = 3600.0) -> None:
    while days:
        try:
            await store.prune(clock.now() - days * _DAY_S)
        except ForewarnError as error:
            log.warning("old history could not be pruned, trying again later: %s", error)
        await asyncio.sleep(every_s)
