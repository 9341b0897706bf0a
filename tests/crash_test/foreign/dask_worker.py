"""A Dask worker with the plugin for Spot VMs of dask-cloudprovider, and a scheduler beside it.

    dask_worker.py OFFSET_MINUTES

The argument is the plugin's `termination_offset_minutes`. The file `prepared` exists once the worker has closed; then
the program ends.
"""

import asyncio
import logging
import sys
from pathlib import Path

from dask_cloudprovider.azure import AzurePreemptibleWorkerPlugin
from distributed import Scheduler, Worker

PREPARED = Path("prepared")


async def work(offset_minutes: int) -> None:
    """Run the worker until the plugin has closed it."""
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard=False) as worker,
    ):
        await worker.plugin_add(AzurePreemptibleWorkerPlugin(termination_offset_minutes=offset_minutes))
        await worker.finished()
    PREPARED.touch()


logging.basicConfig(level=logging.INFO)
asyncio.run(work(int(sys.argv[1])))
