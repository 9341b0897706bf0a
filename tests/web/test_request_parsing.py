"""Parsing is fast for any input of unauthenticated callers: it blocks the event loop."""

from __future__ import annotations

import time

import pytest
from starlette.requests import Request

from forewarn.errors import Rejected
from forewarn.web.request_parsing import unique_query_params

_LONGEST_TARGET = 64 * 1024  # the longest that the server accepts
_LONG_S = 1.0  # comparing every pair of names takes several seconds


def asking(query: str) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query.encode()})


def test_a_query_with_thousands_of_names_is_parsed_fast() -> None:
    names = [f"{number:x}" for number in range(13_000)]
    query = "&".join(names)
    assert len(query) < _LONGEST_TARGET

    began = time.thread_time()
    assert unique_query_params(asking(query)) == dict.fromkeys(names, "")
    assert time.thread_time() - began < _LONG_S


def test_a_query_parameter_that_occurs_twice_is_rejected() -> None:
    with pytest.raises(Rejected, match="the query has 'limit' more than once: give it once"):
        unique_query_params(asking("limit=1&after=2&limit=1"))
