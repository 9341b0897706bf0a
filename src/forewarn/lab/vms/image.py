"""The guest of the lab: Debian's cloud kernel and BusyBox, built once and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from forewarn.errors import Rejected
from forewarn.machines.qemu.qmp import require_qmp

# Each program that building or running a guest needs, and Debian's package that has it.
_PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "lz4": "lz4",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
_BUILD_TIMEOUT_S = 300
_KERNEL, _INITRAMFS = "vmlinux", "initramfs"


class GuestImage:
    """The paths of the kernel and the initial file system of the lab's guests."""

    def __init__(self, directory: Path) -> None:
        self.kernel = directory / _KERNEL
        self.initramfs = directory / _INITRAMFS

    @property
    def is_built(self) -> bool:
        """Whether kernel and initial file system exist, the latter not older than the scripts it is made of."""
        newest = max(path.stat().st_mtime for path in _scripts().iterdir())
        return self.kernel.exists() and self.initramfs.exists() and self.initramfs.stat().st_mtime >= newest


def image_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that the guest's files are kept in: `forewarn/guest` in the user's cache."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "forewarn" / "guest"


def check_programs() -> None:
    """Raise Rejected, with what to install, if this machine cannot build or run a guest."""
    if sys.platform != "linux":
        raise Rejected("real VMs need Linux: run this lab on a Linux machine, or use `forewarn up`")
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if missing:
        raise Rejected(f"this machine has no {missing[0]}: install it with `apt-get install {' '.join(missing)}`")
    require_qmp()


def build_image(directory: Path) -> GuestImage:
    """Build the guest in `directory`, unless it is up to date. Downloads Debian's kernel, and installs nothing."""
    image = GuestImage(directory)
    if image.is_built:
        return image
    directory.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            ["sh", str(_scripts() / "build.sh"), str(directory)],
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Rejected(f"the guest was not built within {_BUILD_TIMEOUT_S} s: check the network") from None
    if done.returncode != 0 or not image.is_built:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Rejected(f"the guest cannot be built ({last}): run `apt-get update` first, and check the network")
    return image


def _scripts() -> Path:
    return Path(str(resources.files("forewarn.lab.vms").joinpath("guest")))
