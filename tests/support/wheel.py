"""The wheel and the sdist as users get them: builds them, and installs them into fresh environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALL_S = 180
_BUILT = (".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml", "src")
_OURS = ("PYTHONPATH", "FOREWARN_")


def run_clean(*line: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with an environment that does not point to the source tree."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    return subprocess.run(
        line, cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )


def build_distributions(directory: Path) -> Path:
    """Build the sdist, and the wheel from it, in a copy of the source tree without git; returns their directory.

    FOREWARN_DIST names a directory that has them already, such as those of a release.
    """
    if given := os.environ.get("FOREWARN_DIST"):
        return Path(given)
    source = directory / "source"
    source.mkdir(parents=True)
    for name in _BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    line = (sys.executable, "-m", "build", "--no-isolation", "--outdir", directory / "dist", source)
    done = run_clean(*line, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "dist"


def the_wheel(dist: Path) -> Path:
    """The only wheel in a directory."""
    (wheel,) = dist.glob("*.whl")
    return wheel


def install(place: Path, requirement: str) -> Path:
    """Make a fresh environment, install a requirement into it, and return its directory of programs."""
    venv.create(place, with_pip=False)
    line = (sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", requirement)
    done = run_clean(*line, cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "bin"
