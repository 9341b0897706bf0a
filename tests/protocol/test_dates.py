"""Dates: RFC 1123 is written, RFC 1123 and ISO 8601 are read (spec §4.2)."""

from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.dates import http_date, iso_date, parse_date

SEP_2016 = 1474309787.0
TIMES = st.integers(-62_135_596_800, 253_402_300_799)  # the years 1 to 9999


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (SEP_2016, "Mon, 19 Sep 2016 18:29:47 GMT"),
        (SEP_2016 + 0.999_999, "Mon, 19 Sep 2016 18:29:47 GMT"),
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (-0.5, "Wed, 31 Dec 1969 23:59:59 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (4_102_444_799, "Thu, 31 Dec 2099 23:59:59 GMT"),
    ],
)
def test_a_time_is_written_in_29_characters_and_rounded_down(at: float, text: str) -> None:
    assert http_date(at) == text
    assert len(text) == 29


def test_iso_dates_have_the_form_that_azure_documented_in_2017() -> None:
    assert iso_date(SEP_2016 + 0.9) == "2016-09-19T18:29:47Z"


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 19 Sep 2016 18:29:47 GMT",
        "  mon, 19 sep 2016 18:29:47 gmt ",
        "Fri, 19 Sep 2016 18:29:47 GMT",
        "19 Sep 2016 18:29:47 UTC",
        "Mon, 19-Sep-2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:47 +0000",
        "2016-09-19T18:29:47Z",
        "2016-09-19T18:29:47.000Z",
        "2016-09-19T20:29:47+02:00",
        "2016-09-19T18:29:47",
        "2016-09-19 18:29:47",
    ],
)
def test_every_form_that_real_servers_send_is_parsed(text: str) -> None:
    assert parse_date(text) == SEP_2016


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "0",
        "2016",
        "2016-09-19",
        "Mon, 32 Sep 2016 18:29:47 GMT",
        "Mon, 19 Foo 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:60 GMT",
        "Mon, 19 Sep 0000 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:47 PST",
        "0001-01-01T00:00:00+14:00x",
    ],
)
def test_text_that_is_not_a_date_parses_to_none(text: str) -> None:
    assert parse_date(text) is None


@given(TIMES)
@settings(max_examples=200, deadline=None)
def test_a_formatted_date_parses_to_the_same_time(at: int) -> None:
    assert parse_date(http_date(at)) == at
    assert parse_date(iso_date(at)) == at
    assert len(http_date(at)) == 29


@given(st.integers(0, 4_102_444_800))
@settings(max_examples=200, deadline=None)
def test_dates_agree_with_the_standard_librarys_mail_format(at: int) -> None:
    assert http_date(at) == formatdate(at, usegmt=True)


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_parsing_a_date_never_raises(text: str) -> None:
    assert parse_date(text) is None or isinstance(parse_date(text), float)
