"""Two QEMU hosts in directories, whose QEMU is `fake_qemu`, for tests of the driver without real VMs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance
from tests.support import fake_qemu
from tests.support.service_process import eventually
from tests.vms.hosts import toml_text

FIRST, SECOND, VM = "host-1", "host-2", "web-0"
PYTHON = (sys.executable, "-I", "-S")


class FakeSite:
    """Two hosts whose QEMU is `fake_qemu`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self.lock_directories: tuple[str, ...] = ()
        self.hosts = {name: self.host(name, memory_mib=64) for name in (FIRST, SECOND)}
        for path in (self.shared, *(directory / name for name in self.hosts)):
            path.mkdir()

    def host(self, name: str, **settings: Any) -> QemuHost:
        return QemuHost(directory=str(self.directory / name), prefix=PYTHON, **settings)

    def path(self, host: str, suffix: str) -> Path:
        return self.directory / host / f"{VM}{suffix}"

    def define(self, host: str = FIRST, *options: str, more: str = "") -> None:
        text = f"command = {toml_text([fake_qemu.__file__, *options])}\nmemory_mib = 16\n{more}"
        self.path(host, ".toml").write_text(text)

    def define_with_disks(self) -> None:
        (self.shared / "data.raw").write_text("data")
        (self.shared / "image.raw").write_text("image")
        self.define(
            more=f'disks = ["{self.shared}/data.raw"]\nimage = "{self.shared}/image.raw"\n'
            f'[ephemeral]\npath = "{self.shared}/ephemeral.raw"\nsize_mib = 1\n'
        )

    def pid(self, host: str = FIRST) -> int:
        return int(self.path(host, ".pid").read_text())

    def run(self, scenario: Callable[[QemuDriver], Awaitable[None]], *, timeout_s: float = 10.0) -> None:
        async def main() -> None:
            driver = QemuDriver(
                self.hosts,
                copies=self.directory / "copies",
                lock_directories=self.lock_directories,
                timeout_s=timeout_s,
            )
            try:
                await scenario(driver)
            finally:
                await driver.close()
                await driver.close()

        asyncio.run(main())

    @contextmanager
    def qemu_by_hand(self, *options: str) -> Iterator[None]:
        """Run a QEMU that somebody has started beside the driver, which is in no directory of a host."""
        pid_file, socket = self.directory / "by-hand.pid", self.directory / "by-hand.qmp"
        monitor = () if "-qmp" in options else ("-qmp", f"unix:{socket},server=on,wait=off")
        words = [*PYTHON, fake_qemu.__file__, "-pidfile", str(pid_file), *monitor, *options]
        with subprocess.Popen(words, cwd="/") as process:
            try:
                eventually(lambda: pid_file.exists() and pid_file.read_text().strip(), within_s=30)
                yield
            finally:
                process.kill()
                process.wait()
                for file in (pid_file, socket):
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """End the QEMU processes that are left."""
        for file in self.directory.glob("host-*/*.pid"):
            with suppress(OSError, ValueError):
                if QemuInstance("", file.stem, file.parent).is_alive():
                    os.kill(int(file.read_text()), signal.SIGKILL)
