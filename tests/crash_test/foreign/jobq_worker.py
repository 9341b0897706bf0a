"""A worker with the handler of ai4s-jobq, as its documentation uses it.

The file `prepared` exists while the handler says that the worker shall shut down. Set AZ_BATCH_TASK_ID, by which the
package recognizes Azure.
"""

import asyncio
import logging
from pathlib import Path

from ai4s.jobq.scheduled_events import PreemptionEventHandler

PREPARED = Path("prepared")


async def work() -> None:
    """Follow the handler's event until this process is ended."""
    shutdown = asyncio.Event()
    PREPARED.unlink(missing_ok=True)
    async with PreemptionEventHandler(shutdown):
        while True:
            await shutdown.wait()
            PREPARED.touch()
            while shutdown.is_set():
                await asyncio.sleep(0.2)
            PREPARED.unlink()


logging.basicConfig(level=logging.INFO)
asyncio.run(work())
