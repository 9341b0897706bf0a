"""The picture of packages in docs/contributing/architecture.md is drawn from the import graph."""

from __future__ import annotations

from pathlib import Path

from tools.docs.packages import layers, package_imports, with_packages, without_implied

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "architecture.md"


def test_the_picture_of_packages_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_packages(page) == page, "the imports have changed: run `make docs`"


def test_every_import_goes_to_a_lower_layer() -> None:
    height = {name: number for number, layer in enumerate(layers()) for name in layer}
    imports = package_imports()
    assert [(a, b) for a, below in imports.items() for b in below if height[a] >= height[b]] == []


def test_an_import_that_a_chain_implies_is_not_drawn() -> None:
    assert without_implied({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
