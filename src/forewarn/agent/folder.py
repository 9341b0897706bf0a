"""A folder for each step of each event, for what a reaction must find again. It is the agent's alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

_LONGEST = 120


def folder_for(root: Path, key: str, step: str) -> Path:
    """Made if need be."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / _name(key) / step
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def forget_others(root: Path, keys: Iterable[str]) -> None:
    """Remove the folders of events that the journal has forgotten."""
    kept = {_name(key) for key in keys}
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _name(key: str) -> str:
    """A server may send any text for an id."""
    name = quote(key, safe="#").replace(".", "%2E")
    return name if len(name) <= _LONGEST else sha256(key.encode("utf-8", "replace")).hexdigest()
