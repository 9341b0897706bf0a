"""The curl commands that people type, if curl is installed."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.metadata.conftest import MakeNotice, RunScenario, World

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

START = '{"StartRequests":[{"EventId":"EVENT-1"}]}'


async def curl(world: World, path: str, *options: str, vm: str = "a") -> str:
    host, port = world.lab.endpoint({"a": "127.0.7.1", "b": "127.0.7.2"}[vm])
    line = ["curl", "-sS", "--noproxy", "*", "--max-time", "20", *options, f"http://{host}:{port}{path}"]
    process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.mark.parametrize(
    "option", [[], ["--http1.0"], ["--http2"], ["-H", "Connection: close"]], ids=lambda option: " ".join(option)
)
def test_curl_reads_the_document(run_scenario: RunScenario, option: list[str]) -> None:
    """Spec §2.1."""

    async def scenario(world: World) -> None:
        out = await curl(world, "/metadata/scheduledevents?api-version=2020-07-01", "-H", "Metadata:true", *option)
        assert out == '{"DocumentIncarnation":1,"Events":[]}'

    run_scenario(scenario)


@pytest.mark.parametrize(
    "option",
    [[], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"], ["-H", "Content-Type:"]],
    ids=lambda option: " ".join(option),
)
def test_curl_approves_an_event(run_scenario: RunScenario, notice: MakeNotice, option: list[str]) -> None:
    """Spec §5.1, §5.2: under any Content-Type or none."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        path, shown = "/metadata/scheduledevents?api-version=2020-07-01", ["-w", "%{http_code}"]
        out = await curl(world, path, "-H", "Metadata:true", "-d", START, *shown, *option, vm="b")
        assert out == "200"
        assert world.backend.approved == [("b", ("EVENT-1",))]

    run_scenario(scenario)
