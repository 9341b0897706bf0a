"""Generators of documentation pages, run by `make docs`.

Not installed with the package. They import `forewarn`; only tests import them.
"""
