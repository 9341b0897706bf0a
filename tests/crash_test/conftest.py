"""Fixtures for the tests of the crash test. Tests skip where the kernel allows no namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from forewarn.lab import Lab
from tests.support.namespaces import why_namespaces_are_unavailable
from tests.support.proxied_lab import RunScenario, Scenario, play_scenario


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("namespaces") and (reason := why_namespaces_are_unavailable()):
        pytest.skip(f"this machine forbids namespaces: {reason}")


@pytest.fixture(params=["asyncio", "uvloop"])
def run_proxied(request: pytest.FixtureRequest) -> Iterator[RunScenario]:
    """Run a scenario with a lab and a proxy of its own, on both event loops."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        def run(scenario: Scenario) -> None:
            with Lab(["a", "b"]) as lab:
                runner.run(play_scenario(scenario, lab))

        yield run
