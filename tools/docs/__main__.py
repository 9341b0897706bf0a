"""Writes the generated pages of docs/ (`python -m tools.docs`, called by `make docs`)."""

from __future__ import annotations

from pathlib import Path

from forewarn.arm import routes as arm_routes
from tools.docs.api_reference import api_reference_markdown
from tools.docs.azure_api import azure_api_markdown
from tools.docs.lifecycle import lifecycle_markdown
from tools.docs.packages import with_packages
from tools.docs.powershell import powershell_markdown

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[str, str]:
    """The Markdown of each generated page, by file name."""
    return {
        "architecture.md": with_packages((DOCS / "architecture.md").read_text(encoding="utf-8")),
        "lifecycle.md": lifecycle_markdown(),
        "api.md": api_reference_markdown(),
        "azure-api.md": azure_api_markdown(arm_routes.ROUTES),
        "powershell.md": powershell_markdown(arm_routes.ROUTES),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
