"""Times in JSON: RFC 3339 text in UTC, `2026-11-18T21:08:06.123Z`. Within Python a time is POSIX seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, overload

_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0  # the first second of the year 1, the last of 9999
_FORM = "2026-11-18T21:08:06Z"


LabTime: TypeAlias = float  # POSIX seconds by the service's clock, which a lab can move
LabSeconds: TypeAlias = float  # a duration by that clock

if TYPE_CHECKING:

    class RealTime:
        """POSIX seconds by the wall clock: for mypy no number, so that it is never taken for lab time."""

        def __init__(self, seconds: float) -> None: ...
        def __float__(self) -> float: ...
        def __add__(self, seconds: float) -> RealTime: ...
        @overload
        def __sub__(self, other: RealTime) -> float: ...
        @overload
        def __sub__(self, other: float) -> RealTime: ...
        def __sub__(self, other: RealTime | float) -> RealTime | float: ...
        def __lt__(self, other: RealTime) -> bool: ...
        def __le__(self, other: RealTime) -> bool: ...
        def __gt__(self, other: RealTime) -> bool: ...
        def __ge__(self, other: RealTime) -> bool: ...
else:
    RealTime = float


class Timestamp(float):
    """A time by the service's clock, which JSON shows as text: msgspec encodes it only with `encode_time`."""


@overload
def timestamp(at: float) -> Timestamp: ...
@overload
def timestamp(at: None) -> None: ...
def timestamp(at: float | None) -> Timestamp | None:
    """Mark POSIX seconds as a time that JSON shows as text; None stays None."""
    return None if at is None else Timestamp(at)


@overload
def time_text(at: float) -> str: ...
@overload
def time_text(at: None) -> None: ...
def time_text(at: float | None) -> str | None:
    """Format POSIX seconds as `2026-11-18T21:08:06.123Z`, rounded down to a millisecond; None stays None."""
    if at is None:
        return None
    shown = datetime.fromtimestamp(max(_EARLIEST, min(at, _LATEST)), UTC)
    return shown.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str) -> float:
    """Parse an ISO 8601 time, in UTC if it names no zone, to POSIX seconds. Raises ValueError for other text."""
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{_shortened(text)} is not a time: write it like {_FORM}") from None


def _shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def encode_time(value: object) -> str:
    """Encode a Timestamp as JSON: the `enc_hook` of msgspec."""
    if isinstance(value, Timestamp):
        return time_text(value)
    raise NotImplementedError(f"JSON has no form for {type(value).__name__}")


def decode_time(wanted: type, value: Any) -> Timestamp:
    """Decode a Timestamp from JSON: the `dec_hook` of msgspec."""
    if wanted is not Timestamp:
        raise NotImplementedError(f"JSON has no form for {wanted.__name__}")
    if not isinstance(value, str):
        raise ValueError(f"{_shortened(value)} is not a time: write it as text, like {_FORM}")
    return Timestamp(parse_time(value))


def time_schema(wanted: type) -> dict[str, Any]:
    """Return the JSON schema of a Timestamp: the `schema_hook` of msgspec."""
    if wanted is not Timestamp:
        raise NotImplementedError(f"JSON has no form for {wanted.__name__}")
    return {"type": "string", "format": "date-time"}
