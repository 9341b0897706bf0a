"""Gates take their turns side by side, unless they have a scope in common."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from forewarn.control.reconciler import independent_rounds

GATES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.frozensets(st.sampled_from("UVWXYZ")))


@given(GATES)
def test_every_gate_has_one_turn(scopes: dict[str, frozenset[str]]) -> None:
    assert sorted(gate for gates in independent_rounds(scopes) for gate in gates) == sorted(scopes)


@given(GATES)
def test_gates_of_one_round_have_no_scope_in_common(scopes: dict[str, frozenset[str]]) -> None:
    for gates in independent_rounds(scopes):
        assert all(not scopes[one] & scopes[other] for one, other in combinations(gates, 2))


@given(GATES)
def test_of_two_gates_with_a_scope_in_common_the_first_has_its_turn_first(scopes: dict[str, frozenset[str]]) -> None:
    turn_of = {gate: number for number, gates in enumerate(independent_rounds(scopes)) for gate in gates}
    for first, second in combinations(scopes, 2):
        if scopes[first] & scopes[second]:
            assert turn_of[first] < turn_of[second]


def test_gates_with_no_scope_in_common_have_their_turns_together() -> None:
    assert independent_rounds({"a": {"X"}, "b": {"Y"}, "c": {"X", "Y"}, "d": set()}) == [["a", "b", "d"], ["c"]]
