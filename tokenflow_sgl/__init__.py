"""Buffer-aware preemptive scheduling for streaming LLM serving on SGLang."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenflow_sgl.engine.offline import Engine

__all__ = ["Engine", "__version__"]

__version__ = version("tokenflow-sgl")


def __getattr__(name: str) -> Any:
    # On first use: importing this package must not import SGLang.
    if name == "Engine":
        from tokenflow_sgl.engine.offline import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
