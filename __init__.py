"""HearthFS: a distributed cache filesystem for LLM inference.

``hearthfs.Client`` is the SDK. It is imported on first use, so that ``import hearthfs.common`` costs nothing.
"""

from typing import TYPE_CHECKING, Any

from .common import version

if TYPE_CHECKING:
    from .client.client import Client as Client

__all__ = ["Client", "__version__"]

__version__ = version.VERSION


def __getattr__(name: str) -> Any:
    if name == "Client":
        from .client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
