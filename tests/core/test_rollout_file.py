"""Rollout files (spec §13.1): what they say, and one sentence with the line for each mistake."""

from __future__ import annotations

import pytest

from forewarn.core.rollout import InvalidRollout
from forewarn.core.rollout_file import FILE_KEYS, parse_deadline, read_rollout_file
from forewarn.errors import Rejected
from tests.support.markdown_pages import ROOT, blocks

GOOD = """\
[rollout]
tag = "app=web"
impact = "reboot"
notice = "20m"
settle = "10m"

[[waves]]
name = "canary"
vms = 2

[[waves]]
share = 12.5

[windows]
open = ["sat 02:00 4h", "sun 02:00 4h"]
"""


def test_a_file_is_read_with_durations_as_seconds() -> None:
    file = read_rollout_file(GOOD)
    assert file.rollout == {"tag": "app=web", "impact": "reboot", "notice": 1200.0, "settle": 600.0}
    assert file.waves == ({"name": "canary", "vms": 2}, {"share": 12.5})
    assert file.windows == {"open": ["sat 02:00 4h", "sun 02:00 4h"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[rollout\n", "line 1 of the rollout file: this is not TOML"),
        ("[rollout]\ntag = 5\n", "line 2 of the rollout file: tag is a text, not 5"),
        ("[rollout]\nhosts = [1]\n", "line 2 of the rollout file: hosts is a list of texts, not [1]"),
        ("[rollout]\neverything = 1\n", "line 2 of the rollout file: everything is true or false, not 1"),
        ("[rollout]\n\nsettel = '1m'\n", "line 3 of the rollout file: 'settel' is not a key of [rollout]"),
        ("[rollout]\nsettle = '-1m'\n", "line 2 of the rollout file: settle: '-1m' is negative"),
        ("[rollout]\nsettle = 5\n", "line 2 of the rollout file: settle is a duration such as 10m, not 5"),
        ("[rollout]\n[[waves]]\nvms = true\n", "line 3 of the rollout file: vms is a whole number, not True"),
        ("[rollout]\n[[waves]]\nvms = 1.5\n", "line 3 of the rollout file: vms is a whole number, not 1.5"),
        ("[rollout]\n[[waves]]\nshare = '5'\n", "line 3 of the rollout file: share is a number, not '5'"),
        ("[rollout]\n[waves]\nvms = 1\n", "line 2 of the rollout file: waves is a list of tables: write [[waves]]"),
        ("windows = 1\n[rollout]\n", "line 1 of the rollout file: windows is a table: write [windows]"),
        ("[rollout]\n[wavs]\n", "line 2 of the rollout file: [wavs] is not known"),
        ("[windows]\n", "line 1 of the rollout file: the table [rollout] is missing"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Rejected) as raised:
        read_rollout_file(text)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "value",
    ["tag = " + "[" * 3000 + "]" * 3000, "tag = " + "{a = " * 3000 + "1" + "}" * 3000],
    ids=["lists", "inline tables"],
)
def test_a_file_that_is_nested_too_deeply_is_rejected(value: str) -> None:
    with pytest.raises(Rejected, match="nested too deeply"):
        read_rollout_file(f"[rollout]\n{value}\n")


@pytest.mark.parametrize(
    ("path", "line"),
    [(("waves", 1, "share"), 12), (("waves", 0, "tag"), 7), (("settle",), 5), (("windows", "open"), 15), ((), 1)],
)
def test_an_invalid_rollout_is_located_by_its_own_path(path: tuple[str | int, ...], line: int) -> None:
    file = read_rollout_file(GOOD)
    with pytest.raises(Rejected, match=f"line {line} of the rollout file: it is wrong"), file.located("rollout"):
        raise InvalidRollout("it is wrong", path)


def test_another_rejection_gets_the_line_of_the_given_path() -> None:
    with (
        pytest.raises(Rejected, match="line 2 of the rollout file: no"),
        read_rollout_file(GOOD).located("rollout", "tag"),
    ):
        raise Rejected("no")


def test_a_deadline_is_a_time_or_a_duration_from_now() -> None:
    assert parse_deadline("2026-01-05T12:00Z", 0.0) == 1767614400.0
    assert parse_deadline("2d", 100.0) == 172_900.0
    with pytest.raises(Rejected, match="'soon' is not a deadline"):
        parse_deadline("soon", 0.0)


def test_the_example_of_the_rollout_page_can_be_read() -> None:
    page = ROOT / "docs/how-to/rollouts.md"
    texts = [block.text for block in blocks(page) if block.language == "toml"]
    assert [len(read_rollout_file(text).waves) for text in texts] == [2]


def test_the_reference_page_lists_every_key() -> None:
    page = (ROOT / "docs/reference/rollout-file.md").read_text(encoding="utf-8")
    for table, keys in FILE_KEYS.items():
        _, _, section = page.partition(f"[{table}]")
        assert all(f"| `{key}` |" in section for key in keys), table
