"""The cursor file: written atomically, read tolerantly."""

from pathlib import Path

import pytest

from forewarn.client import Gone, Outcome, Scheduled, Started
from forewarn.client.change_detection import KnownDocument, KnownEvent
from forewarn.client.cursor import (
    BadCursor,
    WatchCursor,
    decode_cursor,
    encode_cursor,
    load_cursor,
    read_boot_id,
    save_cursor,
)
from forewarn.errors import Rejected
from forewarn.protocol.codec import decode_event

EVENT = decode_event({"EventId": "A", "EventStatus": "Started", "EventType": "Odd", "Resources": ["ä"], "X": 1})
CURSOR = WatchCursor(
    known=KnownDocument(
        epoch="3", incarnation=7, events=(KnownEvent(event=EVENT, boot_id="one"),), is_exact=False, gone_keys=("B",)
    ),
    unhandled=(
        Scheduled(event=EVENT, left_s=1.5),
        Scheduled(event=EVENT),
        Started(event=EVENT, first=True),
        Gone(event=EVENT, outcome=Outcome.WITHDRAWN),
    ),
    boot_id="two",
)


def test_a_cursor_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_cursor(tmp_path / "cursor", CURSOR)
    assert load_cursor(tmp_path / "cursor") == CURSOR
    assert load_cursor(tmp_path / "cursor").known.events[0].event.raw == EVENT.raw
    assert [path.name for path in tmp_path.iterdir()] == ["cursor"]


def test_an_absent_file_is_a_new_cursor(tmp_path: Path) -> None:
    assert load_cursor(tmp_path / "cursor") == WatchCursor()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "it is damaged"),
        (encode_cursor(CURSOR)[:-20], "it is damaged"),
        (b"[]", "it is not a forewarn cursor"),
        (b'{"a":1}', "it is not a forewarn cursor"),
        (b'{"forewarn-cursor":2}', "it has format 2, and this forewarn reads 1"),
        (b'{"forewarn-cursor":1}', "it is damaged"),
        (encode_cursor(CURSOR).replace(b'"gone"', b'"lost"'), "it contains an unknown change 'lost'"),
        (encode_cursor(CURSOR).replace(b'"withdrawn"', b'"eaten"'), "it is damaged"),
    ],
    ids=["empty", "cut off", "list", "foreign", "newer", "bare", "unknown change", "unknown outcome"],
)
def test_a_file_that_is_not_a_cursor_is_rejected_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(BadCursor, match=reason):
        decode_cursor(raw)


def test_an_unusable_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"cannot be written \(No such file or directory\): use another file"):
        save_cursor(tmp_path / "absent" / "cursor", CURSOR)
    with pytest.raises(Rejected, match=r"cannot be read \(Is a directory\): use another file"):
        load_cursor(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    save_cursor(path, CURSOR)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(Rejected):
        save_cursor(tmp_path / "elsewhere", WatchCursor())
    assert load_cursor(path) == CURSOR
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cursor", "elsewhere"]


def test_the_boot_id_is_the_kernels() -> None:
    assert len(read_boot_id()) == 36
