"""Gates are decided concurrently, unless they share a scope."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from forewarn.control.reconciler import independent_rounds

GATES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.frozensets(st.sampled_from("UVWXYZ")))


@given(GATES)
def test_every_gate_is_in_one_round(scopes: dict[str, frozenset[str]]) -> None:
    assert sorted(gate for gates in independent_rounds(scopes) for gate in gates) == sorted(scopes)


@given(GATES)
def test_gates_of_one_round_share_no_scope(scopes: dict[str, frozenset[str]]) -> None:
    for gates in independent_rounds(scopes):
        assert all(not scopes[one] & scopes[other] for one, other in combinations(gates, 2))


@given(GATES)
def test_gates_that_share_a_scope_keep_their_order(scopes: dict[str, frozenset[str]]) -> None:
    round_of = {gate: number for number, gates in enumerate(independent_rounds(scopes)) for gate in gates}
    for first, second in combinations(scopes, 2):
        if scopes[first] & scopes[second]:
            assert round_of[first] < round_of[second]


def test_gates_that_share_no_scope_are_in_the_same_round() -> None:
    assert independent_rounds({"a": {"X"}, "b": {"Y"}, "c": {"X", "Y"}, "d": set()}) == [["a", "b", "d"], ["c"]]
