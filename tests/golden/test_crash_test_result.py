"""The keys of `forewarn crash-test --json` are frozen: their names, types, and which are always there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden.harness import check_golden

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "crash-test-result.schema.json"


def describe_type(schema: dict[str, Any]) -> str:
    """The type of a key in a few words, such as `array of string`."""
    if "anyOf" in schema:
        return " or ".join(sorted(describe_type(one) for one in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    return f"array of {describe_type(schema['items'])}" if schema["type"] == "array" else str(schema["type"])


def test_the_keys_of_a_crash_test_result_are_frozen() -> None:
    lines = []
    for name, definition in sorted(json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"].items()):
        if "properties" not in definition:
            lines.append(f"{name}: {describe_type(definition)}")
        for key, schema in sorted(definition.get("properties", {}).items()):
            always = "" if key in definition.get("required", []) else ", may be absent"
            lines.append(f"{name}.{key}: {describe_type(schema)}{always}")
    check_golden("names/crash-test-result.txt", "\n".join(lines) + "\n")
