"""Times in JSON: their text, and what is read as one."""

from __future__ import annotations

import msgspec
import pytest

from forewarn.base.times import Timestamp, decode_time, encode_time, parse_time, time_text, timestamp


class Shown(msgspec.Struct):
    at: Timestamp
    until: Timestamp | None = None


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_036_086.123, "2026-11-18T21:08:06.123Z"),
        (1_795_036_086.1239, "2026-11-18T21:08:06.123Z"),
        (1e15, "9999-12-31T23:59:59.000Z"),
        (-1e15, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_text_to_the_millisecond_rounded_down(at: float, text: str) -> None:
    assert time_text(at) == text
    assert time_text(parse_time(text)) == text
    assert (
        msgspec.json.encode(Shown(timestamp(at)), enc_hook=encode_time) == b'{"at":"%s","until":null}' % text.encode()
    )


def test_no_time_is_encoded_as_a_number() -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode(Shown(timestamp(1.5)))


@pytest.mark.parametrize(
    "text", ["2026-11-18T21:08:06Z", "2026-11-18T22:08:06.000+01:00", "2026-11-18 21:08:06", "20261118T210806Z"]
)
def test_a_time_is_read_in_its_zone_or_in_utc(text: str) -> None:
    assert parse_time(text) == 1_795_036_086


@pytest.mark.parametrize("value", ['"soon"', "1795036086", "true", '""', f'"{"9" * 99}"'])
def test_anything_else_is_not_a_time(value: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"is not a time: write it .*like 2026-11-18T21:08:06Z") as error:
        msgspec.json.decode(f'{{"at":{value}}}', type=Shown, dec_hook=decode_time)
    assert len(str(error.value)) < 160
