"""Copies of VMs' definitions in the service's data directory, in case their host is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from urllib.parse import quote, unquote

from forewarn.machines.interface import ActNotTried


class DefinitionCopies:
    """Copies of VMs' definitions, and of other XML by name: files `HOST/NAME.xml` below a directory."""

    # The copies outlive the host; a host "" stands for VMs that are on no host. Without a directory nothing is kept.
    # The files may contain passwords, so only their owner can read them. A file that cannot be used raises ActNotTried:
    # that is a problem of this machine, not of the host.

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def save(self, host: str, vm: str, xml: str) -> None:
        """Keep this XML of a VM, or of a volume by its path, in place of an earlier one."""
        if self._directory is None or self.load(host, vm) == xml:
            return
        path = _path(self._directory, host, vm)
        draft = path.with_suffix(".new")
        with _file_errors(path, "written"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(xml)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)

    def save_all(self, host: str, texts: Mapping[str, str]) -> None:
        """Keep these texts for a host, such as the XML of volumes, each under its name (the key)."""
        for name, text in texts.items():
            self.save(host, name, text)

    def load(self, host: str, vm: str) -> str | None:
        if self._directory is None:
            return None
        path = _path(self._directory, host, vm)
        with _file_errors(path, "read"):
            try:
                return path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def load_all(self, host: str) -> dict[str, str]:
        """Return everything that is kept for the host, such as the XML of domains and volumes, by name."""
        if self._directory is None:
            return {}
        directory = self._directory / _file_name(host)
        with _file_errors(directory, "read"):
            return {unquote(path.stem): path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.xml"))}

    def load_from_any_host(self, host: str, name: str) -> str | None:
        """Return what is kept under this name for the host, else for the first other host that has it."""
        if (own := self.load(host, name)) is not None or self._directory is None:
            return own
        with _file_errors(self._directory, "read"):
            found = sorted(self._directory.glob(f"*/{escape(_file_name(name))}.xml"))
            return found[0].read_text(encoding="utf-8") if found else None

    def delete(self, host: str, vm: str) -> None:
        if self._directory is not None:
            path = _path(self._directory, host, vm)
            with _file_errors(path, "deleted"):
                path.unlink(missing_ok=True)


@contextmanager
def _file_errors(path: Path, participle: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ActNotTried(
            f"the copy {str(path)!r} of a VM's definition cannot be {participle} now ({error.strerror}): free some "
            "space, or let the service use the file"
        ) from error


def _path(directory: Path, host: str, vm: str) -> Path:
    return directory / _file_name(host) / f"{_file_name(vm)}.xml"


def _file_name(name: str) -> str:
    """The name with all characters quoted that mean something in a path; different names stay different."""
    if not name:
        return "%"  # quoting never results in this
    return quote(name, safe="").replace(".", "%2E") if name.startswith(".") else quote(name, safe="")
