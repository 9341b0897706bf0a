"""docs/reference/crash-test-result.schema.json is generated from the structs of a result, and results follow it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from forewarn.crash_test.result import encode_result
from forewarn.crash_test.verdict import CaseOutcome
from tests.crash_test.results import a_case, a_result
from tools.docs.crash_test_schema import crash_test_schema

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "crash-test-result.schema.json"


def test_the_schema_in_the_documentation_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == crash_test_schema(), f"{PAGE} is not current: run `make docs`"


@pytest.mark.parametrize("outcome", CaseOutcome)
def test_results_follow_the_schema(outcome: CaseOutcome) -> None:
    document = json.loads(encode_result(a_result(a_case("notice-30s", outcome))))
    validator = jsonschema_rs.validator_for(json.loads(PAGE.read_text(encoding="utf-8")))
    assert [str(error) for error in validator.iter_errors(document)] == []
    assert not validator.is_valid({**document, "schema": 2})
    assert not validator.is_valid({name: value for name, value in document.items() if name != "grade"})


def test_most_keys_are_described() -> None:
    definitions = json.loads(PAGE.read_text(encoding="utf-8"))["$defs"]
    figures = definitions["HandlerFigures"]["properties"]
    assert figures["notice_p50_s"]["description"] == "from publication to the poll that got the event"
    assert definitions["Polled"]["properties"]["vm"]["description"].startswith("the VM's name")
