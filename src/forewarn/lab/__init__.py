"""A WORLD IN A BOX. What tests of forewarn and of its users stand on: the `Lab` for other people's tests, fakes of the
outside world, and the conformance suites that say what a store or a hypervisor must do. Public, and tested like
everything else.

Never here: anything a running service needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.testing.lab import Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    """The lab is a whole service: whoever wants something smaller from here need not have what it needs."""
    if name != "Lab":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from forewarn.testing.lab import Lab
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "forewarn":
            raise
        raise ImportError(
            f"forewarn's lab is a whole service, which needs {error.name!r}: pip install 'forewarn[server]'"
        ) from error
    return Lab
