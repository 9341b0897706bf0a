"""Generates docs/reference/faults.md from the definitions of the faults (`make docs`)."""

from __future__ import annotations

from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultDefinition, FaultKind, FaultParameter

# What follows `forewarn fault set KIND` in the example of each fault; tests run them.
_EXAMPLES = {
    FaultKind.LATE_FIRST_ANSWER: "delay=20s --vm web-0",
    FaultKind.EMPTY_BODY: "--vm web-0 --count 3",
    FaultKind.GONE: "--vm web-0 --for 70s",
    FaultKind.THROTTLED: "retry-after=2s --all --count 10",
    FaultKind.INTERNAL_ERROR: "--vm web-0 --count 1",
    FaultKind.RESET: "--vm web-0 --count 2",
    FaultKind.SLOW_BODY: "take=30s --vm web-0",
    FaultKind.STALE: "age=45s --scope db --for 10m",
    FaultKind.UNKNOWN_VERSION_404: "--all",
    FaultKind.UNSIGNED_401: "--vm web-0 --for 10m",
    FaultKind.SHORT_NOTICE: "notice=8s --vm web-0 --count 1",
    FaultKind.NO_NOTICE: "--scope db --for 1h",
    FaultKind.WITHDRAWN_AFTER_APPROVAL: "--vm web-0 --count 1",
    FaultKind.SEVERAL_AT_ONCE: "events=4 --scope db",
    FaultKind.NEIGHBOUR_ONLY: "--vm db-0",
    FaultKind.INCARNATION_RESET: "--vm web-0",
    FaultKind.SEVERAL_UPDATE_DOMAINS: "--scope db",
}
_TITLES = {
    FaultCategory.TRANSPORT: "Faults of requests",
    FaultCategory.EVENTS: "Faults of events",
    FaultCategory.AT_ONCE: "Faults that happen once",
}
_INTRODUCTIONS = {
    FaultCategory.TRANSPORT: "They change answers. `--for` is real time, `--count` counts requests.",
    FaultCategory.EVENTS: "They change events. `--for` is lab time, `--count` counts events.",
    FaultCategory.AT_ONCE: "They happen when they are set, and take neither `--for` nor `--count`.",
}

_PAGE = """\
# Faults

<!-- from src/forewarn/core/faults.py, by `make docs` -->

[Make the endpoint fail on purpose](../how-to/faults.md) is the guide. Clients have met all of these faults on Azure.
The examples follow `forewarn fault set`.

{sections}

## What a fault affects

Faults of requests affect valid polls and approvals only. A request that gets 401, 410, 429 or 500, or is reset, has no
effect. Of several faults one affects a request: first those that refuse it, then the others, in the order in which they
were set. An event without notice still waits for other update domains. A fault never affects other scopes.

## For programs

[The API](api.md#routes) sets, lists and clears faults; a body of `POST /forewarn/v1/faults` is
`{{"kind": "stale", "vm": "web-0", "count": 3, "parameters": {{"age_s": 45}}}}`.
"""


def faults_markdown() -> str:
    """The page docs/reference/faults.md: every fault with its symptom, parameters and an example."""
    sections = (
        f"## {title}\n\n{_INTRODUCTIONS[category]}\n\n{_table(category)}" for category, title in _TITLES.items()
    )
    return _PAGE.format(sections="\n\n".join(sections))


def _table(category: FaultCategory) -> str:
    rows = ["| example | what a client sees | parameters |", "|---|---|---|"]
    for kind, definition in FAULT_DEFINITIONS.items():
        if definition.category is category:
            example = f"{kind} {_EXAMPLES[kind]}"
            rows.append(f"| `{example}` | {_symptom(definition)} | {_parameters(definition)} |")
    return "\n".join(rows)


def _symptom(definition: FaultDefinition) -> str:
    longest = definition.max_duration_s
    return definition.symptom if longest is None else f"{definition.symptom}, for {longest:g} s at most"


def _parameters(definition: FaultDefinition) -> str:
    return "; ".join(_parameter(name, each) for name, each in definition.parameters.items())


def _parameter(name: str, parameter: FaultParameter) -> str:
    def text(value: float) -> str:
        return f"{value:g} s" if name.endswith("_s") else f"{value:g}"

    shown = name.removesuffix("_s").replace("_", "-")
    values = f"{text(parameter.minimum)} to {text(parameter.maximum)}"
    return f"`{shown}`: {values}, {text(parameter.default)} by default"
