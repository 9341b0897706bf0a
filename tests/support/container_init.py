"""Starts a container's program: `python container_init.py SPECIFICATION`, as root in new mount and process namespaces.

Mounts what the specification lists, makes the image's files its read-only root, drops capabilities and the user's
rights, and becomes the program. Only the standard library: it must not need anything of the tree that it leaves.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = {"DAC_OVERRIDE": 1, "NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_ADMIN": 21}
_LAST_CAPABILITY = 40


def mount(*words: str) -> None:
    """Run `mount`; it must succeed."""
    subprocess.run(["mount", *words], check=True)


def make_mount_point(path: Path, *, is_file: bool) -> None:
    """Create it in the image's files, as container engines do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_file:
        path.touch()
    else:
        path.mkdir(exist_ok=True)


def prepare_root(specification: dict[str, Any]) -> Path:
    """Mount everything, and return the root, which is read-only then."""
    root = Path(specification["root"])
    mount("--make-rprivate", "/")
    targets = [(source, root / target.lstrip("/"), readonly) for source, target, readonly in specification["mounts"]]
    for source, target, _ in targets:
        make_mount_point(target, is_file=Path(source).is_file())
    mount("--bind", str(root), str(root))
    mount("-o", "remount,bind,ro", str(root))
    mount("-t", "proc", "proc", str(root / "proc"))
    mount("--rbind", "/dev", str(root / "dev"))
    for target in specification["tmpfs"]:
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / target.lstrip("/")))
    for source, target, readonly in targets:
        mount("--bind", source, str(target))
        if readonly:
            mount("-o", "remount,bind,ro", str(target))
    return root


def drop_rights(specification: dict[str, Any]) -> None:
    """Keep only the listed capabilities, even for root, and become the user."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {_CAPABILITIES[name] for name in specification["capabilities"]}
    for capability in set(range(_LAST_CAPABILITY + 1)) - kept:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(specification["gid"])
    os.setuid(specification["uid"])


def main() -> None:
    specification = json.loads(sys.argv[1])
    root = prepare_root(specification)
    os.chroot(root)
    os.chdir("/")
    drop_rights(specification)
    os.environ.clear()
    os.environ.update(specification["environment"])
    words = specification["words"]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
