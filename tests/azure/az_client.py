"""Runs the az command line of `make test-az`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.web_service import SUBSCRIPTION, WebService

AZ = Path(__file__).parents[2] / ".venv-az" / "bin" / "az"
COMPUTE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/shop/providers/Microsoft.Compute"
Az = Callable[..., "subprocess.CompletedProcess[str]"]


def run_az(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(AZ), *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment
    )


def json_of(answer: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that az printed; fails if az failed."""
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout) if answer.stdout.strip() else None


def login(console: WebService, client_id: str, secret: str) -> tuple[str, ...]:
    tenant = console.console_info["tenant_id"]
    return ("login", "--service-principal", "-u", client_id, "-p", secret, "--tenant", tenant)
