"""The checker of failovers finds each kind of damage in what clients saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.failover_load import ClientHistory, RecordFacts, check_history


def good() -> tuple[ClientHistory, RecordFacts]:
    history = ClientHistory(approved=["E1", "E2"])
    history.requests |= {"k1": ["r1", "r1"], "k2": ["r2"]}
    history.incarnations["127.0.1.1"] = [1, 2, 2, 5]
    facts = RecordFacts(requests=["r1", "r2"], approved=["E1", "E2"], performed=["E1", "E2"], effects=["E2", "E1"])
    return history, facts


def test_a_history_without_damage_passes() -> None:
    check_history(*good())


def two_requests_of_one_key(history: ClientHistory, facts: RecordFacts) -> RecordFacts:
    history.requests["k1"].append("r3")
    return replace(facts, requests=["r1", "r2", "r3"])


def an_older_document(history: ClientHistory, facts: RecordFacts) -> RecordFacts:
    history.incarnations["127.0.1.1"].append(4)
    return facts


def a_failed_poll(history: ClientHistory, facts: RecordFacts) -> RecordFacts:
    history.failed_polls.append("ConnectionRefusedError()")
    return facts


def a_refusal_from_old_state(history: ClientHistory, facts: RecordFacts) -> RecordFacts:
    history.refusals.append("409 the user restart of VM 'web' is pending")
    return facts


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda history, facts: replace(facts, requests=["r1"]), "is not in the record"),
        (lambda history, facts: replace(facts, requests=["r1", "r2", "r9"]), "other requests than clients made"),
        (two_requests_of_one_key, "the key k1 has several requests"),
        (lambda history, facts: replace(facts, approved=["E1"]), "approvals were answered, but are not in the record"),
        (lambda history, facts: replace(facts, effects=["E1", "E2", "E1"]), "event E1 was performed 2 times"),
        (lambda history, facts: replace(facts, performed=["E1", "E2", "E2"]), "event E2 was performed 2 times"),
        (lambda history, facts: replace(facts, effects=["E1"]), "ledgers of hosts and the record differ"),
        (lambda history, facts: replace(facts, early=["E1"]), "before their NotBefore without an approval"),
        (lambda history, facts: replace(facts, entries=[1, 2, 4]), "no entry between 2 and 4"),
        (an_older_document, "was older than one before"),
        (a_failed_poll, "polls failed"),
        (a_refusal_from_old_state, "calls were refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checker_finds_damage(damage: Callable[[ClientHistory, RecordFacts], RecordFacts], found: str) -> None:
    history, facts = good()
    with pytest.raises(AssertionError, match=found):
        check_history(history, damage(history, facts))
