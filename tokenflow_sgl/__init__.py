"""Buffer-aware preemptive scheduling for streaming LLM serving on SGLang."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenflow_sgl.engine.offline import Engine

__all__ = ["Engine", "__version__"]

try:
    __version__ = version("tokenflow-sgl")
except PackageNotFoundError:  # a checkout that is not installed, as on a machine to be measured
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    # On first use: importing this package must not import SGLang.
    if name == "Engine":
        from tokenflow_sgl.engine.offline import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
