"""The in-process lab for tests of handlers: a whole service on loopback, in virtual time. Public.

Use `from forewarn.lab import Lab`. May import `service` and everything below it. Start with `lab`; `values` holds
the events, VMs and faults that a test is given. `Lab` is imported on first use, so that a missing [server] extra is
reported in a sentence.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.lab.lab import Lab


__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    """Import `Lab` on first use; raises ImportError without the [server] extra."""
    if name != "Lab":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from forewarn.lab.lab import Lab
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "forewarn":
            raise
        raise ImportError(
            f"forewarn's lab is a whole service, which needs {error.name!r}: pip install 'forewarn[server]'"
        ) from error
    return Lab
