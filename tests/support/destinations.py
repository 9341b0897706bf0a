"""Destinations for decisions in tests: every VM moves to the same host, or no VM can move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class AnyVmTo(Mapping[str, str]):
    """Maps every VM key to one host; with None it maps no key."""

    def __init__(self, host: str | None) -> None:
        self._host = host

    def __getitem__(self, key: str) -> str:
        if self._host is None:
            raise KeyError(key)
        return self._host

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
