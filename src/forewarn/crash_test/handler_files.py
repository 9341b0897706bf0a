"""The files of a handler on its VM: a copy of the user's directory, and what it sees of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forewarn.machines.namespace_vm.private_files import TMP, VmFiles

_DISK_BYTES = 32 * 1024 * 1024
_MAX_COPIED_BYTES = 256 * 1024  # of one file of the user's directory; larger ones become links
_MAX_COPIED_TOTAL = 8 * 1024 * 1024
_MAX_ENTRIES = 5000  # of the user's directory
_PATH_VARIABLES = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "NODE_PATH", "GOPATH", "HOME")
_PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")  # the metadata endpoint is never behind one


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """Which handler program runs on which VM, and where its files are.

    The handler starts with copies of the files of `user_directory`. Only directories, and files over 256 KiB or beyond
    8 MiB in all, are links to the user's own, which the handler can change.
    """

    vm: str  # the VM's name
    hostname: str  # of the VM; a plain child has that of this machine
    command: tuple[str, ...]  # the handler and its arguments
    directory: Path  # an existing, empty directory for the files of this VM; its creator removes it
    user_directory: Path  # where the user started the crash test: the handler starts with its files
    environment: Mapping[str, str]  # all that the handler gets, beside the variables of its machine
    endpoint_env: str = ""  # a plain child needs it: the variable that gets the endpoint's URL; "": a VM of namespaces


def copy_user_directory(source: Path, target: Path) -> None:
    """Make the files of `source` visible in the directory `target`: small ones as copies, others as links."""
    left = _MAX_COPIED_TOTAL
    for entry in sorted(source.iterdir())[:_MAX_ENTRIES]:
        with suppress(OSError):
            if entry.is_file() and not entry.is_symlink() and entry.stat().st_size <= min(left, _MAX_COPIED_BYTES):
                left -= entry.stat().st_size
                shutil.copy2(entry, target / entry.name)
            elif entry.is_file() or entry.is_dir():
                (target / entry.name).symlink_to(entry.resolve())


def prepare_vm_files(spec: HandlerSpec) -> VmFiles:
    """Create the directories for the private files of a VM of namespaces, and return what to mount in it."""
    names = ("disk", "contents", "tmp", "ephemeral")
    disk, contents, tmp, _ = directories = [spec.directory / name for name in names]
    for directory in directories:
        directory.mkdir()
    tmp.chmod(0o1777)
    copy_user_directory(spec.user_directory, contents)
    return VmFiles(
        disk=disk,
        disk_bytes=_DISK_BYTES,
        disk_contents=contents,
        tmp=tmp,
        shared_tmp_entries=_shared_tmp_entries(spec),
    )


def _shared_tmp_entries(spec: HandlerSpec) -> tuple[str, ...]:
    variables = (spec.environment.get(name, "").split(os.pathsep) for name in _PATH_VARIABLES)
    texts = [text for values in variables for text in values if text]
    paths = [spec.directory, spec.user_directory, *map(Path, texts)]
    paths += [spec.user_directory / argument for argument in spec.command]
    inside = (Path(os.path.abspath(path)) for path in paths)
    names = {path.relative_to(TMP).parts[0] for path in inside if TMP in path.parents}
    return tuple(sorted(name for name in names if os.path.lexists(TMP / name)))


def vm_environment(spec: HandlerSpec, files: VmFiles) -> dict[str, str]:
    """Return the environment of a handler in a VM of namespaces: that of `spec`, with its PWD and TMPDIR."""
    kept = {name: value for name, value in spec.environment.items() if name not in _PROXY_VARIABLES}
    return {**kept, "PWD": str(files.disk), "TMPDIR": str(TMP)}


def resolve_command(spec: HandlerSpec) -> tuple[str, ...]:
    """Return the command of `spec`, the program first, for another working directory than the user's."""
    program, *arguments = spec.command
    if "/" in program:
        program = os.path.abspath(spec.user_directory / program)
    return (program, *(_resolve_argument(argument, spec.user_directory) for argument in arguments))


def _resolve_argument(argument: str, user_directory: Path) -> str:
    if ".." in argument.split("/") and os.path.exists(user_directory / argument):
        return os.path.abspath(user_directory / argument)
    return argument
