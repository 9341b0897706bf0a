"""Servers of PostgreSQL for the tests of this folder, started once: a primary and its synchronous standby."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed


@pytest.fixture(scope="session")
def _pair() -> Iterator[ServerPair]:
    if not is_installed():
        pytest.skip("PostgreSQL is not installed: run tests/cluster/install_servers.sh")
    pair = ServerPair()
    yield pair
    pair.remove()


@pytest.fixture
def servers(_pair: ServerPair) -> ServerPair:
    """The two servers with an empty record."""
    _pair.empty()
    return _pair
