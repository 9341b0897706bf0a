"""What is new in a body has a default, so that rows which older versions wrote are read without a migration."""

from __future__ import annotations

from forewarn.store.interface import LastPoll
from forewarn.store.row_codec import read_last_poll


def test_a_poll_from_before_programs_were_kept_has_none() -> None:
    old = b'{"vm":"a","scope_id":"s","at":1.0,"version":"2020-07-01","count":3}'
    assert read_last_poll(old) == LastPoll(
        vm="a", scope_id="s", at=1.0, version="2020-07-01", count=3, agent="", wait_s=0
    )
