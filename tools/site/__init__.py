"""The documentation site (`make site`): stages pages for the generator, which `zensical.toml` configures.

It is not installed with the package, and imports nothing of `forewarn`. Start with `staging`.
"""
