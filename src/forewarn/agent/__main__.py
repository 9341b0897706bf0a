"""`python -m forewarn.agent`: what `forewarn agent run` becomes. Without what only a pretty command needs: it stays for
months.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forewarn.agent import process
from forewarn.agent.config import load
from forewarn.agent.telling import OneLine
from forewarn.client.endpoint import read_endpoint
from forewarn.errors import ForewarnError, Unavailable

_FORMAT = "%(levelname)s %(message)s"


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        config = load(given.config)
        if given.endpoint:
            config = replace(config, endpoint=str(read_endpoint(given.endpoint)))
        asyncio.run(process.once(config) if given.once else process.run(config))
    except ForewarnError as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forewarn.agent", description="See `forewarn agent run --help`.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--endpoint", metavar="URL")
    parser.add_argument("--once", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
