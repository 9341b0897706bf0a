"""Writes the generated pages of docs/ (`python -m tools.docs`, called by `make docs`)."""

from __future__ import annotations

from pathlib import Path

from forewarn.web.arm import routes as arm_routes
from tools.docs.api_reference import api_reference_markdown
from tools.docs.azure_api import azure_api_markdown
from tools.docs.cli_reference import cli_pages
from tools.docs.crash_test_cases import crash_test_pages
from tools.docs.crash_test_schema import crash_test_schema
from tools.docs.decisions import decisions_markdown
from tools.docs.executable_page import chosen_ports
from tools.docs.faults import faults_markdown
from tools.docs.fleet_file import fleet_file_markdown
from tools.docs.lifecycle import lifecycle_markdown
from tools.docs.metrics import with_metrics
from tools.docs.packages import with_packages
from tools.docs.settings import with_settings
from tools.docs.terminal_tour import update_tour

DOCS = Path(__file__).parents[2] / "docs"
_ARCHITECTURE = DOCS / "contributing" / "architecture.md"
_SETTINGS = DOCS / "reference" / "settings.md"
_METRICS = DOCS / "reference" / "metrics.md"


def pages() -> dict[str, str]:
    """The text of each generated page, by its path in docs/."""
    return {
        "contributing/architecture.md": with_packages(_ARCHITECTURE.read_text(encoding="utf-8")),
        "contributing/decisions/index.md": decisions_markdown(DOCS / "contributing" / "decisions"),
        **cli_pages(),
        "reference/faults.md": faults_markdown(),
        "reference/fleet-file.md": fleet_file_markdown(),
        "reference/lifecycle.md": lifecycle_markdown(),
        "reference/api.md": api_reference_markdown(),
        "reference/azure-api.md": azure_api_markdown(arm_routes.ROUTES),
        "reference/metrics.md": with_metrics(_METRICS.read_text(encoding="utf-8")),
        "reference/settings.md": with_settings(_SETTINGS.read_text(encoding="utf-8")),
        **crash_test_pages(),
        "reference/crash-test-result.schema.json": crash_test_schema(),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    update_tour(DOCS / "tour.svg", chosen_ports())
