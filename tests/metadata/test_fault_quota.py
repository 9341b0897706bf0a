"""The limit of a fault, in one process and over several."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from forewarn.core.faults import Fault, FaultKind
from forewarn.metadata.fault_quota import FaultQuota, LocalFaultQuota, SharedFaultQuota

FAULT = Fault(id="f1", kind=FaultKind.GONE, set_by="ann", set_at=0.0, name="every VM", count=3)
ENDLESS = replace(FAULT, id="f2", count=None)
PROCESSES = 4
EACH = 200


def shared_quota(*faults: Fault) -> SharedFaultQuota:
    shared = SharedFaultQuota.create()
    shared.assign_offsets(faults)
    return shared


def local_quota(*faults: Fault) -> LocalFaultQuota:
    quota = LocalFaultQuota()
    quota.set_active(faults)
    return quota


@pytest.fixture(params=[local_quota, shared_quota])
def make_quota(request: Any) -> Any:
    return request.param


def test_a_fault_affects_as_many_requests_as_its_limit(make_quota: Any) -> None:
    quota: FaultQuota = make_quota(FAULT, ENDLESS)
    assert [quota.consume(FAULT) for _ in range(5)] == [True, True, True, False, False]
    assert not quota.has_remaining(FAULT)
    assert all(quota.consume(ENDLESS) for _ in range(5))
    assert quota.has_remaining(ENDLESS)


def test_requests_affected_before_count(make_quota: Any) -> None:
    quota: FaultQuota = make_quota(replace(FAULT, applied=2))
    assert [quota.consume(FAULT) for _ in range(2)] == [True, False]


def test_a_counter_offset_is_kept_while_its_fault_is_active_and_never_reused() -> None:
    shared = shared_quota(FAULT)
    assert shared.consume(FAULT)
    other = replace(FAULT, id="f3")
    first = shared.offsets["f1"]
    both = shared.assign_offsets([replace(FAULT, applied=1), other])
    assert both["f1"] == first
    assert [shared.consume(FAULT) for _ in range(3)] == [True, True, False]
    assert shared.assign_offsets([ENDLESS]) == {}
    assert shared.assign_offsets([replace(FAULT, id="f4")])["f4"] not in both.values()


PROGRAM = (
    "import sys, msgspec\n"
    "from forewarn.core.faults import Fault\n"
    "from forewarn.metadata.fault_quota import SharedFaultQuota\n"
    "shared, fault = SharedFaultQuota(int(sys.argv[1])), msgspec.json.decode(sys.argv[2], type=Fault)\n"
    "shared.offsets = {fault.id: int(sys.argv[3])}\n"
)


def start_process(shared: SharedFaultQuota, fault: Fault, code: str) -> subprocess.Popen[str]:
    """Run code in another process that shares the quota."""
    offset = str(shared.offsets[fault.id])
    line = [sys.executable, "-c", PROGRAM + code, str(shared.file), msgspec.json.encode(fault).decode(), offset]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[shared.file])


def test_several_processes_share_one_limit() -> None:
    many = replace(FAULT, count=PROCESSES * EACH // 2)
    shared = shared_quota(many)
    code = f"print(sum(shared.consume(fault) for _ in range({EACH})))"
    processes = [start_process(shared, many, code) for _ in range(PROCESSES)]
    assert sum(int(process.communicate(timeout=60)[0]) for process in processes) == many.count
    shared.close()


def test_a_stopped_process_with_the_lock_does_not_block_others() -> None:
    shared = shared_quota(FAULT)
    stuck = start_process(shared, FAULT, "with shared._locked(): print('now', flush=True); sys.stdin.read()")
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "now\n"
    assert not shared.consume(FAULT)
    stuck.communicate(timeout=60)
    assert [shared.consume(FAULT) for _ in range(4)] == [True, True, True, False]
    shared.close()


def test_a_closed_quota_does_not_write_to_a_reused_descriptor() -> None:
    shared = shared_quota(FAULT)
    number = shared.file
    with tempfile.TemporaryFile() as another:
        shared.close()
        os.dup2(another.fileno(), number)
        assert set(shared.assign_offsets([FAULT, replace(FAULT, id="f3")])) == {"f1", "f3"}
        shared.close()
        os.close(number)
        assert another.read() == b""


def test_the_quota_uses_a_temporary_file_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = shared_quota(FAULT)
    assert [shared.consume(FAULT) for _ in range(4)] == [True, True, True, False]
    shared.close()
