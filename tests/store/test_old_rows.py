"""Rows of older versions: a new field of a JSON body has a default, so it needs no migration."""

from __future__ import annotations

from forewarn.store.interface import LastPoll
from forewarn.store.row_codec import read_last_poll


def test_a_poll_without_an_agent_is_read_with_an_empty_one() -> None:
    old = b'{"vm":"a","scope_id":"s","at":1.0,"version":"2020-07-01","count":3}'
    assert read_last_poll(old) == LastPoll(
        vm="a", scope_id="s", at=1.0, version="2020-07-01", count=3, agent="", wait_s=0
    )
