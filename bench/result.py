"""The result of a run, as a JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.figure import Figure
from bench.machine import Machine
from bench.target import Verdict


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A run: when, on which machine, and its figures."""

    at: str  # UTC
    commit: str
    is_quick: bool
    machine: Machine
    load_average: float  # before the first row: other programs disturb the measurement
    figures: tuple[Figure, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether every figure that this machine can measure reached its target."""
        return not any(figure.verdict in (Verdict.MISSED, Verdict.FAILED) for figure in self.figures)


def write_result(result: Result, path: Path) -> None:
    """Write the result as JSON, with the target and verdict of each figure."""
    content = msgspec.to_builtins(result)
    for fields, figure in zip(content["figures"], result.figures, strict=True):
        fields |= {"must_reach": figure.target.text, "verdict": str(figure.verdict)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(content)), indent=2) + b"\n")


def read_result(path: Path) -> Result:
    """Read a result that `write_result` has written."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _rounded(value: object) -> object:
    """Round to six digits: no measurement has more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
