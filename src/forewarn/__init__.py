"""Advance notice of maintenance for virtual machines, in the contract of Azure Scheduled Events.

`pip install forewarn` installs the guest side and needs only Python; `forewarn[server]` adds the service.
"""


def __getattr__(name: str) -> str:
    """Return `__version__`, the version of the installed package; raises AttributeError for other names."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("forewarn")
    except PackageNotFoundError:  # a source tree on the path that was never installed
        found = "0+unknown"
    globals()["__version__"] = found
    return found
