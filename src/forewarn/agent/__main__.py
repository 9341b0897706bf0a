"""`python -m forewarn.agent`: the process that `forewarn agent run` turns into.

It loads neither click nor rich: the process runs for months, and they would double its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from forewarn.agent import process
from forewarn.agent.config import AgentConfig, load_config
from forewarn.agent.reporting import SingleLineFormatter
from forewarn.client.endpoint import parse_endpoint
from forewarn.errors import ForewarnError, Unavailable

_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_JOURNAL_FORMAT = "%(levelname)s %(message)s"  # systemd's journal has the time of each line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; return the exit status: 0, 3 (unavailable), 2 (other errors) or 130 (interrupted)."""
    options = _argument_parser().parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    in_journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter(SingleLineFormatter(_JOURNAL_FORMAT if in_journal else _LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    load = partial(_load_config, options.config, options.endpoint)
    try:
        config = load()
        asyncio.run(process.run_once(config) if options.once else process.run_until_signal(config, load))
    except ForewarnError as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


def _load_config(path: Path, endpoint: str | None) -> AgentConfig:
    config = load_config(path)
    return replace(config, endpoint=str(parse_endpoint(endpoint))) if endpoint else config


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forewarn.agent", description="See `forewarn agent run --help`.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--endpoint", metavar="URL")
    parser.add_argument("--once", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
