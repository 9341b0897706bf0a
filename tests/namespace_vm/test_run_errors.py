"""`python -m forewarn.machines.namespace_vm` says in one sentence why a VM cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.machines.namespace_vm.__main__ import main
from tests.support.fake_supervisor_server import FakeSupervisorServer


def test_a_vm_whose_files_cannot_be_written_is_reported_in_one_sentence(
    service: FakeSupervisorServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (service.directory_of("web-0") / "journal.jsonl").mkdir(parents=True)
    assert main(str(tmp_path), "web-0", "true") == 3
    error = capsys.readouterr().err
    assert error.startswith("VM web-0 cannot run ([Errno 21] Is a directory")
    assert error.endswith("): check the disk and the permissions of its files, and try again\n")
    assert error.count("\n") == 1
