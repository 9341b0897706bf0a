"""Rules that the product does not keep yet. Remove a rule here with the change that makes it hold."""

from __future__ import annotations

EXPECTED_VIOLATIONS: frozenset[str] = frozenset()
