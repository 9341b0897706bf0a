"""The limits of texts and numbers that users give, as field types of request bodies, rollout files and fleet files."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(max_length=800)]  # a name, key, id or tag (Azure: 512 characters and a value of 256)
NonEmptyText = Annotated[str, Meta(min_length=1, max_length=800)]
Reason = Annotated[str, Meta(min_length=1, max_length=300)]  # one sentence, which pages repeat
LongText = Annotated[str, Meta(max_length=10_000)]  # an address, a path, a query or an argument of a program
NonEmptyLongText = Annotated[str, Meta(min_length=1, max_length=10_000)]
RecordedBody = Annotated[bytes, Meta(max_length=1024 * 1024)]  # of one answer
Count = Annotated[int, Meta(ge=0, le=10**9)]
WholeNumber = Annotated[int, Meta(ge=-(10**9), le=10**9)]  # of which a rule knows closer limits, as for the next
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
DurationSeconds = Annotated[float, Meta(ge=0, le=10 * 366 * 86400)]  # up to ten years
ResultLimit = Annotated[int, Meta(ge=1, le=1_000_000)]
CalendarTexts = Annotated[tuple[Name, ...], Meta(max_length=100)]  # windows or blackout dates
FleetFileText = Annotated[str, Meta(max_length=16 * 1024 * 1024)]
Tags = Annotated[dict[Name, Name], Meta(max_length=1000)]
HistorySeq = Annotated[int, Meta(ge=0, le=2**62)]  # a sequence number of the history; 0 is before the first
