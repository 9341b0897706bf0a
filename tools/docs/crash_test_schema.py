"""Makes docs/reference/crash-test-result.schema.json: the JSON Schema of what `forewarn crash-test --json` writes.

Descriptions of keys are the comments behind the fields in the source.
"""

from __future__ import annotations

import inspect
import io
import json
import tokenize
from typing import Any, get_args

import msgspec

from forewarn.crash_test.claims import HandlerClaims
from forewarn.crash_test.figures import HandlerFigures
from forewarn.crash_test.grading import GradeReport
from forewarn.crash_test.result import SCHEMA, CaseResult, CrashTestResult
from forewarn.crash_test.timeline import DeliveredEvent, Observation, Timeline
from forewarn.crash_test.verdict import Finding, Verdict

_STRUCTS: tuple[type, ...] = (
    *(CrashTestResult, CaseResult, HandlerClaims, HandlerFigures, GradeReport),
    *(Verdict, Finding, Timeline, DeliveredEvent, *get_args(Observation)),
)


def crash_test_schema() -> str:
    """Return the schema as indented JSON."""
    schema = msgspec.json.schema(CrashTestResult)
    definitions = schema["$defs"]
    for struct in _STRUCTS:
        _describe(definitions[struct.__name__], struct)
    definitions["CrashTestResult"]["required"].insert(0, "schema")
    definitions["CrashTestResult"]["properties"]["schema"] = {
        "const": SCHEMA,
        "description": "the version of this document; a change that readers must know of increases it",
    }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"The result of forewarn crash-test, schema {SCHEMA}",
        **schema,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _describe(definition: dict[str, Any], struct: type) -> None:
    """Add the comments behind the fields of a struct, and of those it inherits, to its definition."""
    comments = {name: text for base in reversed(struct.__mro__[:-1]) for name, text in _field_comments(base).items()}
    for name, prop in definition["properties"].items():
        if name in comments:
            prop["description"] = comments[name]


def _field_comments(struct: type) -> dict[str, str]:
    try:
        source = inspect.getsource(struct)
    except (OSError, TypeError):
        return {}  # msgspec's own base
    comments = {}
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.start[1] == 4:
            name = token.string
        elif token.type == tokenize.COMMENT and name:
            comments[name] = token.string.removeprefix("# ")
        elif token.type == tokenize.NEWLINE:
            name = ""
    return comments
