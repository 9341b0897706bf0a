"""What limits a fault, in one process and over several."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from forewarn.core.fault import Fault, FaultKind
from forewarn.metadata.allowance import Allowance, OwnAllowance, SharedAllowance

FAULT = Fault(id="f1", kind=FaultKind.GONE, who="ann", set_at=0.0, name="every VM", count=3)
ENDLESS = replace(FAULT, id="f2", count=None)
PROCESSES = 4
EACH = 200


def laid_out(*faults: Fault) -> SharedAllowance:
    shared = SharedAllowance.new()
    shared.lay_out(faults)
    return shared


def own(*faults: Fault) -> OwnAllowance:
    allowance = OwnAllowance()
    allowance.begin(faults)
    return allowance


@pytest.fixture(params=[own, laid_out])
def begun(request: Any) -> Any:
    return request.param


def test_so_many_and_no_more(begun: Any) -> None:
    allowance: Allowance = begun(FAULT, ENDLESS)
    assert [allowance.take(FAULT) for _ in range(5)] == [True, True, True, False, False]
    assert not allowance.is_left(FAULT)
    assert all(allowance.take(ENDLESS) for _ in range(5))
    assert allowance.is_left(ENDLESS)


def test_what_was_touched_before_counts(begun: Any) -> None:
    allowance: Allowance = begun(replace(FAULT, touched=2))
    assert [allowance.take(FAULT) for _ in range(2)] == [True, False]


def test_a_place_is_kept_while_its_fault_is_on_and_never_given_to_another() -> None:
    shared = laid_out(FAULT)
    assert shared.take(FAULT)
    other = replace(FAULT, id="f3")
    first = shared.places["f1"]
    both = shared.lay_out([replace(FAULT, touched=1), other])
    assert both["f1"] == first
    assert [shared.take(FAULT) for _ in range(3)] == [True, True, False]
    assert shared.lay_out([ENDLESS]) == {}
    assert shared.lay_out([replace(FAULT, id="f4")])["f4"] not in both.values()


def test_several_processes_take_together_what_there_is() -> None:
    many = replace(FAULT, count=PROCESSES * EACH // 2)
    shared = laid_out(many)
    take = (
        "import sys, msgspec\n"
        "from forewarn.core.fault import Fault\n"
        "from forewarn.metadata.allowance import SharedAllowance\n"
        "shared, fault = SharedAllowance(int(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Fault)\n"
        "shared.places = {fault.id: int(sys.argv[3])}\n"
        f"print(sum(shared.take(fault) for _ in range({EACH})))"
    )
    line = [sys.executable, "-c", take, str(shared.file), msgspec.json.encode(many).decode(), str(shared.places["f1"])]
    takers = [
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, pass_fds=[shared.file]) for _ in range(PROCESSES)
    ]
    assert sum(int(taker.communicate(timeout=60)[0]) for taker in takers) == many.count
    shared.close()
