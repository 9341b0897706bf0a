"""What a run found, as a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.figure import Figure
from bench.machine import Machine
from bench.target import Verdict


class Result(msgspec.Struct, frozen=True, kw_only=True):
    at: str  # UTC
    commit: str
    is_quick: bool
    machine: Machine
    load_average: float  # before the first row; others on the machine disturb
    figures: tuple[Figure, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether every figure that could be measured reached what it must."""
        return not any(figure.verdict in (Verdict.MISSED, Verdict.FAILED) for figure in self.figures)


def write(result: Result, path: Path) -> None:
    whole = msgspec.to_builtins(result)
    for table, figure in zip(whole["figures"], result.figures, strict=True):
        table |= {"must_reach": figure.target.words, "verdict": str(figure.verdict)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(whole)), indent=2) + b"\n")


def read(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _rounded(value: object) -> object:
    """With six digits: no reading has more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
