"""gpuspool: a batch scheduler with a job spooler for people who train on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]

if TYPE_CHECKING:
    from .api.client import Client


def __getattr__(name: str) -> object:
    """Names of the public face come on first use: `import gpuspool` itself stays free of charge."""
    if name == "Client":
        from .api.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
