"""The log of a detached program: complete, and never larger than its limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from forewarn.machines.namespace_vm.supervisor import OutputLog


def run_with_writer(log: OutputLog, write: Callable[[int], None]) -> str:
    """Let `write` write to the pipe in a thread while the log copies; return the log's end."""

    async def scenario() -> str:
        log.watch()
        await asyncio.to_thread(write, log.write_end)
        return log.tail()

    return asyncio.run(scenario())


def write_all(data: bytes, pipe: int) -> None:
    os.write(pipe, data)


def size_of(path: Path) -> int:
    """Return the bytes of the log and its older file; the event loop may rename one while this looks."""
    size = 0
    for file in path.parent.glob(f"{path.name}*"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def test_output_is_appended_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    for words in (b"first\n", b"second\n"):
        log = OutputLog(path)
        assert run_with_writer(log, partial(write_all, words)) == words.decode()
        log.close()
    assert path.read_bytes() == b"first\nsecond\n"
    assert [file.name for file in tmp_path.iterdir()] == ["output.log"]


def test_a_program_that_writes_without_end_fills_two_files_at_most(tmp_path: Path) -> None:
    path, limit = tmp_path / "output.log", 200_000
    log = OutputLog(path, max_bytes=limit)

    def write(pipe: int) -> None:
        for number in range(40):
            os.write(pipe, b"%05d %s\n" % (number, b"x" * 50_000))
            assert size_of(path) <= 2 * limit

    tail = run_with_writer(log, write)
    log.close()
    assert tail.endswith("x\n")
    assert len(tail) == 4096
    kept = (tmp_path / "output.log.1").read_bytes() + path.read_bytes()
    assert kept[-50_007:].startswith(b"00039 ")
    assert limit < size_of(path) <= 2 * limit
    assert sorted(file.name for file in tmp_path.iterdir()) == ["output.log", "output.log.1"]


def test_the_last_output_is_copied_when_the_log_is_closed(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "output.log")
    os.write(log.write_end, b"last words\n")
    log.close_write_end()
    log.close()
    assert (tmp_path / "output.log").read_bytes() == b"last words\n"


def test_output_that_cannot_be_written_does_not_stop_the_program(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "output.log", max_bytes=10)
    (tmp_path / "output.log").unlink()
    (tmp_path / "output.log.1").mkdir()  # so that the full log cannot be renamed
    assert run_with_writer(log, partial(write_all, b"a" * 100)) == "a" * 100
    log.close()
