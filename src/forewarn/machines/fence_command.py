"""The operator's fence command, which cuts a host off from the disks of its VMs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress

log = logging.getLogger(__name__)


async def run_fence_command(command: Sequence[str], host: str, *, timeout_s: float) -> bool:
    """Run the operator's fence command of a host; return whether it ended with code 0 in time."""
    if not command:
        return False
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"FOREWARN_HOST": host},
        )
    except OSError as error:
        log.warning("fence command %r of host %s cannot be started: %s", command[0], host, error.strerror)
        return False
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        log.warning(
            "fence command %r of host %s has not ended within %g s, and was killed", command[0], host, timeout_s
        )
        return False
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code != 0:
        log.warning("fence command %r of host %s failed (exit code %s)", command[0], host, code)
    return code == 0
