"""Generators of documentation pages, run by `make docs`.

They are not installed with the package. They import `forewarn`; only tests import them.
"""
