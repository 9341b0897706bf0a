"""The shares of connections hold at the real HTTPS port, for tokens and for every surface."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.control.directory import FleetDirectory
from forewarn.core.access import ADMIN_CLIENT_ID
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import Settings
from forewarn.service.web_server import OperatorServer, open_operator_server
from forewarn.web.connection_slots import ConnectionShares
from tests.support import operator_api

api, api_of = operator_api.api, operator_api.api_of  # fixtures
SHARES = ConnectionShares(16)


class Client:
    """Calls the port with a token of the administrator, on connections that stay open."""

    def __init__(self, server: OperatorServer, token: str, stack: AsyncExitStack) -> None:
        assert server.port.ca_path is not None
        self._trust = ssl.create_default_context(cafile=server.port.ca_path)
        self._port = server.port.sock.getsockname()[1]
        self._token = token
        self._stack = stack

    async def get(self, target: str) -> tuple[int, dict[str, str], Any]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._trust, server_hostname="localhost"
        )
        self._stack.callback(writer.close)
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        return int(status.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize(
    "target", ["/forewarn/v1/clock", "/subscriptions?api-version=2022-12-01"], ids=["our API", "Azure's API"]
)
def test_a_caller_with_too_many_connections_is_answered_429(api: Any, tmp_path: Path, target: str) -> None:
    store = api.world.store

    async def scenario() -> list[tuple[int, dict[str, str], Any]]:
        async with AsyncExitStack() as stack:
            directory = DataDirectory.acquire(tmp_path)
            stack.callback(directory.close)
            settings = Settings(data=str(tmp_path), api="127.0.0.1:0")
            server = await open_operator_server(settings, directory, store, 0.0)
            assert server is not None
            dependencies = replace(api.dependencies, connection_shares=SHARES)
            await stack.enter_async_context(server.serve(dependencies, FleetDirectory(store)))
            admin = store.client(ADMIN_CLIENT_ID)
            token = server.sign_in.issue_for_client(admin, server.url, time.time()).token
            client = Client(server, token, stack)
            return [await client.get(target) for _ in range(SHARES.per_principal + 1)]

    *answers, (status, headers, body) = api.world.do(scenario())
    assert [answer[0] for answer in answers] == [200] * SHARES.per_principal
    assert (status, headers["retry-after"]) == (429, "1")
    assert body["error"]["code"] == "TooManyRequests"
    assert body["error"]["message"].startswith("client admin has 4 connections open, which is the limit of one caller")
