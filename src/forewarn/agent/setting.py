"""What stays the same while an agent runs, once it knows whose agent it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.value import Rule, Step
from forewarn.clock import Clock


@dataclass(slots=True, kw_only=True)
class Setting:
    vm: str  # "" until the endpoint has told it
    boot_id: str
    clock: Clock
    folders: Path
    steps: Mapping[str, Step]
    rules: tuple[Rule, ...]
