"""The system calls that Python 3.11 does not offer: unshare, setns, mount, prctl, sethostname."""

from __future__ import annotations

import ctypes
import fcntl
import os

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NS_GET_USERNS = 0xB701

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process to new namespaces (CLONE_NEW… flags). Raises OSError if the kernel refuses."""
    _raise_on_error(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_namespace(namespace: int) -> None:
    """Move this thread into the namespace of an open file descriptor. OSError if the kernel refuses."""
    _raise_on_error(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(0)), "setns")


def owning_user_namespace(namespace: int) -> int:
    """Return a new file descriptor of the user namespace that owns this namespace (a descriptor too)."""
    return fcntl.ioctl(namespace, _NS_GET_USERNS)


def set_hostname(name: str) -> None:
    """Set the hostname of the current UTS namespace. OSError if it is too long or the kernel refuses."""
    encoded = name.encode()
    _raise_on_error(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def die_with_parent(number: int) -> None:
    """Have the kernel send this process signal `number` when its parent ends. Children do not inherit it."""
    _raise_on_error(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Have the kernel make this process the parent of orphaned descendants, so that it can wait for them."""
    _raise_on_error(_libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def make_mounts_private() -> None:
    """Keep later mounts of this mount namespace out of others, and theirs out of it. OSError if refused."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def mount_virtual_filesystem(filesystem: str, target: str) -> None:
    """Mount a virtual file system of the kernel, proc or sysfs, at `target`. Raises OSError if refused."""
    _mount(filesystem, target, filesystem, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def mount_tmpfs(target: str, size_bytes: int) -> None:
    """Mount a new file system in memory, of at most `size_bytes`, at `target`. Raises OSError if refused."""
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes}")


def bind_mount(source: str, target: str) -> None:
    """Make `source`, with mounts below it, appear at `target` too. Raises OSError if refused."""
    _mount(source, target, None, _MS_BIND | _MS_REC)


def make_read_only(target: str) -> None:
    """Make `target`, a path of /proc or /sys, read-only; mounts below it stay as they are. OSError if refused."""
    bind_mount(target, target)
    # The kernel refuses a change that clears one of the other flags, which the mount above has.
    _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str, target: str, filesystem: str | None, flags: int, options: str = "") -> None:
    fstype = filesystem.encode() if filesystem is not None else None
    data = options.encode() or None
    result = _libc.mount(os.fsencode(source), os.fsencode(target), fstype, ctypes.c_ulong(flags), data)
    _raise_on_error(result, f"mount {target}")


def _raise_on_error(result: int, what: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
